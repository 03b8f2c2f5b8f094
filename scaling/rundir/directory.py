"""A run's directory: where its files are, and readers that take only what is whole. Imports no torch.

run.json               what the run is (module prepare)      metrics.jsonl      one row a logged step
status.json            how far it came                     checkpoints/<step> weights, with manifest
state/<step>           training state, for resume         evals/<step>/<task>.json
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arch.errors import InputError, shown
from data.files import read_object, remove_unfinished, write_json

from ..study.run import RunSpec
from ..study.schedule import decay_start
from ..study.training import Training
from .lock import is_locked
from .metrics import Rows, checked_rows, read_row, record_of
from .saved import Checkpoint, Saved, read_saved

SCHEMA = 1
ENDED = ("done", "failed")  # states of a run that is trained no further
VALIDATION = "validation"  # the evaluation of the held-out loss, which every study asks for
DAMAGED = "damaged"  # a state beside those of status.json: what is on disk is not what the training left
OTHER_VERSION = "it was changed, or written by another version: remove the run directory"
OPTIONAL = ("reason", "last_checkpoint", "metrics")  # keys of status.json that can be null


class RunDir:
    """The directory of one run, by path; it need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.run_json = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.status_json = self.path / "status.json"
        self.log = self.path / "train.log"

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def study(self) -> Path:
        """The study's directory, which holds the corpus."""
        return self.path.parent.parent

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"{step:08d}"

    def state(self, step: int) -> Path:
        return self.path / "state" / f"{step:08d}"

    def evaluation(self, step: int, task: str = VALIDATION) -> Path:
        return self.path / "evals" / f"{step:08d}" / f"{task}.json"

    def record(self) -> dict[str, Any]:
        """run.json. Raises InputError where there is none, or it is damaged."""
        try:
            record = read_object(self.run_json)
        except FileNotFoundError:
            raise InputError(
                f"{self.run_json}: does not exist; prepare the run with `scaling train --prepare`"
            ) from None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.run_json}: cannot be read ({error}); remove the run directory") from None
        if record.get("schema") != SCHEMA or not _is_of_mappings(record):
            raise InputError(f"{self.run_json}: is no run of schema {SCHEMA}; remove the run directory")
        return record

    def spec(self) -> RunSpec:
        """The run, its architecture's plugin imported. Raises InputError where that cannot be, and where run.json is
        missing or damaged, or another version's."""
        record = self.record()
        try:
            run = RunSpec.model_validate(record["spec"])
            if not isinstance(run.training.n_tokens, int):  # but a study file's multiple of parameters
                raise InputError("training.n_tokens: is no number")
            now = run.spec_hash  # checks the model too
        except InputError as error:
            raise InputError(f"{self.run_json}: spec.{error}; remove the run directory") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            if key == "plugins" and first["type"] == "value_error":
                raise InputError(f"{self.run_json}: {first['ctx']['error']}") from None
            raise InputError(f"{self.run_json}: spec.{key}: {first['msg']}; {OTHER_VERSION}") from None
        if record.get("spec_hash") != now:
            raise InputError(
                f"{self.run_json}: spec_hash {record.get('spec_hash')} is not that of its spec, {now}; {OTHER_VERSION}"
            )
        return run

    def checked_rows(self, spec: dict[str, Any] | None = None) -> Rows:
        """The rows of metrics.jsonl that this run can have written, and what was left out. spec: of run.json,
        where the caller has it. Raises InputError where run.json is missing or damaged."""
        spec = self.record()["spec"] if spec is None else spec
        try:
            training = spec["training"]
            batch, tokens, most = training["batch_tokens"], training["n_tokens"], training.get("max_steps")
            n_steps = -(-tokens // batch)
            begins_after = decay_start(Training.model_validate(training)) if spec.get("trunk") else 0
            return checked_rows(self.metrics, batch, min(n_steps, most or n_steps), begins_after)
        except (KeyError, TypeError, AttributeError, ZeroDivisionError, ValidationError):
            raise InputError(f"{self.run_json}: spec.training is damaged; remove the run directory") from None

    def last_row(self) -> dict[str, Any] | None:
        """The last whole row, without reading the rest; None where there is none near the end."""
        try:
            with open(self.metrics, "rb") as handle:
                size = handle.seek(0, os.SEEK_END)
                handle.seek(max(0, size - 4096))
                lines = handle.read().split(b"\n")
        except FileNotFoundError:
            return None
        rows = (read_row(line)[0] for line in lines[-2::-1])  # what follows the last newline is torn
        return next((row for row in rows if row is not None), None)

    def status(self) -> dict[str, Any]:
        """status.json, or the state "waiting" where the run has not begun. The state is DAMAGED, with its reason, where
        status.json cannot be read, or the record of an ended run is another run's or of other rows than metrics.jsonl
        holds."""
        status: dict[str, Any] = {"state": "waiting", "step": 0, "n_tokens": 0, "reason": None, "last_checkpoint": None}
        try:
            status |= _checked_status(read_object(self.status_json))
        except FileNotFoundError:
            why = "status.json is missing" if self._left_something else ""
        except (OSError, ValueError) as error:
            why = f"status.json: {error}" if self._left_something else ""
        else:
            why = self._differs(status) if status["state"] in ENDED else ""
        return status | {"state": DAMAGED, "reason": why} if why else status

    @property
    def _left_something(self) -> bool:
        """Whether rows or a checkpoint lie there, which come after the first status.json."""
        return self.last_row() is not None or any((self.path / "checkpoints").glob("[0-9]*"))

    def write_status(self, state: str, step: int, n_tokens: int, reason: str | None, checkpoint: str | None) -> None:
        """Replace status.json; of an ended run it names the run and the rows of metrics.jsonl, which must all be on
        disk."""
        status = {"state": state, "step": step, "n_tokens": n_tokens, "reason": reason, "last_checkpoint": checkpoint}
        if state in ENDED:
            status |= {"run_id": self.path.name, "metrics": record_of(self.metrics)}
        write_json(self.status_json, status, kind="status")

    def _differs(self, status: dict[str, Any]) -> str:
        """How name and metrics.jsonl differ from what the status of the ended run says; "" where they do not."""
        if (name := status.get("run_id")) != self.path.name:
            return f"status.json is that of {shown(name)}"
        recorded, actual = status["metrics"], _record_at(self.metrics, *_signature(self.metrics))
        if actual == recorded:
            return ""
        rows = (recorded or {}).get("rows")
        if isinstance(rows, int) and actual["rows"] != rows:
            return f"metrics.jsonl holds {actual['rows']:,} of {rows:,} rows"
        return "metrics.jsonl is not as the run's training left it"

    @property
    def has_begun(self) -> bool:
        """Whether anything was trained of the run."""
        return self.status()["state"] != "waiting" or self.last_row() is not None

    def checkpoints(self, verify: bool = True, partial: bool = False) -> list[Checkpoint]:
        """Checkpoints with a valid manifest, by step; `verify=False` compares sizes but computes no checksums;
        `partial`: those too whose weights were left out by a bundle."""
        return [Checkpoint(*saved) for saved in _whole(self.path / "checkpoints", verify, partial)]

    @property
    def weights_elsewhere(self) -> str:
        """Why the newest checkpoint's weights are not there, where a bundle left them out; else ""."""
        return next((checkpoint.left_out for checkpoint in self.checkpoints(verify=False, partial=True)[-1:]), "")

    def states(self, verify: bool = True) -> list[Saved]:
        """Training states with a valid manifest, by step."""
        return [Saved(*saved) for saved in _whole(self.path / "state", verify)]


def _is_of_mappings(record: dict[str, Any]) -> bool:
    """Whether the parts of run.json are mappings, as far as they are there; a spec is."""
    spec = record.get("spec")
    parts = [spec, *(record.get(name, {}) for name in ("versions", "cost", "model"))]
    parts += [spec.get(name, {}) for name in ("model", "corpus", "training")] if isinstance(spec, dict) else []
    return all(isinstance(part, dict) for part in parts)


def _checked_status(status: dict[str, Any]) -> dict[str, Any]:
    """A status as it was written. Raises ValueError for values of another type."""
    kinds: dict[str, Any] = {"step": int, "n_tokens": int, "reason": str | None, "last_checkpoint": str | None}
    kinds["metrics"] = dict | None
    if status.get("state") not in ("waiting", "running", *ENDED):
        raise ValueError(f"its state is {shown(status.get('state'))}")
    for key, kind in kinds.items():
        if not isinstance(status.setdefault(key, None if key in OPTIONAL else 0), kind):
            raise ValueError(f"its {key} is {shown(status[key])}")
    return status


def _signature(path: Path) -> tuple[int, ...]:
    """What changes with a file's content."""
    with suppress(FileNotFoundError):
        stat = path.stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    return ()


@lru_cache(maxsize=4096)
def _record_at(path: Path, *signature: int) -> dict[str, Any]:
    return record_of(path)


def _whole(folder: Path, verify: bool, partial: bool = False) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The directories of steps that have a valid manifest, of that step, with it, by step."""
    if folder.is_dir():
        for path in sorted(path for path in folder.iterdir() if path.name.isdigit()):
            manifest = read_saved(path, verify, partial)
            if manifest is not None:
                yield path, manifest


def clean_unfinished(study: Path) -> None:
    """Remove what a kill left unfinished below a study's directory; runs that a process is training are left alone."""
    remove_unfinished(study, *study.glob("results*"))
    for run in (study / "runs").glob("*"):
        if not is_locked(run):
            remove_unfinished(run, below=True)
