"""How the fits were made, in paragraphs: the report's section on methods."""

from __future__ import annotations

from typing import Any

from analysis.figures.palette import name_of
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import StudyFits
from analysis.report.comparison import verdict_notes
from analysis.report.laws import sizes_left_out
from analysis.report.section import Section
from analysis.report.words import noise_text


def convention_text(fits: StudyFits) -> str:
    named = fits.conventions
    return f"training FLOP, convention '{named['C']}'; N: {named['N']}; D: training tokens"


def phase_notes(fits: StudyFits) -> list[str]:
    """Which losses were fitted where the learning rate of some runs decays: a sentence, or none."""
    text = str((fits.points or {}).get("text", ""))
    return [f"{text[:1].upper()}{text[1:]}."] if text else []


def methods_section(fits: StudyFits) -> Section:
    paragraphs = [
        f"C: {convention_text(fits)}. Loss: {fits.conventions['L']}. The seeds of a size are averaged in log loss.",
        *phase_notes(fits),
        *_surface_text(fits),
        *([] if fits.settings.is_of_ends else [_envelope_text(fits), interval_text(fits)]),
        "A verdict is on one claim at a compute: N_opt, the loss of a run, or which of two has the lower loss. It "
        "rests on four checks: N and D lie near what was trained, the points do not refute the form, laws fitted below "
        "cuts of the data give what lies above them, and no one size decides it. A law is believed up to the largest "
        "compute at which all hold. All approaches read the same runs, so their agreement is weaker evidence than "
        "that of several studies.",
    ]
    return Section("Methods and caveats", paragraphs, notes=verdict_notes(fits))


def _surface_text(fits: StudyFits) -> list[str]:
    """How the surfaces were fitted and what their intervals are of; none without such a law."""
    laws = [law for law in fits.laws if law.approach == "parametric"]
    forms = "; ".join(dict.fromkeys(law.parametric.form for law in laws if law.parametric))
    if not laws:
        return []
    intervals = "; ".join(dict.fromkeys(f"{law.intervals.method} ({law.intervals.estimand})" for law in laws))
    read = (
        "the loss at the end of each run"
        if fits.settings.is_of_ends
        else f"each run's curve from {fits.settings.first_share:.0%} of its tokens on, every run with the same weight"
    )
    gone = "; ".join(f"{', '.join(sizes)} of {name_of(group)}" for group, sizes in sizes_left_out(fits).items())
    without = f" Without sizes that lie above what the surface of the larger ones says: {gone}." if gone else ""
    return [
        f"The parametric approach fits L = {forms} to {read}. N_opt, D_opt and their "
        f"exponents are the surface's minimum at each C.{without} Intervals: {intervals}."
    ]


def _envelope_text(fits: StudyFits) -> str:
    settings = fits.settings
    stated = {group.name: group.range_stated for group in fits.groups}
    given = ", ".join(name_of(arch) for arch, is_stated in stated.items() if is_stated)
    whole = "everything after warm-up"
    span = f"as the study file states it for {given}, else {whole}" if given else whole
    return (
        f"The envelope is the lowest loss among the sizes whose curve covers C, at {settings.grid_points} log-spaced "
        f"values of C in the range ({span}). L = beta C^alpha is a line through it by least squares in logarithms. "
        f"{_optimum_text(settings)}"
    )


def _optimum_text(settings: FitSettings) -> str:
    if settings.optimum == "crossings":
        return (
            f"N_opt and D_opt go through the crossings of neighbouring sizes' curves, by generalised least squares in "
            f"units of the seed noise; sizes less than {settings.near_sizes:g} times apart are one. They need three "
            f"crossings."
        )
    if settings.optimum == "hull":
        return "N_opt and D_opt go through the vertices of the lower convex hull of log loss over log compute."
    which = "uncensored points" if settings.censor else "points after warm-up (fit.censor: off)"
    return f"N_opt and D_opt go through the {which} of the envelope, by ordinary least squares."


def interval_text(fits: StudyFits) -> str:
    """What the intervals of the envelope's laws are of."""
    made, noise = fits.intervals, fits.seed_noise
    alone = [run for size in fits.not_paired for run in size.runs]
    others = f" No seeds of other runs of their size, and no part of that: {', '.join(alone)}." if alone else ""
    if noise is None:
        return f"Intervals: {made.method}.{others}"
    measured = ", ".join(
        f"{name_of(group.arch)} {group.size} ({group.n_seeds} seeds: {group.s:.2%})" for group in noise.groups
    )
    return (
        f"Intervals: {made.level:.0%}. Those of the envelope's laws: {made.method}, {made.replicates} replicates; "
        f"estimand: {made.estimand}. Seed noise: {noise_text(noise)}; measured on {measured}, assumed to hold for "
        f"every size.{others} They cover no error of the laws' form: outside the range a law is an extrapolation."
    )


def baseline_text(baseline: dict[str, Any], unit: str) -> str:
    """unit: of losses (data.units)."""
    return (
        f"Dashed line, where losses come near it: a bigram model with interpolated absolute discounting, counted on "
        f"{baseline['train_tokens']:,} training tokens. Its loss is {baseline['loss']:.4f} {unit} "
        f"({baseline['bits_per_byte']:.4f} bits/byte) on the held-out tokens that the checkpoints are evaluated on."
    )
