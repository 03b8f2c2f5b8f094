"""What evaluations read and how long they take, known before there is a model. Imports no torch.

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
from typing import Any

from arch.amounts import counted
from arch.errors import InputError
from data.files import MANIFEST, read_manifest
from data.manifest import parts_of
from flops.hardware import Device
from flops.pace import pace
from scaling.study.run import RunSpec

from .results import read_result
from .task import MissingData, Plan, Reader, Task, TaskContext

ASSUMED_BYTES_PER_TOKEN = 4.0  # of text, before there is a corpus
ROWS = 16  # of a forward pass, where nothing was measured


def readers(corpus: Path, tokenizer: str, runs: Iterable[RunSpec]) -> dict[str, Reader]:
    """The readers by run_id. corpus: the study's corpus directory, which may be missing; tokenizer: its name."""
    manifest = read_manifest(corpus, verify=False, partial=True) or {}
    splits: Mapping[str, Mapping[str, int]] = manifest.get("splits", {})
    held_out, exact = tuple(parts_of(manifest, "validation")) if splits else None, tokenizer == "bytes"
    per_token = 1.0 if exact else ASSUMED_BYTES_PER_TOKEN
    if splits and not exact:
        n_tokens = sum(split["tokens"] for split in splits.values())
        per_token = sum(split["bytes"] for split in splits.values()) / max(1, n_tokens)
    return {run.run_id: Reader(run.context_length, per_token, exact, held_out) for run in runs}


def check_settings(tasks: Iterable[Task], models: Iterable[Reader]) -> None:
    """Raise InputError where a task cannot evaluate some model, as far as that is known without its data."""
    different = set(models)
    for task in tasks:
        for reader in different:
            with suppress(MissingData):
                task.check(reader)


def plans_of(tasks: Iterable[Task], models: Mapping[str, Reader]) -> dict[str, dict[str, Plan]]:
    """{run_id: {task: what one evaluation reads}}, without tasks that do not know. Raises InputError where data are
    missing."""
    tasks, by_reader = list(tasks), dict[Reader, dict[str, Plan]]()
    for reader in set(models.values()):  # data are read once for all runs that read alike
        plans = {task.name: task.plan(reader) for task in tasks}
        by_reader[reader] = {name: plan for name, plan in plans.items() if plan is not None}
    return {run_id: by_reader[reader] for run_id, reader in models.items()}


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
    task: str, missing: Iterable[tuple[RunSpec, Plan | None]], known: Sequence[MeasuredPace], device: Device
) -> Forecast:
    """How long `task` takes. missing: the run of each checkpoint that lacks the task, and what the task reads there
    (None: it does not know)."""
    pairs = list(missing)
    plans = [(run, plan) for run, plan in pairs if plan is not None]
    if len(plans) < len(pairs) or not pairs:
        return Forecast(task, len(pairs), None, "", None, "the task cannot tell", None, "")
    factors = [pace.factor for pace in known if pace.task == task]
    if factors:
        basis = f"measured: {counted(len(factors), 'result')} of this task"
    elif factors := [pace.factor for pace in known]:
        basis = f"measured: {counted(len(factors), 'result')} of other tasks"
    else:
        factors = [1.0]
        basis = f"assumed: {device.name}, a third of a training step for each token and no other time"
    seconds = sum(median(factors) * token_seconds(run, device) * plan.tokens for run, plan in plans)
    seconds += len(plans) * (median(pace.setup_seconds for pace in known) if known else 0.0)
    return Forecast(
        task=task,
        checkpoints=len(plans),
        examples=max(plan.items for _, plan in plans),
        kind=plans[0][1].unit,
        forward_tokens=sum(plan.tokens for _, plan in plans),
        estimate=plans[0][1].estimate,
        seconds=seconds,
        basis=basis,
    )
