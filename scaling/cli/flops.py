"""`flops study`: what a study costs on a machine, before anything runs. Imports no torch.

This module adds the command to the others and is the console script.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted
from arch.commands import with_options
from arch.console import run_app
from flops.hardware import DEVICES, device_of
from flops.pace import MFU, NEXT_S, START_S
from flops.quantity import MOST_GPUS, PF_DAY, quantity, whole
from flops.tables import Column, Table, digits, duration, emit, short, si, warn

from .flops_models import Convention, Format, app, convention_named
from .options import Only, Sets, Study

if TYPE_CHECKING:
    from ..study.cost import StudyCost


@app.command()
@with_options
def study(
    name: Study,
    output: Format,
    device: Annotated[str, typer.Option(help=f"Device: one of {', '.join(DEVICES)} (one core).")] = "h100",
    mfu: Annotated[
        str | None, typer.Option(help="Share of the peak that matrix products reach; default: 0.4, cpu: as measured.")
    ] = None,
    gpus: Annotated[
        str,
        typer.Option(help="Devices at work (cores of cpu); they train jobs.parallel runs at once, or one."),
    ] = "1",
    convention: Convention = "exact",
    only: Only = None,
    sets: Sets = None,
) -> None:
    """Say what a study costs on a machine.

    Prints FLOP, device hours, wall time and disk, of each run and in total.
    """
    convention = convention_named(convention)
    chosen, share = device_of(device), None if mfu is None else quantity(mfu, "--mfu", 1.0)
    n_devices = whole(gpus, "--gpus", MOST_GPUS)

    from ..study.cost import study_cost
    from ..study.spec import load_study

    spec = load_study(name, sets or [], only=only, own=True)
    costs = study_cost(spec, spec.all_runs(only), chosen, share, n_devices, convention)
    emit(table_of(costs), to_dict(costs), output.name)
    warn(costs.warnings, output.name)


def to_dict(costs: StudyCost) -> dict[str, Any]:
    """Plain data for JSON. Totals are sums, but for wall_seconds: until the last run ends."""
    from ..study.axes import label_of

    rows: list[dict[str, Any]] = []
    for row in costs.runs:
        run = row.run
        rows.append(
            {"run_id": run.run_id, "arch": run.arch, "size": run.size, "seed": run.seed, "point": label_of(run.point)}
            | {"role": run.role, "round": run.round_number}
            | {"n_params_non_embedding": row.n_params_non_embedding, "n_tokens": row.n_tokens, "n_steps": row.n_steps}
            | {"flops": row.flops, "devices": row.devices, "device_hours": row.device_hours}
            | {"wall_seconds": row.wall_seconds, "pace": row.pace.basis, "bound_by": row.pace.bound_by}
            | {"memory_bytes": row.memory_bytes, "state_bytes": row.state_bytes}
            | {"n_checkpoints": row.n_checkpoints, "checkpoint_bytes": row.checkpoint_bytes}
        )
    summed = ("n_tokens", "n_steps", "flops", "device_hours", "state_bytes", "n_checkpoints")
    totals: dict[str, Any] = {key: sum(row[key] for row in rows) for key in (*summed, "checkpoint_bytes")}
    totals |= {"n_runs": len(rows), "wall_seconds": costs.wall_seconds, "pf_days": costs.flops / PF_DAY}
    return {
        **{"study": costs.study, "device": costs.device.name, "gpus": costs.n_devices, "runs_at_once": costs.at_once},
        **{"mfu": costs.mfu, "convention": costs.convention, "peak_flops_per_s": costs.device.peak_flops_per_s},
        **{"runs": rows, "totals": totals, "warnings": costs.warnings},
    }


def table_of(costs: StudyCost) -> Table:
    from ..study.schema import role_text

    device, unit = costs.device, costs.device.unit
    runs = [row.run for row in costs.runs]
    shown = {run.run_id: run.run_id + role_text(run.role, run.round_number) for run in runs}
    columns = [
        Column("run_id", "run", lambda run_id: shown.get(run_id, run_id), text=True),
        *(Column(key, csv_only=True) for key in ("arch", "size", "seed", "point", "role", "round")),
        Column("n_params_non_embedding", "N\nnon-emb.", short),
        Column("n_tokens", "tokens", short),
        Column("n_steps", "steps", csv_only=True),
        Column("flops", f"FLOP\n{costs.convention}", digits),
        Column("device_hours", f"{unit}-hours", digits),
        Column("devices", csv_only=True),
        Column("wall_seconds", "wall time", duration),
        Column("pace", csv_only=True),
        Column("memory_bytes", f"bytes a\n{unit}", si),
        Column("n_checkpoints", csv_only=True),
        Column("checkpoint_bytes", "check-\npoints", si),
        Column("state_bytes", "states", si),
    ]
    further = f", {NEXT_S[unit]:g} s for each further run of the same {'GPU' if unit == 'GPU' else 'process'}"
    several = further if costs.first_start_seconds > 1e-6 else ""
    title = (
        f"{costs.study}: {counted(len(costs.runs), 'run')} on {counted(costs.n_devices, unit)} ({device.name}), "
        f"{f'{costs.at_once} at once' if costs.at_once > 1 else 'one after the other'}"
    )
    data = to_dict(costs)
    notes = [
        f"{costs.flops / PF_DAY:,.4g} PF-days, convention {costs.convention}. Peak: "
        f"{device.peak_flops_per_s / 1e12:,.4g} TFLOP/s in {device.precision} ({device.source}). "
        f"Tokens in whole batches; checkpoints (weights) and states: bytes on disk; without corpus, evaluation, "
        f"restarts; {START_S[unit]:g} s from the start of a process to its first step{several}.",
        *_bases(costs),
    ]
    return Table(title, columns, [*data["runs"], {"run_id": "total"} | data["totals"]], notes, last=1)


def _bases(costs: StudyCost) -> list[str]:
    """How the times are known, with the number of runs: a line for each way."""
    paces = [row.pace for row in costs.runs]
    if costs.device.unit == "core":
        return [f"Times: {basis}, of {counted(n, 'run')}." for basis, n in Counter(p.basis for p in paces).items()]
    bound = Counter(pace.basis for pace in paces if pace.bound_by != "flops")
    lines = [f"Times of {counted(number, 'run')}: {basis}." for basis, number in bound.items()]
    if free := len(paces) - sum(bound.values()):
        lines.append(f"Times of {counted(free, 'run')}: their FLOP at {costs.mfu or MFU:.0%} of the peak.")
    return lines


def main() -> None:
    """Console script."""
    run_app(app)


if __name__ == "__main__":
    main()
