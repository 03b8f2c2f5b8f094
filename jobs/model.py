"""What a study needs of a cluster, as data: resources, array jobs, the chain between them. Knows no scheduler."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Resources:
    """What each element of an array requests. `reasons` says why, by field name: what --explain prints."""

    nodes: int
    tasks_per_node: int  # of a run, one process each: a GPU, or on CPU nodes a share of the cores
    gpus_per_node: int  # 0: CPU
    cpus_per_task: int
    memory_mb: int | None  # of a node; None: the partition's default
    minutes: int
    expected_requeues: int = 0  # of a run longer than the partition's time limit
    reasons: dict[str, str] = field(default_factory=dict, compare=False)
    at_once: int = 1  # runs, or workers of an evaluation, side by side on a node

    @property
    def world_size(self) -> int:
        """The processes of a run."""
        return self.nodes * self.tasks_per_node


@dataclass(frozen=True)
class ArrayJob:
    """One sbatch: an array whose element k works through the runs `elements[k]`, `resources.at_once` at a time."""

    name: str  # corpus, train-0, eval-0, finish: safe as a file name
    kind: str  # corpus, train, eval, finish
    resources: Resources
    elements: tuple[tuple[str, ...], ...]  # run ids; corpus and finish have one empty element
    throttle: int | None = None  # elements at once; None: no limit
    after: tuple[tuple[str, str], ...] = ()  # (name of a job of this plan, afterok | afterany | aftercorr)
    longest_s: float = 0.0  # expected of its longest element; 0: of minutes, or as long as the corpus takes
    total_s: float = 0.0  # of all elements
    work_s: float = 0.0  # of all runs: more where some are side by side
    at_least: bool = False  # whether a part of the work is of unknown length, and these are the least


@dataclass(frozen=True)
class JobPlan:
    """All jobs of one submission, in the order of their submission: a job comes after those it waits for."""

    study: str
    directory: str  # of the study's output
    jobs: tuple[ArrayJob, ...]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> JobPlan:
        jobs = tuple(
            ArrayJob(
                **job
                | {
                    "resources": Resources(**job["resources"]),
                    "elements": tuple(tuple(element) for element in job["elements"]),
                    "after": tuple((name, kind) for name, kind in job["after"]),
                }
            )
            for job in fields["jobs"]
        )
        return cls(fields["study"], fields["directory"], jobs)
