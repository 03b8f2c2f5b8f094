"""The notes under the tables of the fits: why a value is missing, and how the values were estimated."""

from __future__ import annotations

import math

from scipy import stats

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.crossings import FIELLER
from analysis.fits.crossings import METHOD as CROSSINGS
from analysis.fits.fit import L_OPT, N_OPT, Curvature, EnvelopePart, Fit, Law
from analysis.fits.study_fits import StudyFits
from analysis.report.left_out import unused_lines
from analysis.report.noise import listed, noise_text
from arch.amounts import counted, counted_of


def envelopes(fits: StudyFits) -> list[tuple[Fit, EnvelopePart]]:
    """The envelope of each group that has one."""
    found = [fits.envelope(group.name) for group in fits.groups]
    return [(fit, fit.envelope) for fit in found if fit is not None and fit.envelope is not None]


def notes(fits: StudyFits) -> list[str]:
    """All of them, for a reader who has the tables alone."""
    lines = [*method_notes(fits), *law_notes(fits), *common_lean(fits)]
    for fit, _ in envelopes(fits):
        if not fit.law(L_OPT).curved:
            lines += _curvature_notes(fit.group, fit.law(L_OPT))
    return [*lines, *crossing_notes(fits)]


def law_notes(fits: StudyFits) -> list[str]:
    """Under the table of laws: what is missing or does not hold in it, and why."""
    lines, steep = list(fits.warnings), []
    for group in fits.groups:
        fit = fits.envelope(group.name)
        if fit is None:
            lines.append(f"{name_of(group.name)}: not fitted: {group.reason}")
            continue
        loss, n_opt = fit.law(L_OPT), fit.law(N_OPT)
        for law, name in ((loss, "alpha, beta"), (n_opt, "a, b")):
            if not law.identified:
                lines.append(f"{name_of(group.name)}: {name} not identified: {law.reason}")
        if loss.curved and loss.about_loss is not None:
            lines += _curvature_notes(group.name, loss)
            if loss.about_loss.steep_early and not group.range_stated:
                steep.append(group)
        misfit = n_opt.misfit
        if misfit and misfit.scale > 1:
            lines.append(
                f"{name_of(group.name)}: the crossings scatter more than seed noise explains "
                f"(p = {misfit.chance:.3f}); the intervals of a and b are computed with {misfit.scale:.2f} times the "
                f"seed noise"
            )
    if steep:
        keys = listed([f"fit.range.{arch}" for arch in dict.fromkeys(group.arch for group in steep)])
        lines.append(
            f"{listed([name_of(group.name) for group in steep])}: the loss falls faster at the start of the range. To "
            f"leave that part out, set {keys} in the study file, from about where the curves of the two smallest sizes "
            f"cross to where the curves of the largest sizes end. If the rest is still convex, it is no power law"
        )
    return lines + unused_lines(fits)


def crossing_notes(fits: StudyFits) -> list[str]:
    """Under the table of crossings: what makes them less certain."""
    lines = []
    for fit, found in envelopes(fits):
        law = fit.law(N_OPT)
        if law.identified and law.method == CROSSINGS:
            lines += _crossings_note(fit.group, found)
    return lines


def crossing_reasons(fits: StudyFits) -> list[str]:
    """Why pairs of neighbouring sizes have no crossing, a line a pair."""
    return [
        f"{name_of(fit.group)}, {' and '.join(pair.sizes)}: {pair.reason}"
        for fit, found in envelopes(fits)
        for pair in found.pairs
        if pair.reason
    ]


def method_notes(fits: StudyFits) -> list[str]:
    """How the intervals and the optimum were estimated."""
    lines = [interval_text(fits)]
    about = {fit.group: fit.law(L_OPT).about_loss for fit, _ in envelopes(fits)}
    moved = {group: loss.level_bias for group, loss in about.items() if loss and loss.level_bias is not None}
    if biases := ", ".join(f"{name_of(group)} {math.expm1(bias):+z.2%}" for group, bias in moved.items()):
        lines.append(
            f"The lowest of several noisy curves lies too low on average; by simulation this changes the level of L "
            f"by {biases}. The interval of L (of beta, and the band) is corrected for it. The line is not: it follows "
            f"the envelope and need not lie in the middle of its band."
        )
    return [*lines, _optimum_text(fits)]


def _curvature_notes(group: str, loss: Law) -> list[str]:
    about = loss.about_loss
    if about is None or about.curvature is None:
        return []
    bend, name, off = about.curvature, name_of(group), f"{math.expm1(about.off_line or 0.0):.1%}"
    if bend.shape == "ragged":
        why = "" if bend.tested else f" ({bend.reason})"
        return [
            f"{name}: a pure power law does not describe this curve: its points lie {off} off the line. The law has no "
            f"interval and predicts no loss{why}"
        ]
    if not bend.tested:
        return [f"{name}: it was not tested whether L(C) is a power law: {bend.reason}"]
    if bend.found:
        why = "as with an irreducible loss" if bend.shape == "convex" else "which no irreducible loss explains"
        return [
            f"{name}: a pure power law does not describe this curve: it is {bend.shape} in log-log, {why} "
            f"(p = {chance(loss):.3f}), and its points lie {off} off the line. The law has no interval and predicts no "
            f"loss"
        ]
    return [
        f"{name}: no bend of L(C) was found (the curve is slightly {lean(bend)}, p = {chance(loss):.2f}). In "
        f"{bend.power_half:.0%} of such studies the test detects an irreducible loss of half the lowest loss"
    ]


def lean(bend: Curvature) -> str:
    """The side to which a curve that was tested bends."""
    return "concave" if (bend.p_value or 0.0) > 0.5 else "convex"


def chance(loss: Law) -> float:
    """The p-value of a bend this large to its side under a pure power law; at least what the replicates resolve."""
    bend = loss.about_loss.curvature if loss.about_loss else None
    assert bend is not None and bend.p_value is not None and loss.replicates is not None  # it was tested
    return float(max(min(bend.p_value, 1 - bend.p_value), 1 / (loss.replicates + 1)))


def common_lean(fits: StudyFits) -> list[str]:
    """A line where the curves of all architectures bend the same way by more than chance (Stouffer's sum, 1%). The side
    is that of the curves, so chance has both: counted on one, 2% of studies of two straight curves had this line."""
    losses = [fit.law(L_OPT) for fit, _ in envelopes(fits)]
    bends = [(loss, loss.about_loss.curvature) for loss in losses if loss.about_loss]
    tested = [(loss, bend) for loss, bend in bends if bend is not None and bend.tested]
    leans = {lean(bend) for _, bend in tested}
    if len(tested) < 2 or len(leans) != 1:
        return []
    summed = sum(stats.norm.isf(chance(loss)) for loss, _ in tested) / math.sqrt(len(tested))
    together = 2 * float(stats.norm.sf(summed))
    if together >= 0.01:
        return []
    side = leans.pop()
    why = "an irreducible loss" if side == "convex" else "learning rates or budgets that suit some sizes better"
    return [
        f"The curves of all {len(tested)} architectures are {side} to some degree (p = {together:.1g} for all of them "
        f"together). A possible cause: {why}."
    ]


def _crossings_note(group: str, found: EnvelopePart) -> list[str]:
    """What makes an architecture's crossings less certain, in one line; none where nothing does."""
    parts, total = [], found.n_crossings
    if n := found.n_crossings_extrapolated:
        parts.append(f"{counted_of(n, total, 'crossing', 'is', 'are')} extrapolated")
    if n := found.n_crossings_disordered:
        lies = "lies" if n == 1 else "lie"
        parts.append(f"{n} of {total} {lies} at less compute than that of the next smaller sizes")
    if n := found.n_crossings_missing:
        parts.append(
            f"{counted(n, 'further pair')} of sizes did not cross, so the law rests on the pairs that "
            "did, which noise may have selected"
        )
    return [f"{name_of(group)}: {'; '.join(parts)}"] if parts else []


def _optimum_text(fits: StudyFits) -> str:
    laws = [fit.law(N_OPT) for fit, _ in envelopes(fits)]
    if not laws:
        return "a and b: nothing was fitted."
    method = laws[0].method if fits.seed_noise else laws[0].method.removesuffix(f", {FIELLER}")
    return f"a and b: {method}. Estimand: {laws[0].estimand}."


def interval_text(fits: StudyFits) -> str:
    made, noise = fits.intervals, fits.seed_noise
    alone = [run for one in fits.not_paired for run in one.runs]
    others = f" No seeds of other runs of their size, and no part of that: {', '.join(alone)}." if alone else ""
    if noise is None:
        return f"Intervals: {made.method}.{others}"
    return (
        f"Intervals: {made.level:.0%}. Those of alpha and beta: {made.method}, {made.replicates} "
        f"replicates; estimand: {made.estimand}. Seed noise: {noise_text(noise)}; "
        f"along a curve its correlation over a factor e of compute is {noise.correlation:.2f}."
        f"{_shared_text(noise.shared_batches)}{others}"
    )


def _shared_text(shared: float | None) -> str:
    if shared is None:
        return ""
    return (
        " Seeds of one number read the same text in every architecture: how they lie apart is correlated "
        f"({shared:.2f}), and counts for fewer degrees of freedom."
    )


def extrapolation_text(fits: StudyFits) -> str:
    fitted = [span for fit, _ in envelopes(fits) if (span := fit.law(L_OPT).range) is not None]
    if not fitted:
        return "Nothing was fitted."
    low, high = min(r[0] for r in fitted), max(r[1] for r in fitted)
    return (
        f"The laws of L rest on {power_of_ten(low)} to {power_of_ten(high)} FLOP, those of N_opt and D_opt on ranges "
        f"of their own (see the diagnostics). Every value outside, also a coefficient at C = 1 FLOP, is an "
        f"extrapolation, and an interval over seeds does not cover its error."
    )
