"""What evaluations read and how long they take, known before there is a model. Imports no torch.

A task's seconds are proportional to the forward tokens that it reads and to what a token costs its model (a third of a
training step's), so one checkpoint's result forecasts all others. Without any result, flops.pace says what is expected
of the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from arch.errors import InputError
from data.files import MANIFEST, read_manifest
from data.manifest import parts_of
from data.tokenizer import get_tokenizer, is_at_hand
from flops.hardware import Device
from flops.pace import pace
from scaling.study.run import RunSpec

from .results import read_result
from .task import MissingData, Reader, Task, TaskContext

ASSUMED_BYTES_PER_TOKEN = 4.0  # of text, before there is a corpus
ROWS = 16  # of a forward pass, where nothing was measured


def readers(corpus: Path, tokenizer: str, runs: Iterable[RunSpec]) -> dict[str, Reader]:
    """The readers by run_id. corpus: the study's corpus directory, which may be missing; tokenizer: its name."""
    manifest = read_manifest(corpus, verify=False, partial=True) or {}
    splits: Mapping[str, Mapping[str, int]] = manifest.get("splits", {})
    held_out = tuple(parts_of(manifest, "validation")) if splits else None
    folder = corpus if splits else None
    opened = get_tokenizer(tokenizer, folder) if is_at_hand(tokenizer, folder) else None
    per_token = 1.0 if tokenizer == "bytes" else ASSUMED_BYTES_PER_TOKEN
    if splits and tokenizer != "bytes":
        n_tokens = sum(split["tokens"] for split in splits.values())
        per_token = sum(split["bytes"] for split in splits.values()) / max(1, n_tokens)
    return {run.run_id: Reader(run.context_length, opened, per_token, held_out) for run in runs}


def check_settings(tasks: Iterable[Task], models: Iterable[Reader]) -> None:
    """Raise InputError where a task cannot evaluate some model, as far as that is known without its data."""
    different = set(models)
    for task in tasks:
        for reader in different:
            with suppress(MissingData):
                task.check(reader)


def check_data(tasks: Iterable[Task], context: TaskContext) -> None:
    """Raise InputError where a task's data do not have the form that it reads, MissingData where they are missing. A
    corpus that is not made yet is not checked."""
    for task in tasks:
        try:
            task.data_hash()
        except InputError as error:
            if (context.corpus / MANIFEST).exists() or str(context.corpus) not in str(error):
                raise
        except OSError as error:
            raise InputError(f"{task.name}: {error.filename}: cannot be read ({error.strerror})") from None


def forward_tokens(
    tasks: Sequence[Task], models: Mapping[str, Reader], data_later: bool = False
) -> dict[str, dict[str, int]]:
    """{run_id: {task: tokens of one evaluation}}, without tasks that do not know. Raises InputError where data are
    missing; data_later: their tasks do not know."""

    def tokens(task: Task, reader: Reader) -> int | None:
        try:
            return task.forward_tokens(reader)
        except MissingData:
            if data_later:
                return None
            raise

    by_reader = {  # data are read once for all runs that read alike
        reader: {task.name: n for task in tasks if (n := tokens(task, reader)) is not None}
        for reader in set(models.values())
    }
    return {run_id: by_reader[reader] for run_id, reader in models.items()}


@dataclass(frozen=True)
class Pace:
    """How fast evaluations are on a device. factors: by task, of each stored result its seconds for a forward token
    over the expected ones; setup_seconds: before each of them, for model and data."""

    device: Device
    factors: Mapping[str, Sequence[float]]
    setup_seconds: Sequence[float]

    def seconds(self, task: str, run: RunSpec, n_tokens: int) -> float:
        """Of one evaluation: at the median pace of the task's results, else of all results, else at the expected
        one."""
        every = [factor for factors in self.factors.values() for factor in factors]
        factor = median(self.factors.get(task) or every or [1.0])
        setup = median(self.setup_seconds) if self.setup_seconds else 0.0
        return factor * token_seconds(run, self.device) * n_tokens + setup

    @property
    def basis(self) -> str:
        return "measured pace" if self.factors else f"assumed pace of {self.device.name}"


def token_seconds(run: RunSpec, device: Device) -> float:
    """The expected seconds of a token's forward pass, in batches of ROWS rows: a third of a training step's."""
    batch = ROWS * run.context_length
    units = run.training.threads if device.unit == "core" else 1
    return pace(run.config, batch, device, units).step_seconds / 3 / batch


def measured_pace(runs_dir: Path, runs: Sequence[RunSpec], device: Device, kind: str) -> Pace:
    """Of all stored results that were read on devices of a kind ("cpu" or "cuda"), also of those for other data or
    settings."""
    factors: dict[str, list[float]] = {}
    setup = []
    for run in runs:
        for path in sorted((runs_dir / run.run_id / "evals").glob("[0-9]*/*.json")):
            with suppress(OSError, ValueError):
                result = read_result(path)
                if result.forward_tokens and result.seconds and result.device.startswith(kind):
                    of_token = result.seconds / result.forward_tokens
                    factors.setdefault(result.task, []).append(of_token / token_seconds(run, device))
                    setup.append(result.setup_seconds)
    return Pace(device, factors, setup)
