"""`flops study`: what a study costs on a machine, before anything runs. Imports no torch.

This module adds the command to those of the flops package, which may not know of studies, and is the console script.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted, counted_of
from flops import checkpoint_bytes, count_params, state_bytes, train_flops_per_token
from flops.cli import AsJson, Convention, Form, app, convention_named
from flops.console import run_app
from flops.hardware import DEVICES, FILLED, Device, device_of
from flops.pace import MFU, NEXT_S, START_S, makespan, start_of
from flops.quantity import MOST_GPUS, PF_DAY, quantity, whole
from flops.tables import Column, Table, digits, duration, emit, format_of, short, si, warn

from ..study.axes import label_of
from ..study.cost import memory_bytes, merged_files, merged_note, pace_of, processes_on, states_kept

if TYPE_CHECKING:
    from ..study.run import RunSpec
    from ..study.spec import StudySpec

COUNTED = ("n_tokens", "n_steps", "n_checkpoints", "n_merged")
SUMMED = ("flops", "device_hours", "wall_seconds", "checkpoint_bytes", "state_bytes", "merged_bytes", "merging_bytes")


@app.command()
def study(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or the name of one of the package's.")],
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)} (one core).")] = "h100",
    mfu: Annotated[
        str | None, typer.Option(help="Share of the peak that matrix products reach; default: 0.4, cpu: as measured.")
    ] = None,
    gpus: Annotated[
        str,
        typer.Option(help="Devices (cpu: cores) at work, on jobs.parallel runs at once, default one after the other."),
    ] = "1",
    convention: Convention = "exact",
    only: Annotated[str | None, typer.Option(help="Some runs only, as arch=hgrn2|tnl,size=98k,seed=0.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change a value, as training.lr=1e-3.")] = None,
    form: Form = "table",
    as_json: AsJson = False,
) -> None:
    """What a study costs: FLOP, device hours, wall time and disk, of each run and in total."""
    form = format_of(form, as_json)
    convention = convention_named(convention)
    chosen, share = device_of(device), None if mfu is None else quantity(mfu, "--mfu", 1.0)
    count = whole(gpus, "--gpus", MOST_GPUS)

    from ..study.spec import load_study

    spec = load_study(name, sets or [], only=only, own=True)
    costs = cost(spec, spec.runs(only), chosen, share, count, convention)
    emit(*view(costs), form)
    warn(costs["warnings"], form)


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


def view(costs: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """The table, and `costs` itself for JSON."""
    unit, totals = costs["device_unit"], costs["totals"]
    columns = [
        Column("run_id", "run", text=True),
        Column("arch", csv_only=True),
        Column("size", csv_only=True),
        Column("seed", csv_only=True),
        Column("point", csv_only=True),
        Column("n_params_non_embedding", "N\nnon-emb.", short),
        Column("n_tokens", "tokens", short),
        Column("n_steps", "steps", csv_only=True),
        Column("flops", f"FLOP\n{costs['convention']}", digits),
        Column("device_hours", f"{unit}-hours", digits),
        Column("devices", csv_only=True),
        Column("wall_seconds", "wall time", duration),
        Column("pace", csv_only=True),
        Column("memory_bytes", f"bytes a\n{unit}", si),
        Column("n_checkpoints", csv_only=True),
        Column("checkpoint_bytes", "check-\npoints", si),
        Column("state_bytes", "states", si),
        Column("n_merged", csv_only=True),
        Column("merged_bytes", csv_only=True),
        Column("merging_bytes", csv_only=True),
    ]
    number = counted(costs["gpus"], unit)
    at_once = costs["runs_at_once"]
    first = totals["wall_seconds"] - makespan((row["wall_seconds"] for row in costs["runs"]), at_once)
    further = f", {NEXT_S[unit]:g} s for each further run of the same {'GPU' if unit == 'GPU' else 'process'}"
    start_text = further if first > 1e-6 else ""  # what the first run of a process takes longer
    title = f"{costs['study']}: {counted(totals['n_runs'], 'run')} on {number} ({costs['device']}), " + (
        f"{at_once} at once" if at_once > 1 else "one after the other"
    )
    notes = [
        f"{totals['pf_days']:,.4g} PF-days, convention {costs['convention']}. Peak: "
        f"{costs['peak_flops_per_s'] / 1e12:,.4g} TFLOP/s in {costs['peak_precision']} ({costs['peak_source']}). "
        f"Tokens in whole batches; checkpoints (weights) and states: bytes on disk; without corpus, evaluation, "
        f"restarts; {START_S[unit]:g} s from the start of a process to its first step{start_text}.",
        *[f"Beside these: {note}." for note in [merged_note(totals)] if note],
        *_bases(costs),
    ]
    rows = [*costs["runs"], {"run_id": "total"} | totals]
    return Table(title, columns, rows, notes, last=1), costs


def _bases(costs: dict[str, Any]) -> list[str]:
    """How the times are known, with the number of runs: a line for each way."""
    runs = costs["runs"]
    if costs["device_unit"] == "core":
        paces = Counter(row["pace"] for row in runs)
        return [f"Times: {basis}, of {counted(number, 'run')}." for basis, number in paces.items()]
    bound = Counter(row["pace"] for row in runs if row["bound_by"] != "flops")
    lines = [f"Times of {counted(number, 'run')}: {basis}." for basis, number in bound.items()]
    if free := len(runs) - sum(bound.values()):
        lines.append(f"Times of {counted(free, 'run')}: their FLOP at {costs['mfu'] or MFU:.0%} of the peak.")
    return lines


def main() -> None:
    """Console script."""
    run_app(app)


if __name__ == "__main__":
    main()
