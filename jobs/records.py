"""What was submitted, on disk: <out>/<study>/jobs/<NNNN>/submission.json, and which runs are still in a queue.

The record is replaced before and after every sbatch, so that a kill in between leaves the name under which the queue
has the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch.amounts import first_few
from arch.errors import InputError
from data.files import read_json, write_json

from .model import ArrayJob, JobPlan
from .slurm import Element

SCHEMA = 1
ID = re.compile(r"\d{1,18}", re.ASCII)
PLANNED, SUBMITTING, SUBMITTED = "planned", "submitting", "submitted"


@dataclass
class Submission:
    """A submission's folder and its record."""

    path: Path
    record: dict[str, Any]

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def plan(self) -> JobPlan:
        return JobPlan.from_dict(self.record["plan"])

    @property
    def ids(self) -> dict[str, str]:
        """SLURM's job ids by the jobs' names, of those that were submitted."""
        return {name: job["id"] for name, job in self.record["jobs"].items() if job["id"] is not None}

    def note(self, name: str, state: str, job_id: str | None = None) -> None:
        self.record["jobs"][name] |= {"state": state, "id": job_id}
        self.save()

    def save(self) -> None:
        write_json(self.path / "submission.json", self.record, kind="submission")


@dataclass(frozen=True)
class QueueEntry:
    """An element of SLURM's queue, with the job and the submission that it belongs to."""

    submission: Submission
    job: ArrayJob
    element: Element


def folder(directory: Path) -> Path:
    """Of a study's submissions."""
    return directory / "jobs"


def next_path(directory: Path) -> Path:
    """The folder of the next submission; what a refused one left there is not counted."""
    return folder(directory) / f"{max((submission.number for submission in submissions(directory)), default=0) + 1:04d}"


def submissions(directory: Path) -> list[Submission]:
    """A study's submissions, the oldest first; a folder without a record is left out: nothing was submitted.

    Raises InputError for a record that cannot be read.
    """
    readable = []
    numbered = [path for path in folder(directory).glob("[0-9]*") if path.name.isdecimal()]
    for path in sorted(numbered, key=lambda path: int(path.name)):
        file = path / "submission.json"
        try:
            submission = Submission(path, read_json(file))
            if submission.record["schema"] != SCHEMA:
                raise ValueError(f"schema {submission.record['schema']!r}, not {SCHEMA}")
            _whole(submission)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{file}: cannot be read ({why}); cancel its jobs and remove {path}") from None
        readable.append(submission)
    return readable


def _whole(submission: Submission) -> None:
    """Raise what comes first where the record is not as `prepare` writes it."""
    record = submission.record
    for name, kind in (("spec_hashes", dict), ("jobs", dict), ("settings", str), ("plan", dict)):
        if not isinstance(record[name], kind):
            raise ValueError(f"{name} is no {kind.__name__}")
    if not all(isinstance(value, str) for value in record["spec_hashes"].values()):
        raise ValueError("spec_hashes has a value that is no hash")
    for job in record["plan"]["jobs"]:
        if not all(map(_are_names, [[job["name"], job["kind"]], *job["elements"], *job["after"]])):
            raise ValueError("plan: name, kind, elements or after of a job are no names")
    if unmatched := record["jobs"].keys() ^ {job.name for job in submission.plan.jobs}:
        raise ValueError(f"jobs and plan differ: {min(unmatched)}")
    for name, job in record["jobs"].items():
        if job["state"] not in (PLANNED, SUBMITTING, SUBMITTED) or not isinstance(job["name"], str):
            raise ValueError(f"jobs.{name}: no state and name of a job")
        if job["id"] is not None and not (isinstance(job["id"], str) and ID.fullmatch(job["id"])):
            raise ValueError(f"jobs.{name}: the id {job['id']!r} is no number")


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def job_ids(submitted: Iterable[Submission]) -> list[str]:
    return [job_id for submission in submitted for job_id in submission.ids.values()]


def queue_entries(submitted: Sequence[Submission], elements: Iterable[Element]) -> Iterator[QueueEntry]:
    """Every element of the queue with the job it belongs to, by id and name, in the order of the submissions."""
    by_id: dict[str, list[Element]] = {}
    for element in elements:
        by_id.setdefault(element.job_id, []).append(element)
    for submission in submitted:
        ids = submission.ids
        if not any(job_id in by_id for job_id in ids.values()):
            continue
        for job in submission.plan.jobs:
            for element in by_id.get(ids.get(job.name, ""), []):
                if element.name == submission.record["jobs"][job.name]["name"]:
                    yield QueueEntry(submission, job, element)


def items(entry: QueueEntry) -> tuple[str, ...]:
    """The runs, or checkpoints, of an element."""
    elements, index = entry.job.elements, entry.element.index or 0
    return elements[index] if index < len(elements) else ()


def refuse_changed(
    submitted: Iterable[Submission],
    specs: dict[str, str],
    settings: str,
    active: set[int],
    new: bool,
) -> None:
    """Raise InputError where a run, or the evaluation or fit of the study, is not what an earlier submission was made
    with; under `new` only where such a submission still has jobs in the queue.

    `specs`: {run id: spec hash}; `active`: numbers of the submissions with jobs in the queue.
    """
    for submission in submitted:
        old = submission.record["spec_hashes"]
        changed = [run for run, value in specs.items() if old.get(run, value) != value]
        if changed:
            what = f"run {first_few(changed)}"
        elif submission.record["settings"] != settings and submission.number in active:
            what = "evaluation or fit"
        else:
            continue
        if new and submission.number not in active:
            continue
        if new:
            raise InputError(
                f"submission {submission.path.name} still has jobs of the study as it was ({what}): `scaling cancel` "
                "it first"
            )
        raise InputError(
            f"the study changed since submission {submission.path.name} ({what}): take the change back, or submit "
            "the changed study with --new"
        )
