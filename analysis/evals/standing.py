"""Which stored results are current: only those are shown and averaged, the others are counted.

A result is of today where its key is (matrix.py): weights, task, version, settings, data, precision. Where data are not
there, as on another machine, the result is held against the rest, and that is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.amounts import counted
from arch.errors import InputError
from data.files import read_json
from scaling.rundir.saved import WEIGHTS, read_saved
from scaling.study.run import RunSpec

from .matrix import SCHEMA, is_bf16, result_key
from .task import MissingData, Task

SHOWN = 3  # checkpoints that a line names


@dataclass
class Standing:
    """results: those of today, by run, step and task; left_out: {(task, why): [RUN/STEP]} of the others; unverified:
    {task: why its data could not be looked at}."""

    results: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    unverified: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For people, one for each task and reason; none where nothing is left out."""
        told = []
        for (task, why), names in self.left_out.items():
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            told.append(
                f"left out: {task} of {counted(len(names), 'checkpoint')}, {why}: {', '.join(names[:SHOWN])}{more}"
            )
        return told + [f"not verified: {task}: {why}" for task, why in self.unverified.items()]

    def to_dict(self) -> dict[str, Any]:
        """Without the results."""
        left_out = [{"task": task, "why": why, "checkpoints": names} for (task, why), names in self.left_out.items()]
        return {"left_out": left_out, "unverified": self.unverified}


def standing(runs_dir: Path, runs: Sequence[RunSpec], tasks: Iterable[Task]) -> Standing:
    """Of everything stored of the runs. tasks: those that there are; results of others are left out."""
    found, known = Standing(), {task.name: task for task in tasks}
    hashes: dict[str, str | InputError | None] = {}
    for run in runs:
        for folder in sorted((runs_dir / run.run_id / "evals").glob("[0-9]*")):
            manifest = read_saved(runs_dir / run.run_id / "checkpoints" / folder.name, verify=False, partial=True)
            weights = manifest["files"].get(WEIGHTS, {}).get("sha256") if manifest else None
            names = {path.stem for pattern in ("*.json", "*.failed") for path in folder.glob(pattern)}
            for name in sorted(names):
                why: str | None = "it is no task of the study"
                if task := known.get(name):
                    if name not in hashes:
                        hashes[name] = _data_hash(task, found)
                    why = _judge(found, folder / f"{name}.json", task, weights, is_bf16(run), hashes[name])
                if why:
                    found.left_out.setdefault((name, why), []).append(f"{run.run_id}/{folder.name}")
    return found


def _data_hash(task: Task, found: Standing) -> str | InputError | None:
    """Today's, None where the data are not there, or why it cannot be told."""
    try:
        return task.data_hash()
    except MissingData as error:
        found.unverified[task.name] = str(error).removeprefix(f"{task.name}: ")
        return None
    except InputError as error:
        return error
    except OSError as error:
        return InputError(f"{error.filename}: {error.strerror}")


def _judge(
    found: Standing, path: Path, task: Task, weights: str | None, bf16: bool, data: str | InputError | None
) -> str | None:
    """Take the result at `path` in; why not, None where it was."""
    if weights is None:
        return "its checkpoint is gone"
    if isinstance(data, InputError):
        return f"it cannot be evaluated ({data})"
    result = _read(path)
    data_hash = str(result.get("data_hash")) if data is None else data
    key = result_key(weights, task, data_hash, bf16)
    if result and result.get("schema") == SCHEMA and result.get("key") == key:
        found.results.append(result)
        return None
    failure = _read(path.with_suffix(".failed"))
    if failure and (failure.get("key") == key or not result):
        return f"it failed ({failure.get('reason')})"
    return _difference(result, task, weights, data_hash)


def _difference(result: Mapping[str, Any], task: Task, weights: str, data_hash: str) -> str:
    """Why a stored result is not current."""
    if not result or result.get("schema") != SCHEMA:
        return "it was written by another version of this program"
    if result.get("weights_sha256") != weights:
        return "the checkpoint was written anew"
    if result.get("version") != task.version:
        return f"it is of version {result.get('version')} of the task, now {task.version}"
    now, then = json.loads(json.dumps(task.settings())), result.get("settings") or {}
    changed = [key for key in {**now, **then} if now.get(key) != then.get(key)]
    if changed:
        return f"its settings changed ({', '.join(changed)})"
    return "its data changed" if result.get("data_hash") != data_hash else "it was read in another precision"


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return {}
