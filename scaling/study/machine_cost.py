"""What a study costs on a machine: FLOP, time, memory and disk of its runs. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arch.amounts import counted, counted_of
from flops import checkpoint_bytes, count_params, state_bytes, train_flops_per_token
from flops.hardware import FILLED, Device
from flops.pace import START_S, makespan, start_of
from flops.quantity import PF_DAY
from flops.tables import duration

from .axes import label_of
from .cost import memory_bytes, merged_files, pace_of, processes_on, states_kept

if TYPE_CHECKING:
    from .run import RunSpec
    from .spec import StudySpec

COUNTED = ("n_tokens", "n_steps", "n_checkpoints", "n_merged")
SUMMED = ("flops", "device_hours", "wall_seconds", "checkpoint_bytes", "state_bytes", "merged_bytes", "merging_bytes")


def cost(
    spec: StudySpec, runs: Sequence[RunSpec], device: Device, mfu: float | None, gpus: int, convention: str
) -> dict[str, Any]:
    """{"study", "device", .., "runs": [row], "totals", "warnings"}; the `gpus` devices (cpu: cores) work on
    `runs_at_once` runs, one where the study does not name more, each on an equal share of them.

    n_tokens, n_steps, flops: what the run itself trains, of a branch its decay; FLOP under `convention`. wall_seconds:
    the run's start and all steps at the pace of flops.pace, `pace` saying how that is known; device_hours:
    those of the run's devices; memory_bytes: on each device (None where the architecture's costs have none);
    checkpoint_bytes: all checkpoints; state_bytes: the states kept for resuming and for branches; n_merged,
    merged_bytes, merging_bytes: of merged points (study.cost.merged_files). Totals are sums, but
    wall_seconds: from the start of the first process until the last run ends. Raises InputError where the convention
    does not cover an architecture.
    """
    at_once = min(spec.jobs.parallel or 1, gpus)
    units = {run.run_id: _units(run, device, gpus // at_once, spec.jobs.processes) for run in runs}
    rows = [run_cost(run, device, mfu, units[run.run_id], convention) for run in runs]
    totals: dict[str, Any] = {"n_runs": len(rows)} | {key: sum(row[key] for row in rows) for key in COUNTED}
    totals |= {key: math.fsum(row[key] for row in rows) for key in SUMMED}
    start_times = [start_of(device, processes_on(run, device, units[run.run_id])) for run in runs]
    first = START_S[device.unit] - min(start_times) if start_times else 0.0
    totals["wall_seconds"] = first + makespan((row["wall_seconds"] for row in rows), at_once)
    totals["pf_days"] = totals["flops"] / PF_DAY
    return {
        "study": spec.name,
        "device": device.name,
        "device_unit": device.unit,
        "peak_flops_per_s": device.peak_flops_per_s,
        "peak_precision": device.precision,
        "peak_source": device.source,
        "mfu": mfu,
        "gpus": gpus,
        "runs_at_once": at_once,
        "convention": convention,
        "runs": rows,
        "totals": totals,
        "warnings": [*_uneven(runs, device, gpus // at_once), *_idle(rows, device), *_too_large(rows, device)],
    }


def _units(run: RunSpec, device: Device, share: int, processes: int) -> int:
    """Devices at work on the run; of cores no more than its processes have threads for."""
    return share if device.unit == "GPU" else min(share, processes * run.training.threads)


def run_cost(run: RunSpec, device: Device, mfu: float | None, units: int, convention: str) -> dict[str, Any]:
    """One run's row, of `units` devices."""
    cfg, training = run.config, run.training
    flops = train_flops_per_token(cfg, convention) * float(run.trained_tokens)
    step = pace_of(run, device, units, mfu, convention)
    seconds = start_of(device, processes_on(run, device, units)) + run.trained_steps * step.step_seconds
    checkpoints = len(run.checkpoint_steps)
    return {
        "run_id": run.run_id,
        "arch": run.arch,
        "size": run.size,
        "seed": run.seed,
        "point": label_of(run.point),
        "n_params_non_embedding": count_params(cfg).non_embedding,
        "n_tokens": run.trained_tokens,
        "n_steps": run.trained_steps,
        "flops": flops,
        "devices": units,
        "device_hours": seconds * units / 3600,
        "wall_seconds": seconds,
        "pace": step.basis,
        "bound_by": step.bound_by,
        "memory_bytes": memory_bytes(run, processes_on(run, device, units), device.unit == "GPU"),
        "n_checkpoints": checkpoints,
        "checkpoint_bytes": checkpoints * checkpoint_bytes(cfg, training.checkpoint_dtype),
        "state_bytes": states_kept(run) * state_bytes(cfg, training.zero_stage),
    } | merged_files(run)


def _uneven(runs: Sequence[RunSpec], device: Device, gpus: int) -> list[str]:
    """A line for each size of batch that does not split over the GPUs, naming the numbers around that it does."""
    lines: list[str] = []
    if device.unit != "GPU":
        return lines
    for rows in sorted({run.training.batch_tokens // run.context_length for run in runs}):
        if rows % gpus:
            whole_shares = [n for n in range(1, rows + 1) if rows % n == 0]
            fewer = [str(n) for n in whole_shares if n < gpus][-1:]
            more = [str(n) for n in whole_shares if n > gpus][:1]
            lines.append(
                f"a batch of {counted(rows, 'sequence')} does not split over {gpus:,} {device.unit}s: "
                f"{' or '.join(fewer + more)} "
                f"would do"
            )
    return lines


def _idle(rows: Sequence[dict[str, Any]], device: Device) -> list[str]:
    """A line where several GPUs wait for one run's host."""
    bound = [row for row in rows if row["bound_by"] == "host" and row["devices"] > 1]
    if device.unit != "GPU" or not bound:
        return []
    return [
        f"{counted_of(len(bound), len(rows), 'run', 'is', 'are')} bound by the host, which more GPUs for one run do "
        f"not help: several runs at once do (jobs.parallel)"
    ]


def _too_large(rows: Sequence[dict[str, Any]], device: Device) -> list[str]:
    if device.memory_bytes is None:
        return []
    room = FILLED * device.memory_bytes
    large = [r for r in rows if r["memory_bytes"] is not None and r["memory_bytes"] > room]
    if not large:
        return []
    most = max(large, key=lambda row: float(row["memory_bytes"]))
    return [
        f"{counted_of(len(large), len(rows), 'run', 'needs', 'need')} more than {FILLED:.0%} of the "
        f"{device.memory_bytes / 1e9:,.0f} GB of {device.name}, up to {most['memory_bytes'] / 1e9:,.0f} GB "
        f"({most['run_id']}): lower "
        f"training.micro_batch_tokens, set jobs.recompute, or take more"
    ]


def on_device(spec: StudySpec, runs: Sequence[RunSpec], device: Device) -> dict[str, Any]:
    """{"on_device": {"device", "seconds", "text"}}: the wall time of `cost` on one of them, for `scaling plan`."""
    seconds = cost(spec, runs, device, None, 1, "exact")["totals"]["wall_seconds"]
    text = (
        f"on one {device.name}, one run after the other, about {duration(seconds)} (flops study says how it is known)"
    )
    return {"on_device": {"device": device.name, "seconds": seconds, "text": text}}
