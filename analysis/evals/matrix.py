"""The matrix checkpoints x tasks: which results are there, which are stale or missing, and how a result is stored.

A result is one atomic file (results.py). It is valid as long as its key is the one that would be computed now; there is
no other record of what is done, so that any worker can go on at any point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.files import read_object, write_json
from scaling.rundir.directory import RunDir
from scaling.rundir.saved import LEFT_OUT, WEIGHTS, Checkpoint, read_saved
from scaling.study.run import RunSpec

from .results import Failure, Result, read_failure, read_result, result_key
from .task import Task

CHECKPOINTS, MERGED = "checkpoints", "merged"
RESULTS = {CHECKPOINTS: "evals", MERGED: "merged-evals"}  # of a run: where its weights lie, and results of them
OF_MERGED = ("validation",)  # tasks that are asked of merged weights: they stand in for a loss
DAMAGED = (
    "it is damaged (a file is missing or has another size than its manifest says, or it was saved after another step): "
    "take another copy, or train again"
)


@dataclass(frozen=True, eq=False)
class RunCheckpoint(Checkpoint):
    """A checkpoint of `run` to evaluate; its files are not yet verified. autocast: the run trains in bf16."""

    run: RunSpec

    @property
    def autocast(self) -> bool:
        return self.run.training.precision == "bf16"

    @property
    def is_merged(self) -> bool:
        """Whether these weights are the mean of the run's last weights (scaling.trainer.merging) and no checkpoint of
        the run."""
        return self.path.parent.name == MERGED

    @property
    def name(self) -> str:
        return f"{super().name}, merged" if self.is_merged else super().name

    @property
    def results(self) -> Path:
        """The directory of the checkpoint's results, claims and failures."""
        return self.path.parent.parent / RESULTS[self.path.parent.name] / self.path.name


@dataclass(frozen=True, eq=False)
class Pair:
    """One cell of the matrix: a checkpoint and a task."""

    checkpoint: RunCheckpoint
    task: Task
    key: str
    data_hash: str

    @property
    def name(self) -> str:
        return f"{self.checkpoint.name} {self.task.name}"

    @property
    def path(self) -> Path:
        return self.checkpoint.results / f"{self.task.name}.json"

    @property
    def failure(self) -> Path:
        return self.path.with_suffix(".failed")

    def stored(self) -> Result | None:
        """The valid result, None where there is none."""
        try:
            result = read_result(self.path)
        except (OSError, ValueError):
            return None
        return result if result.key == self.key else None

    @property
    def damage(self) -> str:
        """Why the stored result cannot be read; "" where it can, or there is none."""
        try:
            read_object(self.path)
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    def failed(self, attempt: str) -> str | None:
        """Why the pair failed in this attempt, None where it was not tried or did not fail."""
        failure = read_failure(self.failure)
        return failure.reason if failure and (failure.attempt, failure.key) == (attempt, self.key) else None

    def store(self, values: dict[str, Any], **cost: Any) -> Result:
        """Write the result; `cost`: device, seconds, setup_seconds, forward_tokens."""
        manifest, merged = self.checkpoint.manifest, self.checkpoint.is_merged
        result = Result(
            run_id=self.checkpoint.run.run_id,
            step=manifest["step"],
            n_tokens=manifest["n_tokens"],
            task=self.task.name,
            values=values,
            merged=merged,
            version=self.task.version,
            key=self.key,
            settings=self.task.settings(),
            weights_sha256=self.checkpoint.weights_sha256,
            data_hash=self.data_hash,
            merged_steps=manifest["merged"]["steps"] if merged else None,
            **cost,
        )
        self._write(self.path, result.to_dict())
        self.failure.unlink(missing_ok=True)
        return result

    def fail(self, attempt: str, reason: str) -> None:
        """Record that the pair cannot be evaluated, so that the other workers of this attempt do not try it."""
        self._write(self.failure, asdict(Failure(attempt, self.key, reason)))

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_json(path, content, kind="eval")
        except FileNotFoundError:  # a command that began just now swept the unfinished file away
            write_json(path, content, kind="eval")


@dataclass
class Matrix:
    """The pairs to evaluate. pairs: all that were asked for and can be tried, or have results; refused: by task,
    checkpoint (RUN/STEP) or pair, why it cannot be evaluated at all; n_refused: the number of pairs refused; tasks: the
    names of all tasks that were asked for."""

    pairs: list[Pair] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    n_refused: int = 0
    tasks: list[str] = field(default_factory=list)

    def checkpoints(self) -> Iterator[tuple[RunCheckpoint, list[Pair]]]:
        """Each checkpoint with its pairs, in order."""
        by_path: dict[Path, list[Pair]] = {}
        for pair in self.pairs:
            by_path.setdefault(pair.checkpoint.path, []).append(pair)
        for pairs in by_path.values():
            yield pairs[0].checkpoint, pairs

    def refuse(self, name: str, why: str, n_pairs: int = 1) -> None:
        self.refused[name] = why
        self.n_refused += n_pairs


def expand(
    runs_dir: Path,
    runs: Sequence[RunSpec],
    tasks: Iterable[Task],
    which: str = "all",
    share: Mapping[str, set[int]] | None = None,
) -> Matrix:
    """The matrix of the runs' checkpoints and `tasks`. which: "all" (merged weights included), "last" (of each run) or
    "STEP,STEP"; share: by run_id, only these steps (none: all).

    Reads manifests and data, loads no model. Raises InputError where `which` means nothing, or `which` or `share` names
    a step without a checkpoint.
    """
    tasks, matrix = list(tasks), Matrix()
    matrix.tasks = [task.name for task in tasks]
    checkpoints = []
    for run, path in _chosen(runs_dir, runs, which, share or {}):
        manifest = read_saved(path, verify=False, partial=True)
        if manifest is None or WEIGHTS not in manifest["files"]:  # it appeared whole, so it is not being written
            matrix.refuse(f"{run.run_id}/{path.name}", DAMAGED, len(tasks))
        else:
            checkpoints.append(RunCheckpoint(path, manifest, run))
    hashes: list[tuple[Task, str]] = []
    for task in tasks:
        try:
            hashes.append((task, task.data_hash()))
        except (InputError, OSError) as error:
            matrix.refuse(task.name, str(error).removeprefix(f"{task.name}: "), len(checkpoints))
    for checkpoint in checkpoints:
        for task, data_hash in hashes:
            if checkpoint.is_merged and task.name not in OF_MERGED:
                continue
            key = result_key(checkpoint.weights_sha256, task, data_hash, checkpoint.autocast)
            pair = Pair(checkpoint, task, key, data_hash)
            if checkpoint.left_out and pair.stored() is None:
                matrix.refuse(pair.name, f"its weights {LEFT_OUT}")
            else:
                matrix.pairs.append(pair)
    return matrix


def _chosen(
    runs_dir: Path, runs: Sequence[RunSpec], which: str, share: Mapping[str, set[int]]
) -> list[tuple[RunSpec, Path]]:
    """The runs' checkpoints, and after those of each run its merged weights, which never count as its last
    checkpoint."""
    chosen = []
    for run in runs:
        paths = sorted((runs_dir / run.run_id / CHECKPOINTS).glob("[0-9]*"))
        if unknown := share.get(run.run_id, set()) - {int(path.name) for path in paths}:
            raise InputError(f"--checkpoint {run.run_id}/{min(unknown)}: this run has no checkpoint of that step")
        if which == "last":
            paths = paths[-1:]
        else:
            merged = sorted((runs_dir / run.run_id / MERGED).glob("[0-9]*"))
            of_run = RunDir(runs_dir / run.run_id)
            paths += [path for path in merged if of_run.has_merged(int(path.name), run.training)]
        chosen += [(run, path) for path in paths]
    if which not in ("all", "last"):
        steps = _steps(which)
        if unknown := steps - {int(path.name) for _, path in chosen}:
            raise InputError(
                f"--checkpoints {which}: no run has a checkpoint of step {min(unknown)}; `all` and `last` are the "
                f"other choices"
            )
        chosen = [(run, path) for run, path in chosen if int(path.name) in steps]
    return [(run, path) for run, path in chosen if not share.get(run.run_id) or int(path.name) in share[run.run_id]]


def _steps(which: str) -> set[int]:
    words = [word.strip() for word in which.split(",")]
    if not all(word.isdecimal() for word in words):
        raise InputError(f"--checkpoints {which!r}: write all, last, or steps as 1000,2000")
    return {int(word) for word in words}
