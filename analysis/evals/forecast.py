"""How long evaluations will take: by what this study's own took, else by the pace that flops.pace expects of a device.

A task's seconds go with the forward tokens that it reads and with what a token costs its model (a third of a training
step's), so one checkpoint's result forecasts all others. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from arch.amounts import counted
from data.files import read_json
from flops.hardware import Device
from flops.pace import pace
from scaling.study.run import RunSpec

from .planning import Planned

ROWS = 16  # of a forward pass, where nothing was measured


@dataclass(frozen=True)
class Forecast:
    """Of one task and the checkpoints that lack it. examples: of each checkpoint's evaluation, of a kind;
    forward_tokens: of all together, None where the task cannot tell; estimate: in what way they are no exact count, ""
    where they are one; seconds: of one worker, None where nothing is known; basis: what they follow from."""

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
class Timed:
    """What a stored result took: seconds of the task for each forward token, over those expected; and before it."""

    task: str
    factor: float
    setup_seconds: float


def timed(runs_dir: Path, runs: Sequence[RunSpec], on: Device, device: str) -> list[Timed]:
    """Of all that is stored, also for other data or settings, and was read on `device` ("cpu" or "cuda")."""
    found = []
    for run in runs:
        for result in _stored(runs_dir / run.run_id / "evals"):
            took, tokens, before = (result.get(k) for k in ("seconds", "forward_tokens", "setup_seconds"))
            if tokens and took and str(result.get("device")).startswith(device):
                found.append(Timed(str(result["task"]), took / tokens / token_seconds(run, on), before or 0.0))
    return found


def _stored(folder: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(folder.glob("[0-9]*/*.json")):
        try:
            result = read_json(path)
        except (OSError, ValueError):
            continue
        if isinstance(result, dict) and "task" in result:
            yield result


def token_seconds(run: RunSpec, device: Device) -> float:
    """Expected for one token's forward pass, in batches of ROWS rows: a third of a training step's."""
    batch = ROWS * run.context_length
    units = run.training.threads if device.unit == "core" else 1
    return pace(run.config, batch, device, units).step_seconds / 3 / batch


def forecast(
    task: str, missing: Iterable[tuple[RunSpec, Planned | None]], known: Sequence[Timed], device: Device
) -> Forecast:
    """missing: the run of each checkpoint that lacks the task, and what the task reads of it (None: it cannot tell)."""
    pairs = list(missing)
    plans = [one for _, one in pairs if one is not None]
    own = [one.factor for one in known if one.task == task]
    others = [one.factor for one in known]
    if own:
        factor, basis = median(own), f"measured: {counted(len(own), 'result')} of this task"
    elif others:
        factor, basis = median(others), f"measured: {counted(len(others), 'result')} of other tasks"
    else:
        factor, basis = 1.0, f"assumed: {device.name}, a third of a training step for each token and no other time"
    if len(plans) < len(pairs):
        return Forecast(task, len(pairs), None, "", None, "the task cannot tell", None, "")
    seconds = sum(factor * token_seconds(run, device) * one.tokens for run, one in pairs if one is not None)
    seconds += len(pairs) * (median(one.setup_seconds for one in known) if known else 0.0)
    return Forecast(
        task,
        len(pairs),
        max((one.items for one in plans), default=0),
        plans[0].unit if plans else "",
        sum(one.tokens for one in plans),
        plans[0].estimate if plans else "",
        seconds,
        basis,
    )
