"""`flops study`: what a study costs on a machine, before anything runs. Imports no torch.

This module adds the command to those of the flops package, which may not know of studies, and is the console script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.errors import InputError
from flops import artifact_bytes, count_params, state_bytes, train_flops_per_token, training_memory
from flops.cli import AsJson, Convention, Form, app, convention_named
from flops.console import run_app
from flops.hardware import DEVICES, FILLED, Device, device_of
from flops.quantity import MOST_GPUS, PF_DAY, quantity, whole
from flops.tables import Column, Table, digits, emit, format_of, short, si, warn

if TYPE_CHECKING:
    from .spec import RunSpec, StudySpec

COUNTED = ("n_tokens", "n_steps", "n_checkpoints")
SUMMED = ("flops", "device_hours", "wall_seconds", "artifact_bytes", "state_bytes")


@app.command()
def study(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or the name of one of the package's.")],
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)} (one core).")] = "h100",
    mfu: Annotated[str, typer.Option(help="Share of the device's peak that training reaches.")] = "0.4",
    gpus: Annotated[str, typer.Option(help="Devices (cpu: cores) at work, all on one run after the other.")] = "1",
    convention: Convention = "exact",
    only: Annotated[str | None, typer.Option(help="Some runs only, as arch=hgrn2|tnl,size=98k,seed=0.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change a value, as training.lr=1e-3.")] = None,
    form: Form = "table",
    as_json: AsJson = False,
) -> None:
    """What a study costs: FLOP, device hours, wall time and disk, of each run and in total."""
    form = format_of(form, as_json)
    convention = convention_named(convention)
    chosen, share = device_of(device), quantity(mfu, "--mfu", 1.0)
    count = whole(gpus, "--gpus", MOST_GPUS)

    from .spec import load_study

    spec = load_study(name, sets or [], only=only)
    found = cost(spec, spec.runs(only), chosen, share, count, convention)
    emit(*view(found), form)
    warn(found["warnings"], form)


def cost(
    spec: StudySpec, runs: Sequence[RunSpec], device: Device, mfu: float, gpus: int, convention: str
) -> dict[str, Any]:
    """{"study", "device", .., "runs": [row], "totals", "warnings"}; runs go one after the other on all `gpus` devices.

    flops: training FLOP under `convention`; device_hours: flops / (peak x mfu); wall_seconds: those over `gpus`;
    memory_bytes: on each device (None where the architecture's costs do not tell); artifact_bytes: all checkpoints;
    state_bytes: the states kept for resuming. Raises InputError where the convention does not cover an architecture.
    """
    rows = [run_cost(run, device, mfu, gpus, convention) for run in runs]
    totals: dict[str, Any] = {"n_runs": len(rows)} | {key: sum(row[key] for row in rows) for key in COUNTED}
    totals |= {key: math.fsum(row[key] for row in rows) for key in SUMMED}
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
        "convention": convention,
        "runs": rows,
        "totals": totals,
        "warnings": [*_uneven(runs, device, gpus), *_too_large(rows, device)],
    }


def run_cost(run: RunSpec, device: Device, mfu: float, gpus: int, convention: str) -> dict[str, Any]:
    """One run's row."""
    cfg, training = run.config, run.training
    flops = train_flops_per_token(cfg, convention) * float(run.n_tokens)
    seconds = flops / (device.peak_flops_per_s * mfu)
    checkpoints = len(run.checkpoint_steps)
    return {
        "run_id": run.run_id,
        "arch": run.arch,
        "size": run.size,
        "seed": run.seed,
        "n_params_non_embedding": count_params(cfg).non_embedding,
        "n_tokens": run.n_tokens,
        "n_steps": run.n_steps,
        "flops": flops,
        "device_hours": seconds / 3600,
        "wall_seconds": seconds / gpus,
        "memory_bytes": _memory(run, gpus, device.unit == "GPU"),
        "n_checkpoints": checkpoints,
        "artifact_bytes": checkpoints * artifact_bytes(cfg, training.artifact_dtype),
        "state_bytes": states_kept(run) * state_bytes(cfg, training.zero_stage),
    }


def states_kept(run: RunSpec) -> int:
    """States on disk after the run, the newest training.keep_states: one is saved every training.state_every_tokens,
    by default at each checkpoint, and one after the last step."""
    training = run.training
    if training.state_every_tokens is None:
        return min(training.keep_states, len(run.checkpoint_steps))
    earlier = (run.n_tokens - training.batch_tokens) // training.state_every_tokens
    return min(training.keep_states, 1 + min(run.n_steps - 1, earlier))


def _memory(run: RunSpec, gpus: int, kernels: bool) -> float | None:
    """Bytes on each of `gpus` devices, whose share of a batch is rounded up to whole sequences; kernels: they take the
    Triton kernels, as GPUs do."""
    training, context = run.training, run.context_length
    share = -(-training.batch_tokens // context // gpus)
    micro = min(share, (training.micro_batch_tokens or training.batch_tokens) // context)
    try:
        lines = training_memory(
            run.config,
            micro_batch_tokens=micro * context,
            zero_stage=training.zero_stage,
            world_size=gpus,
            precision=training.precision,
            recompute=run.recompute,
            accumulate=share > micro,
            kernels=kernels,
        )
    except InputError:  # a plugin's architecture without activations
        return None
    return lines["total"]


def _uneven(runs: Sequence[RunSpec], device: Device, gpus: int) -> list[str]:
    """A line for each size of batch that does not split over the devices, naming the numbers around that it does."""
    found = []
    for rows in sorted({run.training.batch_tokens // run.context_length for run in runs}):
        if rows % gpus:
            whole_shares = [n for n in range(1, rows + 1) if rows % n == 0]
            fewer = [str(n) for n in whole_shares if n < gpus][-1:]
            more = [str(n) for n in whole_shares if n > gpus][:1]
            found.append(
                f"a batch of {rows} sequences does not split over {gpus:,} {device.unit}s: {' or '.join(fewer + more)} "
                f"would do"
            )
    return found


def _too_large(rows: Sequence[dict[str, Any]], device: Device) -> list[str]:
    if device.memory_bytes is None:
        return []
    room = FILLED * device.memory_bytes
    large = [r for r in rows if r["memory_bytes"] is not None and r["memory_bytes"] > room]
    if not large:
        return []
    most = max(large, key=lambda row: float(row["memory_bytes"]))
    return [
        f"{len(large)} of {len(rows)} runs need more than {FILLED:.0%} of the {device.memory_bytes / 1e9:,.0f} GB of "
        f"{device.name}, up to {most['memory_bytes'] / 1e9:,.0f} GB ({most['run_id']}): lower "
        f"training.micro_batch_tokens, set jobs.recompute, or take more"
    ]


def duration(seconds: float) -> str:
    """45 s, 12.3 min, 5.10 h, 3.42 d."""
    for scale, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= scale * (2 if unit == "d" else 1):
            return f"{seconds / scale:,.1f} {unit}" if seconds >= 10 * scale else f"{seconds / scale:.2f} {unit}"
    return f"{seconds:.3g} s"


def view(found: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """The table, and `found` itself for JSON."""
    unit, totals = found["device_unit"], found["totals"]
    columns = [
        Column("run_id", "run", text=True),
        Column("arch", csv_only=True),
        Column("size", csv_only=True),
        Column("seed", csv_only=True),
        Column("n_params_non_embedding", "N\nnon-emb.", short),
        Column("n_tokens", "tokens", short),
        Column("n_steps", "steps", csv_only=True),
        Column("flops", f"FLOP\n{found['convention']}", digits),
        Column("device_hours", f"{unit}-hours", digits),
        Column("wall_seconds", "wall time", duration),
        Column("memory_bytes", f"bytes a\n{unit}", si),
        Column("n_checkpoints", csv_only=True),
        Column("artifact_bytes", "check-\npoints", si),
        Column("state_bytes", "states", si),
    ]
    number = f"{found['gpus']:,} {unit}{'s' if found['gpus'] > 1 else ''}"
    title = (
        f"{found['study']}: {totals['n_runs']} runs on {number} ({found['device']}) at {found['mfu']:.0%} of the peak"
    )
    notes = [
        f"{totals['pf_days']:,.4g} PF-days, convention {found['convention']}. Peak: "
        f"{found['peak_flops_per_s'] / 1e12:,.4g} TFLOP/s in {found['peak_precision']} ({found['peak_source']}). "
        f"One run after the other, tokens in whole batches; checkpoints (weights) and states: bytes on disk; without "
        f"corpus, evaluation, restarts."
    ]
    rows = [*found["runs"], {"run_id": "total"} | totals]
    return Table(title, columns, rows, notes, last=1), found


def main() -> None:
    """Console script."""
    run_app(app)


if __name__ == "__main__":
    main()
