"""The matrix checkpoints x tasks: which results are there, which are stale or missing, and how a result is stored.

A result is one atomic file. It is current as long as its key is the one that would be computed now: of weights, task,
version, settings, data, precision. There is no other record of what is done, so that any worker can go on at any
point. Only current results are shown and averaged; the others are counted. Where a task's data are missing, as on
another machine, its results are checked by everything else, and a line says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.amounts import counted, first_few
from arch.errors import InputError
from data.files import read_object, write_json
from scaling.rundir.saved import LEFT_OUT, WEIGHTS, Checkpoint, read_saved
from scaling.study.run import RunSpec

from .results import SCHEMA, Result, read_result
from .task import MissingData, Task

if TYPE_CHECKING:
    from data.corpus import Corpus

    from .model import LoadedModel

SHOWN = 3  # checkpoints that a line names
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
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def results(self) -> Path:
        """The directory of the checkpoint's results, claims and failures."""
        return self.path.parent.parent / "evals" / self.path.name

    def load(self, corpus: Corpus, device: str) -> LoadedModel:
        """Its model. Raises InputError as `load_guarded` does."""
        from .model import load_guarded

        return load_guarded(self.path, corpus, device, self.autocast)


def open_checkpoint(path: Path, run: RunSpec) -> RunCheckpoint | None:
    """None where it is damaged or gone."""
    manifest = read_saved(path, verify=False, partial=True)
    return RunCheckpoint(path, manifest, run) if manifest is not None and WEIGHTS in manifest["files"] else None


@dataclass(frozen=True, eq=False)
class Pair:
    """One cell of the matrix: a checkpoint, a task, and the hash of the task's data as they are now (None: they are
    missing, and results are taken to be of the right ones)."""

    checkpoint: RunCheckpoint
    task: Task
    data_hash: str | None

    @property
    def name(self) -> str:
        return f"{self.checkpoint.name} {self.task.name}"

    @property
    def path(self) -> Path:
        return self.checkpoint.results / f"{self.task.name}.json"

    @property
    def failure(self) -> Path:
        return self.path.with_suffix(".failed")

    @cached_property
    def _decided_by(self) -> dict[str, Any]:
        """What decides a result beside its data, as JSON."""
        parts = {
            "schema": SCHEMA,
            "weights": self.checkpoint.weights_sha256,
            "task": self.task.name,
            "version": self.task.version,
            "settings": self.task.settings(),
            "autocast": self.checkpoint.autocast,
        }
        return dict(json.loads(json.dumps(parts)))

    def key(self, data_hash: str) -> str:
        """16 hex digits over everything that decides a result."""
        parts = self._decided_by | {"data": data_hash}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def stored(self) -> Result | None:
        """The current result, None where there is none."""
        result = self.result()
        return result if result and result.key == self.key(self.data_hash or result.data_hash) else None

    def result(self) -> Result | None:
        """The stored result, perhaps stale; None where there is none that can be read."""
        try:
            return read_result(self.path)
        except (OSError, ValueError):
            return None

    def _failure(self) -> dict[str, Any]:
        """{attempt, key, reason} of the last failure; empty where there is none."""
        try:
            return read_object(self.failure)
        except (OSError, ValueError):
            return {}

    def failed(self, attempt: str) -> str | None:
        """Why the pair failed in this attempt, None where it was not tried or did not fail."""
        failure = self._failure()
        is_this = (failure.get("attempt"), failure.get("key")) == (attempt, self.key(self.data_hash or ""))
        return str(failure.get("reason")) if is_this else None

    def stale(self) -> str:
        """Why there is no current result."""
        result, failure, now = self.result(), self._failure(), self._decided_by
        if failure and (result is None or failure.get("key") == self.key(self.data_hash or result.data_hash)):
            return f"it failed ({failure.get('reason')})"
        if result is None:
            return "it cannot be read, or was written by another version of this program"
        if result.weights_sha256 != now["weights"]:
            return "the checkpoint was written anew"
        if result.version != now["version"]:
            return f"it is of version {result.version} of the task, now {now['version']}"
        names = {**now["settings"], **result.settings}
        if changed := [name for name in names if now["settings"].get(name) != result.settings.get(name)]:
            return f"its settings changed ({', '.join(changed)})"
        return "its data changed" if self.data_hash not in (None, result.data_hash) else "it is of another precision"

    def store(self, values: dict[str, Any], **cost: Any) -> Result:
        """Write the result; `cost`: device, seconds, setup_seconds, forward_tokens."""
        manifest, data_hash = self.checkpoint.manifest, self.data_hash or ""
        result = Result(
            run_id=self.checkpoint.run_id,
            step=manifest["step"],
            n_tokens=manifest["n_tokens"],
            task=self.task.name,
            values=values,
            version=self.task.version,
            key=self.key(data_hash),
            settings=self.task.settings(),
            weights_sha256=self.checkpoint.weights_sha256,
            data_hash=data_hash,
            **cost,
        )
        self._write(self.path, result.to_dict())
        self.failure.unlink(missing_ok=True)
        return result

    def fail(self, attempt: str, reason: str) -> None:
        """Record that the pair cannot be evaluated, so that the other workers of this attempt do not try it."""
        self._write(self.failure, {"attempt": attempt, "key": self.key(self.data_hash or ""), "reason": reason})

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

    tasks: list[str]
    pairs: list[Pair] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    n_refused: int = 0

    @property
    def by_checkpoint(self) -> list[list[Pair]]:
        pairs: dict[Path, list[Pair]] = {}
        for pair in self.pairs:
            pairs.setdefault(pair.checkpoint.path, []).append(pair)
        return list(pairs.values())

    def add(self, checkpoints: Sequence[RunCheckpoint], tasks: Sequence[Task]) -> None:
        """Their pairs; a task whose data cannot be read is refused for all of them."""
        hashes: dict[Task, str] = {}
        for task in tasks:
            try:
                hashes[task] = task.data_hash()
            except (InputError, OSError) as error:
                self.refuse(task.name, str(error).removeprefix(f"{task.name}: "), len(checkpoints))
        for checkpoint in checkpoints:
            for task, data_hash in hashes.items():
                pair = Pair(checkpoint, task, data_hash)
                if checkpoint.left_out and pair.stored() is None:
                    self.refuse(pair.name, f"its weights {LEFT_OUT}")
                else:
                    self.pairs.append(pair)

    @property
    def reasons(self) -> dict[str, list[str]]:
        """What is refused, by why."""
        names: dict[str, list[str]] = {}
        for name, why in self.refused.items():
            names.setdefault(why, []).append(name)
        return names

    def refuse(self, name: str, why: str, n_pairs: int = 1) -> None:
        self.refused[name] = why
        self.n_refused += n_pairs


def matrix_of(
    runs_dir: Path,
    runs: Sequence[RunSpec],
    tasks: Sequence[Task],
    which: str = "all",
    share: Mapping[str, set[int]] | None = None,
) -> Matrix:
    """The matrix of the runs' checkpoints and `tasks`. which: "all", "last" (of each run) or "STEP,STEP";
    share: by run_id, only these steps (none: all).

    Reads manifests and data, loads no model. Raises InputError where `which` means nothing, or `which` or `share` names
    a step without a checkpoint.
    """
    matrix, checkpoints = Matrix([task.name for task in tasks]), []
    for run, path in _chosen(runs_dir, runs, which, share or {}):
        checkpoint = open_checkpoint(path, run)
        if checkpoint is None:  # it appeared whole, so it is not being written
            matrix.refuse(f"{run.run_id}/{path.name}", DAMAGED, len(tasks))
        else:
            checkpoints.append(checkpoint)
    matrix.add(checkpoints, tasks)
    return matrix


def _chosen(
    runs_dir: Path, runs: Sequence[RunSpec], which: str, share: Mapping[str, set[int]]
) -> list[tuple[RunSpec, Path]]:
    chosen = []
    for run in runs:
        paths = sorted((runs_dir / run.run_id / "checkpoints").glob("[0-9]*"))
        if unknown := share.get(run.run_id, set()) - {int(path.name) for path in paths}:
            raise InputError(f"--checkpoint {run.run_id}/{min(unknown)}: this run has no checkpoint of that step")
        if which == "last":
            paths = paths[-1:]
        chosen += [(run, path) for path in paths]
    if which not in ("all", "last"):
        words = [word.strip() for word in which.split(",")]
        if not all(word.isdecimal() for word in words):
            raise InputError(f"--checkpoints {which!r}: write all, last, or steps as 1000,2000")
        steps = set(map(int, words))
        if unknown := steps - {int(path.name) for _, path in chosen}:
            raise InputError(f"--checkpoints {which}: no run has a checkpoint of step {min(unknown)}")
        chosen = [(run, path) for run, path in chosen if int(path.name) in steps]
    return [(run, path) for run, path in chosen if not share.get(run.run_id) or int(path.name) in share[run.run_id]]


@dataclass
class CurrentResults:
    """results: the current ones, by run, step and task; left_out: {(task, why): [RUN/STEP]} of the others; unverified:
    {task: why its data could not be checked}."""

    results: list[Result] = field(default_factory=list)
    left_out: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    unverified: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """A line for each task and reason; none where nothing is left out."""
        lines = []
        for (task, why), names in self.left_out.items():
            lines.append(f"left out: {task} of {counted(len(names), 'checkpoint')}, {why}: {first_few(names, SHOWN)}")
        return lines + [f"not verified: {task}: {why}" for task, why in self.unverified.items()]

    def to_dict(self) -> dict[str, Any]:
        """What is left out or not verified, as plain data."""
        left_out = [{"task": task, "why": why, "checkpoints": names} for (task, why), names in self.left_out.items()]
        return {"left_out": left_out, "unverified": self.unverified}


def read_current(
    runs_dir: Path, runs: Sequence[RunSpec], tasks: Iterable[Task], others: Iterable[RunCheckpoint] = ()
) -> CurrentResults:
    """The current results among everything stored of the runs' checkpoints and of `others`. Results of tasks that are
    not in `tasks` are left out."""
    current, known = CurrentResults(), {task.name: task for task in tasks}
    hashes: dict[str, str | None] = {}
    refused: dict[str, str] = {}
    folders = [
        (
            f"{run.run_id}/{folder.name}",
            folder,
            open_checkpoint(runs_dir / run.run_id / "checkpoints" / folder.name, run),
        )
        for run in runs
        for folder in sorted((runs_dir / run.run_id / "evals").glob("[0-9]*"))
    ]
    for place, folder, checkpoint in [*folders, *((other.name, other.results, other) for other in others)]:
        for name in sorted({path.stem for path in folder.glob("*") if path.suffix in (".json", ".failed")}):
            if (task := known.get(name)) and name not in hashes and name not in refused:
                try:
                    hashes[name] = task.data_hash()
                except MissingData as error:
                    hashes[name] = None
                    current.unverified[name] = str(error).removeprefix(f"{name}: ")
                except (InputError, OSError) as error:
                    refused[name] = f"it cannot be evaluated ({error})"
            if task is None:
                why = "it is no task of the study"
            elif checkpoint is None:
                why = "its checkpoint is gone"
            elif name in refused:
                why = refused[name]
            else:
                pair = Pair(checkpoint, task, hashes[name])
                if result := pair.stored():
                    current.results.append(result)
                    continue
                why = pair.stale()
            current.left_out.setdefault((name, why), []).append(place)
    return current
