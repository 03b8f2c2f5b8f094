"""What a plan says beside its table: what the fits of these runs can tell, and how long its evaluations take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.fits.settings import MIN_CROSSINGS
from arch.errors import InputError
from flops.tables import duration

from ..study.run import RunSpec
from .evaluation import planned

if TYPE_CHECKING:
    from .pipeline import Request


def notes_of(request: Request) -> dict[str, Any]:
    """{"fits": line, "evaluations": of evaluation_time, where it can be reckoned}."""
    time = evaluation_time(request)
    return {"fits": fit_notes(request.runs)} | ({"evaluations": time} if time else {})


def fit_notes(runs: Sequence[RunSpec]) -> str:
    """One line: pairs of neighbouring sizes of each architecture, how many must cross, and whether seeds give
    intervals."""
    sizes: dict[str, set[str]] = {}
    seeds: dict[tuple[str, ...], set[int]] = {}
    for run in runs:
        sizes.setdefault(run.arch, set()).add(run.size)
        seeds.setdefault(run.kind, set()).add(run.seed)
    pairs: dict[int, list[str]] = {}
    for arch, found in sizes.items():
        pairs.setdefault(len(found) - 1, []).append(arch)
    told = "; ".join(f"{', '.join(archs)}: {number}" for number, archs in pairs.items())
    few = [arch for number, archs in pairs.items() if number < MIN_CROSSINGS for arch in archs]
    line = (
        f"fits: pairs of neighbouring sizes: {told}; the curves of {MIN_CROSSINGS} pairs must cross for a law of N_opt"
    )
    line += f", so {', '.join(few)} can have none" if few else ""
    twice = len({kind[:2] for kind, found in seeds.items() if len(found) > 1})
    return line + (f"; {twice} size(s) with two seeds or more" if twice else "; no size has two seeds: no intervals")


def evaluation_time(request: Request) -> dict[str, Any] | None:
    """Of every planned checkpoint's evaluation, what is done included: {"seconds", "checkpoints", "unknown": tasks that
    cannot tell, "basis": {task: measured or assumed}, "text"}; None where the tasks' data or the corpus are not there
    to know."""
    from analysis.evals import forecast
    from flops.hardware import DEVICES
    from jobs.local import at_once, visible_gpus

    try:
        plans = planned(request)
    except InputError:
        return None
    kind = "cuda" if visible_gpus() else "cpu"
    device = DEVICES["h100" if kind == "cuda" else "cpu"]
    known = forecast.timed(request.study.directory / "runs", request.runs, device, kind)
    seconds, basis = 0.0, dict[str, str]()
    for run in request.runs:
        for task, one in plans[run.run_id].items():
            found = forecast.forecast(task, [(run, one)], known, device)
            seconds += (found.seconds or 0.0) * len(run.checkpoint_steps)
            basis[task] = found.basis.partition(":")[0]  # measured or assumed
    n_checkpoints = sum(len(run.checkpoint_steps) for run in request.runs)
    unknown = [
        word for word in request.study.evaluation.tasks or () if ":" in word and word.partition(":")[2] not in basis
    ]
    workers = at_once(request.study.jobs.parallel, 1)
    told = [
        f"{how}: {', '.join(task for task in basis if basis[task] == how)}" for how in dict.fromkeys(basis.values())
    ]
    text = (
        f"all evaluations are expected to take about {duration(seconds / workers)} here: "
        f"{n_checkpoints:,} checkpoints, {workers} worker(s) (pace {'; '.join(told)})"
        + (f"; without {', '.join(unknown)}, of unknown length" if unknown else "")
    )
    result = {"seconds": seconds / workers, "checkpoints": n_checkpoints, "unknown": unknown}
    return result | {"basis": basis, "text": text}
