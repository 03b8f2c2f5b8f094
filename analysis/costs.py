"""What a study's training was to take and what it took: minutes of its devices, FLOP and their share of the peak, by
run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pandas as pd

from arch.errors import InputError
from flops.hardware import DEVICES, Device
from flops.pace import start_of
from scaling.study.cost import pace_of, processes_on
from scaling.study.run import RunSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scaling.study.spec import StudySpec

RAN_ON = re.compile(r"(\d+) x (.+)")


@dataclass(frozen=True)
class Cost:
    """Of one run: `tokens` that it trained and their FLOP, a branch's without its trunk's; minutes are of all `units`
    of its device together, GPUs or cores; mfu: of GPUs; None: not known."""

    run_id: str
    arch: str
    size: str
    seed: int
    state: str
    tokens: int
    flops_exact: float
    device: str
    units: int | None
    planned_minutes: float | None
    spent_minutes: float | None
    tokens_per_s: float | None
    mfu_exact: float | None
    is_forecast: bool = False


def study_costs(
    study: StudySpec, runs: Sequence[RunSpec], table: pd.DataFrame, forecast: pd.DataFrame | None
) -> list[Cost]:
    """`costs_of` the study's runs, then of those of its forecast that have begun, whose table is `forecast`."""
    costs = costs_of(runs, table)
    return costs if forecast is None else costs + costs_of(study.forecast_runs(), forecast)


def costs_of(runs: Sequence[RunSpec], table: pd.DataFrame) -> list[Cost]:
    """Of the study's own runs, in their order; `table`: the table of runs. planned: the steps of flops.pace on the
    device that the run was trained on, with its start; spent: its own clock, over all processes."""
    rows: dict[str, dict[Any, Any]] = {str(row["run_id"]): row for row in table.to_dict("records")}
    return [_cost(run, rows[run.run_id]) for run in runs if run.run_id in rows]


def costs_table(costs: Iterable[Cost]) -> pd.DataFrame:
    columns = [field.name for field in fields(Cost) if field.name != "is_forecast"]
    return pd.DataFrame([[getattr(cost, name) for name in columns] for cost in costs], columns=columns)


def _cost(run: RunSpec, row: dict[Any, Any]) -> Cost:
    before = run.n_tokens - run.trained_tokens  # of a branch: its trunk's
    tokens = max(0, int(row["n_tokens"]) - before)
    per_token = _number(row["flops_per_token_exact"]) or 0.0
    seconds, tokens_per_s = _number(row["time_s"]), _number(row["tokens_per_s"])
    processes, device = _ran_on(row["hardware"])
    units = planned = spent = mfu = None
    if device is not None:
        units = processes * (1 if device.unit == "GPU" else run.training.threads)
        planned = _planned(run, device, units)
    if seconds is not None and units is not None:
        spent = seconds * units / 60
    if device is not None and device.unit == "GPU" and seconds and units:
        mfu = tokens * per_token / (seconds * units * device.peak_flops_per_s)
    state, hardware = str(row["state"]), row["hardware"]
    return Cost(
        run_id=run.run_id,
        arch=run.arch,
        size=run.size,
        seed=run.seed,
        state=state,
        tokens=tokens,
        flops_exact=tokens * per_token,
        device=hardware if isinstance(hardware, str) else "",
        units=units,
        planned_minutes=planned,
        spent_minutes=spent,
        tokens_per_s=tokens_per_s,
        mfu_exact=mfu,
        is_forecast=run.is_forecast,
    )


def _planned(run: RunSpec, device: Device, units: int) -> float | None:
    """Minutes of all units together; None where the costs of a plugin's architecture do not tell."""
    try:
        step = pace_of(run, device, units).step_seconds
    except InputError:
        return None
    return (run.trained_steps * step + start_of(device, processes_on(run, device, units))) * units / 60


def _ran_on(hardware: object) -> tuple[int, Device | None]:
    """Processes and device of a run, as the table of runs names them; no device where it ran on several kinds, was
    moved, or on none that flops.hardware knows. A processor without a GPU counts as cores."""
    match = RAN_ON.fullmatch(hardware) if isinstance(hardware, str) else None
    if match is None or re.search(r", \d+ x ", match[2]):
        return 0, None
    name = match[2].lower()
    kind = next((key for key in DEVICES if key in name), None)
    if kind is None and not re.search(r"nvidia|tesla|geforce|rtx|amd instinct", name):
        kind = "cpu"
    return int(match[1]), DEVICES[kind] if kind else None


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)
