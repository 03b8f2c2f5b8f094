"""`flops study`: what a study costs on a machine, before anything runs. Imports no torch.

This module adds the command to those of the flops package, which may not know of studies, and is the console script.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from arch.amounts import counted
from arch.commands import with_options
from arch.console import run_app
from flops.cli import Convention, Format, app, convention_named
from flops.hardware import DEVICES, device_of
from flops.pace import MFU, NEXT_S, START_S, makespan
from flops.quantity import MOST_GPUS, quantity, whole
from flops.tables import Column, Table, digits, duration, emit, short, si, warn

from .options import Only, Sets, Study


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
    form = output.name
    convention = convention_named(convention)
    chosen, share = device_of(device), None if mfu is None else quantity(mfu, "--mfu", 1.0)
    count = whole(gpus, "--gpus", MOST_GPUS)

    from ..study.machine_cost import cost
    from ..study.spec import load_study

    spec = load_study(name, sets or [], only=only, own=True)
    costs = cost(spec, spec.runs(only), chosen, share, count, convention)
    emit(*view(costs), form)
    warn(costs["warnings"], form)


def view(costs: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """The table, and `costs` itself for JSON."""
    from ..study.cost import merged_note

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
