"""What a plan says beside its table: what the fits of these runs can determine, and how long its evaluations take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.fits.settings import MIN_CROSSINGS
from arch.amounts import counted
from arch.errors import InputError
from data.units import loss_unit
from flops.tables import duration

from ..study.run import RunSpec
from .evaluation_tasks import planned
from .forecast import waiting_lines
from .request import Request

LINEAR = 0.25  # half of the interval of an exponent between 0 and 1, beyond which the linearised width is a bound alone
MOST_CHECKED = 200  # runs

if TYPE_CHECKING:
    from analysis.design.check import Reading

    from ..study.schema import Fit


def notes_of(request: Request) -> dict[str, Any]:
    """{"fits": line, "evaluations": of evaluation_time, where it can be computed, "entropy_rate": of text_rate, where
    it is known}."""
    time, rate = evaluation_time(request), text_rate(request)
    fitted = [run for run in request.runs if not run.is_forecast]
    lines = [fit_notes(fitted), *design_notes(fitted, request.study.fit)] if fitted else []
    lines += waiting_lines(request)
    return {"fits": "\n".join(lines)} | (
        ({"evaluations": time} if time else {}) | ({"entropy_rate": rate} if rate else {})
    )


def text_rate(request: Request) -> dict[str, Any] | None:
    """{"nats_per_token", "bits_per_byte", "text"} of text whose source gives them; None of all other text."""
    from data.truth.corpus_rate import entropy_rate, rate_lines

    settings = request.study.corpus.settings()
    try:
        rate = entropy_rate(settings)
    except InputError:  # the plan says what is wrong with the text
        return None
    return rate and {**rate, "text": rate_lines(rate, settings.tokenizer)[0]}


def fit_notes(runs: Sequence[RunSpec]) -> str:
    """One line: pairs of neighbouring sizes of each architecture, how many must cross, and whether seeds give
    intervals."""
    sizes: dict[str, set[str]] = {}
    seeds: dict[tuple[str, ...], set[int]] = {}
    for run in runs:
        sizes.setdefault(run.arch, set()).add(run.size)
        seeds.setdefault(run.kind, set()).add(run.seed)
    pairs: dict[int, list[str]] = {}
    for arch, own_sizes in sizes.items():
        pairs.setdefault(len(own_sizes) - 1, []).append(arch)
    counts = "; ".join(f"{', '.join(archs)}: {number}" for number, archs in pairs.items())
    few = [arch for number, archs in pairs.items() if number < MIN_CROSSINGS for arch in archs]
    line = f"fits: pairs of neighbouring sizes: {counts}; the curves of {MIN_CROSSINGS} pairs must cross "
    line += "for a law of N_opt"
    line += f", so {', '.join(few)} can have none" if few else ""
    twice = {kind[:2] for kind, own_seeds in seeds.items() if len(own_seeds) > 1}
    if not twice:
        return f"{line}; no size has two seeds: no intervals"
    shares: dict[str, list[str]] = {}
    for arch, own_sizes in sizes.items():
        shares.setdefault(f"{sum(kind[0] == arch for kind in twice)} of {len(own_sizes)}", []).append(arch)
    counts = "; ".join(f"{', '.join(archs)}: {share}" for share, archs in shares.items())
    return f"{line}; sizes with two seeds or more: {next(iter(shares)) if len(shares) == 1 else counts}"


def design_notes(runs: Sequence[RunSpec], fit: Fit) -> list[str]:
    """A line for each architecture whose exponent of N_opt these runs will not determine well enough, and what would;
    one line where all are alike, where there are too many runs to look at, or where axes make them several
    studies."""
    if len(runs) > MOST_CHECKED or any(run.point for run in runs):
        why = f"more than {MOST_CHECKED} runs" if len(runs) > MOST_CHECKED else "axes"
        return [f"design: not checked ({why}): docs/design.md"]
    from analysis.design.check import Reading, Run, expect
    from analysis.design.layout import CONTROLLED, TEXT
    from analysis.design.worlds import SEED_NOISE, Noise
    from flops import count_params, train_flops_per_token

    trunks = {run.trunk for run in runs if run.trunk}
    runs_of: dict[str, list[Run]] = {}
    vocabulary: dict[str, int] = {}
    for run in runs:
        if run.run_id in trunks:
            continue
        try:
            per_token = float(train_flops_per_token(run.config, "exact"))
        except InputError:  # the costs of a plugin are not known
            continue
        n_params = float(count_params(run.config).non_embedding)
        trunk = run.trunk or run.run_id
        design_run = Run(run.size, n_params, float(run.n_tokens), per_token, trunk, bool(run.trunk), run.seed)
        runs_of.setdefault(run.arch, []).append(design_run)
        vocabulary[run.arch] = run.config.vocab_size
    reading = Reading(Noise(SEED_NOISE))
    if fit.loss == "train_smoothed":
        noise = replace(reading.noise, text=TEXT * (CONTROLLED if fit.control == "bigram" else 1.0))
        reading = Reading(noise, float(fit.smoothing_tokens), fit.smoothing_fraction)
    lines: dict[str, list[str]] = {}
    for arch, arch_runs in runs_of.items():
        try:
            expected = expect(arch, arch_runs, vocabulary[arch], reading)
        except InputError as error:  # shapes of nearly one size, say
            lines.setdefault(f"no law of N_opt: {error}", []).append(arch)
            continue
        if expected.too_wide:
            width = f"about ±{expected.half_a:.2f}" if expected.half_a < LINEAR else f"±{LINEAR} or worse"
            text = f"the exponent of N_opt will be known to {width} (limit {expected.limit})"
            text += f": {expected.remedy}" if expected.remedy else ""
            lines.setdefault(text, []).append(arch)
    if not lines:
        return []
    return [
        *(f"design: {', '.join(archs)}: {text}" for text, archs in lines.items()),
        f"design: computed to first order, for {_noises(reading, runs)}; scaling design simulates whole studies, whose "
        "intervals may be narrower or wider, and proposes one",
    ]


def _noises(reading: Reading, runs: Sequence[RunSpec]) -> str:
    """The noise that the widths are computed for."""
    noise = f"noise between seeds of {reading.noise.seed:.2%} of the loss"
    if reading.tokens is None or any(run.trunk for run in runs):
        return noise
    fewest = max(reading.tokens, reading.share * min(run.n_tokens for run in runs))
    point = reading.noise.text / math.sqrt(fewest)
    unit = loss_unit(run.corpus.tokenizer for run in runs)
    alone = f"{reading.noise.text:.2g} of one token alone, means over {fewest:,.0f} tokens"
    return noise + f", of a point {point:.2g} {unit} ({alone})"


def evaluation_time(request: Request) -> dict[str, Any] | None:
    """The time of all planned evaluations of checkpoints and merged points, with those done: {"seconds", "checkpoints",
    "merged", "unknown": tasks of unknown length, "basis": {task: measured or assumed}, "text"}; None where the tasks'
    data or the corpus are not there to know."""
    from analysis.evals.matrix import OF_MERGED
    from analysis.evals.planning import forecast_task, measured_paces
    from flops.hardware import DEVICES
    from jobs.local import at_once, visible_gpus

    try:
        plans = planned(request)
    except InputError:
        return None
    kind = "cuda" if visible_gpus() else "cpu"
    device = DEVICES["h100" if kind == "cuda" else "cpu"]
    paces_by_task = measured_paces(request.study.directory / "runs", request.runs, device, kind)
    seconds, basis = 0.0, dict[str, str]()
    for run in request.runs:
        for task, plan in plans[run.run_id].items():
            expected = forecast_task(task, [(run, plan)], paces_by_task, device)
            merged = len(run.merged_after) if task in OF_MERGED else 0
            seconds += (expected.seconds or 0.0) * (len(run.checkpoint_steps) + merged)
            basis[task] = expected.basis.partition(":")[0]  # measured or assumed
    n_checkpoints = sum(len(run.checkpoint_steps) for run in request.runs)
    n_merged = sum(len(run.merged_after) for run in request.runs)
    unknown = [
        word for word in request.study.evaluation.tasks or () if ":" in word and word.partition(":")[2] not in basis
    ]
    workers = at_once(request.study.jobs.parallel, 1)
    paces = [
        f"{how}: {', '.join(task for task in basis if basis[task] == how)}" for how in dict.fromkeys(basis.values())
    ]
    also = f", {counted(n_merged, 'merged point')}" if n_merged else ""
    text = (
        f"all evaluations are expected to take about {duration(seconds / workers)} here: "
        f"{counted(n_checkpoints, 'checkpoint')}{also}, {counted(workers, 'worker')} (pace {'; '.join(paces)})"
        + (f"; without {', '.join(unknown)}, of unknown length" if unknown else "")
        + "; opening models and reading data come on top"
    )
    result = {"seconds": seconds / workers, "checkpoints": n_checkpoints, "merged": n_merged, "unknown": unknown}
    return result | {"basis": basis, "text": text}
