"""A study's runs by their directories and SLURM's queue: a row for each run.

The directories decide what is done; the queue says what waits, what runs and where, and why something ended that is not
done. For jobs that have left the queue SLURM's accounting answers; without accounting, the directories alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import slurm
from .records import QueueEntry, Submission, items, job_ids, queue_entries
from .slurm import Element

ENDED = ("done", "failed")
FAILED = ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE")
NOTHING: dict[str, Any] = {"job": None, "limit_left": None}


def look(submitted: Sequence[Submission]) -> list[Element]:
    """What SLURM knows of all jobs of these submissions. Raises InputError where it does not answer."""
    ids = job_ids(submitted)
    elements = slurm.queue(ids)
    gone = set(ids) - {element.job_id for element in elements}
    return elements + slurm.accounted(gone)


def active_items(submitted: Sequence[Submission], elements: Iterable[Element], kind: str) -> set[str]:
    """The items (runs; RUN or RUN/STEP of evaluations) of the elements of a kind that wait or run."""
    return {item for entry in _active(submitted, elements, kind) for item in items(entry)}


def active_jobs(submitted: Sequence[Submission], elements: Iterable[Element], kind: str) -> list[str]:
    """Ids of the jobs of a kind that wait or run."""
    return list(dict.fromkeys(entry.element.job_id for entry in _active(submitted, elements, kind)))


def _active(submitted: Sequence[Submission], elements: Iterable[Element], kind: str) -> list[QueueEntry]:
    return [entry for entry in queue_entries(submitted, elements) if entry.job.kind == kind and entry.element.active]


def job_rows(submitted: Sequence[Submission], elements: Iterable[Element]) -> list[dict[str, Any]]:
    """The jobs of the newest submission that SLURM still knows: elements by state, why some wait or failed, and where
    the batch scripts of those that failed wrote."""
    here = list(queue_entries(submitted, elements))
    newest = max((entry.submission.number for entry in here), default=0)
    rows: dict[str, dict[str, Any]] = {}
    for entry in here:
        if entry.submission.number == newest:
            blank = {
                "submission": newest,
                "job": entry.job.name,
                "id": entry.element.job_id,
                "states": {},
                "reasons": [],
                "logs": [],
            }
            row, element = rows.setdefault(entry.job.name, blank), entry.element
            row["states"][element.state] = row["states"].get(element.state, 0) + 1
            if element.state not in ("COMPLETED", "CANCELLED") and element.reason not in ("", *row["reasons"]):
                row["reasons"].append(element.reason)
            if element.state in FAILED:
                number = element.job_id if element.index is None else f"{element.job_id}_{element.index}"
                row["logs"].append(str(entry.submission.path / "logs" / f"{entry.job.name}_{number}.log"))
    return list(rows.values())


def merge(
    rows: Sequence[Mapping[str, Any]], submitted: Sequence[Submission], elements: Iterable[Element]
) -> list[dict[str, Any]]:
    """`rows` of scaling.cli.status.status_rows with what the queue says: job, limit_left, node, state, reason.

    Of a run that several submissions have, the newest counts that is in the queue.
    """
    newest: dict[str, QueueEntry] = {}
    for entry in queue_entries(submitted, elements):
        if entry.job.kind == "train":
            for run in items(entry):
                if run not in newest or entry.element.active or not newest[run].element.active:
                    newest[run] = entry
    states = {row["run_id"]: row["state"] for row in rows}
    return [_row(dict(row) | NOTHING, newest.get(row["run_id"]), states) for row in rows]


def _row(row: dict[str, Any], entry: QueueEntry | None, states: Mapping[str, str]) -> dict[str, Any]:
    if entry is None:
        return row
    element = entry.element
    row["job"] = element.job_id if element.index is None else f"{element.job_id}_{element.index}"
    if row["state"] in ENDED:
        return row
    if not element.active:
        if element.state != "COMPLETED":
            row["state"] = "interrupted"
            row["reason"] = "; ".join(filter(None, (row["reason"], _why(element))))
        return row
    row["limit_left"] = element.left or None
    if element.state == "PENDING":
        row["state"] = "requeued" if element.restarts or row["step"] else "queued"
        row["reason"], row["node"] = element.reason or None, None
        return row
    left = [run for run in items(entry) if states.get(run, "done") not in ENDED]
    if row["run_id"] not in left[: entry.job.resources.at_once]:
        row["state"], row["reason"] = "queued", f"waits for {left[0]} in the same job"
    else:
        row["state"], row["node"] = "running", element.nodes or row["node"]
    return row


def _why(element: Element) -> str:
    return f"job {element.state}" + (f" ({element.reason})" if element.reason else "")
