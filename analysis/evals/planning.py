"""What evaluations read and how long they take, known before there is a model: examples, forward tokens, impossible
settings. Imports no torch. A task that can say so has `planned` and `check`; a task from another package may lack them.

A task's seconds are proportional to the forward tokens that it reads and to what a token costs its model (a third of a
training step's), so one checkpoint's result forecasts all others. Without any result, flops.pace says what is expected
of the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from arch.amounts import counted
from arch.errors import InputError
from data.files import MANIFEST, read_manifest
from data.manifest import parts_of
from flops.hardware import Device
from flops.pace import pace
from scaling.study.run import RunSpec

from .results import read_result
from .task import MissingData

if TYPE_CHECKING:
    from arch.config import ModelConfig
    from data.mixture import Part

    from .task import Task, TaskContext


BYTES_PER_TOKEN = {"bytes": 1.0}  # others: as the study's corpus has it
ASSUMED_BYTES_PER_TOKEN = 4.0  # before there is a corpus


@dataclass(frozen=True)
class Reader:
    """What is known of a run's model before training. context_length: of the training, in tokens; bytes_per_token:
    UTF-8 bytes of text; exact: whether that is the same for every text; held_out: the parts of the corpus' validation
    split, None before there is a corpus; autocast: read under bf16 autocast on a GPU; tokenizer: its name; corpus: the
    study's corpus directory, None before it is made."""

    config: ModelConfig
    context_length: int
    bytes_per_token: float
    exact: bool
    held_out: tuple[Part, ...] | None
    autocast: bool
    tokenizer: str = "bytes"
    corpus: Path | None = None

    def tokens_of(self, n_bytes: float) -> int:
        """The number of tokens of a text of `n_bytes`; an estimate unless `exact`."""
        return round(n_bytes / self.bytes_per_token)


@dataclass(frozen=True)
class Planned:
    """What one evaluation of one checkpoint reads. tokens: that pass through the model; items: windows, cells or
    documents, as `unit` says; estimate: why `tokens` is an estimate, "" where it is exact."""

    tokens: int
    items: int
    unit: str
    estimate: str = ""


@runtime_checkable
class Plannable(Protocol):
    """A task that knows in advance what it will read."""

    def planned(self, reader: Reader) -> Planned:
        """What one evaluation of such a model reads. Raises InputError where data are missing."""

    def check(self, reader: Reader) -> None:
        """Raise InputError where settings and sizes of data do not suit such a model, MissingData where data are
        missing that decide it. Loads no torch."""


def readers(corpus: Path, tokenizer: str, runs: Iterable[RunSpec]) -> dict[str, Reader]:
    """The readers by run_id. corpus: the study's corpus directory, which may be missing; tokenizer: its name."""
    manifest = read_manifest(corpus, verify=False, partial=True) or {}
    splits: Mapping[str, Mapping[str, int]] = manifest.get("splits", {})
    held_out = tuple(parts_of(manifest, "validation")) if splits else None
    exact = tokenizer in BYTES_PER_TOKEN
    per_token = BYTES_PER_TOKEN.get(tokenizer, ASSUMED_BYTES_PER_TOKEN)
    if splits and not exact:
        n_tokens = sum(split["tokens"] for split in splits.values())
        per_token = sum(split["bytes"] for split in splits.values()) / max(1, n_tokens)
    return {
        run.run_id: Reader(
            *(run.config, run.context_length, per_token, exact, held_out, run.training.precision == "bf16"),
            *(tokenizer, corpus if splits else None),
        )
        for run in runs
    }


def planned(tasks: Iterable[Task], reader: Reader) -> dict[str, Planned]:
    """By task name, without tasks that cannot say so. Raises InputError where a task's data are missing."""
    return {task.name: task.planned(reader) for task in tasks if isinstance(task, Plannable)}


def by_tokenizer(reader: Reader) -> str:
    """`Planned.estimate` of a count that is exact but for the tokenizer."""
    return "" if reader.exact else f"at {reader.bytes_per_token:.2f} bytes a token"


def check_settings(tasks: Iterable[Task], models: Iterable[Reader]) -> None:
    """Raise InputError where a task cannot evaluate some model, as far as that is known without its data."""
    different = list({(reader.config, reader.context_length, reader.held_out): reader for reader in models}.values())
    for task in tasks:
        if isinstance(task, Plannable):
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


ROWS = 16  # of a forward pass, where nothing was measured


@dataclass(frozen=True)
class Forecast:
    """How long one task takes on the checkpoints that lack it. examples: of each checkpoint, as `kind` says;
    forward_tokens: of all checkpoints together, None where the task does not know; estimate: why they are an estimate,
    "" where they are exact; seconds: of one worker, None where nothing is known; basis: what the seconds follow
    from."""

    task: str
    checkpoints: int
    examples: int | None
    kind: str
    forward_tokens: int | None
    estimate: str
    seconds: float | None
    basis: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class MeasuredPace:
    """What a stored result took. factor: its seconds for each forward token over the expected ones; setup_seconds:
    before it, for model and data."""

    task: str
    factor: float
    setup_seconds: float


def measured_paces(runs_dir: Path, runs: Sequence[RunSpec], on: Device, device: str) -> list[MeasuredPace]:
    """The paces of all stored results that were read on `device` ("cpu" or "cuda"), also of those for other data or
    settings."""
    paces = []
    for run in runs:
        for path in sorted((runs_dir / run.run_id / "evals").glob("[0-9]*/*.json")):
            try:
                result = read_result(path)
            except (OSError, ValueError):
                continue
            if result.forward_tokens and result.seconds and result.device.startswith(device):
                factor = result.seconds / result.forward_tokens / token_seconds(run, on)
                paces.append(MeasuredPace(result.task, factor, result.setup_seconds))
    return paces


def token_seconds(run: RunSpec, device: Device) -> float:
    """The expected seconds of a token's forward pass, in batches of ROWS rows: a third of a training step's."""
    batch = ROWS * run.context_length
    units = run.training.threads if device.unit == "core" else 1
    return pace(run.config, batch, device, units).step_seconds / 3 / batch


def forecast_task(
    task: str, missing: Iterable[tuple[RunSpec, Planned | None]], known: Sequence[MeasuredPace], device: Device
) -> Forecast:
    """How long `task` takes. missing: the run of each checkpoint that lacks the task, and what the task reads there
    (None: it does not know)."""
    pairs = list(missing)
    plans = [plan for _, plan in pairs if plan is not None]
    factors = [pace.factor for pace in known if pace.task == task]
    others = [pace.factor for pace in known]
    if factors:
        factor, basis = median(factors), f"measured: {counted(len(factors), 'result')} of this task"
    elif others:
        factor, basis = median(others), f"measured: {counted(len(others), 'result')} of other tasks"
    else:
        factor, basis = 1.0, f"assumed: {device.name}, a third of a training step for each token and no other time"
    if len(plans) < len(pairs):
        return Forecast(task, len(pairs), None, "", None, "the task cannot tell", None, "")
    seconds = sum(factor * token_seconds(run, device) * plan.tokens for run, plan in pairs if plan is not None)
    seconds += len(pairs) * (median(pace.setup_seconds for pace in known) if known else 0.0)
    return Forecast(
        task,
        len(pairs),
        max((plan.items for plan in plans), default=0),
        plans[0].unit if plans else "",
        sum(plan.tokens for plan in plans),
        plans[0].estimate if plans else "",
        seconds,
        basis,
    )
