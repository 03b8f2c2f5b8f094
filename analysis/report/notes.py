"""The notes under the tables of the fits: why a value is missing, and how the values were estimated."""

from __future__ import annotations

import math
from typing import Any

from scipy import stats

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.envelope.optimum import FIELLER
from analysis.fits.envelope.optimum import METHOD as CROSSINGS
from analysis.labels import arch_of
from analysis.report.left_out import unused_lines
from analysis.report.noise import listed, noise_text
from analysis.units import unit_of
from arch.amounts import counted, counted_of


def notes(fits: dict[str, Any]) -> list[str]:
    """All of them, for a reader who has the tables alone."""
    lines = [*method_notes(fits), *law_notes(fits), *common_lean(fits)]
    for arch, loss in _fitted(fits, "loss"):
        if not loss["curved"]:
            lines += _curvature_notes(arch, loss, unit_of(fits))
    return [*lines, *crossing_notes(fits)]


def law_notes(fits: dict[str, Any]) -> list[str]:
    """Under the table of laws: what is missing or does not hold in it, and why."""
    lines, steep = list(fits.get("warnings", [])), []
    for arch, one in fits["archs"].items():
        if not one["fitted"]:
            lines.append(f"{name_of(arch)}: not fitted: {one['reason']}")
            continue
        for law, name in (("loss", "alpha, beta"), ("n_opt", "a, b")):
            if not one["laws"][law]["identified"]:
                lines.append(f"{name_of(arch)}: {name} not identified: {one['laws'][law]['reason']}")
        if one["laws"]["loss"]["curved"]:
            lines += _curvature_notes(arch, one["laws"]["loss"], unit_of(fits))
            if one["laws"]["loss"]["steep_early"] and not one["range_stated"]:
                steep.append(arch)
        misfit = one["laws"]["n_opt"].get("misfit")
        if misfit and misfit["scale"] > 1:
            lines.append(
                f"{name_of(arch)}: the crossings scatter more than seed noise explains (p = {misfit['chance']:.3f}); "
                f"the intervals of a and b are computed with {misfit['scale']:.2f} times the seed noise"
            )
    if steep:
        keys = listed([f"fit.range.{arch}" for arch in dict.fromkeys(arch_of(arch) for arch in steep)])
        lines.append(
            f"{listed([name_of(arch) for arch in steep])}: the loss falls faster at the start of the range. To leave "
            f"that part out, set {keys} in the study file, from about where the curves of the two smallest sizes "
            f"cross to where the curves of the largest sizes end. If the rest is still convex, it is no power law"
        )
    return lines + unused_lines(fits)


def crossing_notes(fits: dict[str, Any]) -> list[str]:
    """Under the table of crossings: what makes them less certain."""
    lines = []
    for arch, law in _fitted(fits, "n_opt"):
        if law["identified"] and law["method"] == CROSSINGS:
            lines += _crossings_note(arch, fits["archs"][arch]["diagnostics"])
    return lines


def crossing_reasons(fits: dict[str, Any]) -> list[str]:
    """Why pairs of neighbouring sizes have no crossing, a line a pair."""
    return [
        f"{name_of(arch)}, {' and '.join(pair['sizes'])}: {pair['reason']}"
        for arch, one in fits["archs"].items()
        for pair in (one["crossings"] if one["fitted"] else ())
        if pair["reason"]
    ]


def method_notes(fits: dict[str, Any]) -> list[str]:
    """How the intervals and the optimum were estimated."""
    lines = [interval_text(fits)]
    moved = {arch: loss.get("level_bias") for arch, loss in _fitted(fits, "loss")}
    if told := ", ".join(
        f"{name_of(arch)} {math.expm1(bias):+z.2%}" for arch, bias in moved.items() if bias is not None
    ):
        lines.append(
            f"The lowest of several noisy curves lies too low on average; by simulation this changes the level of L "
            f"by {told}. The interval of L (of beta, and the band) is corrected for it. The line is not: it follows "
            f"the envelope and need not lie in the middle of its band."
        )
    return [*lines, _optimum_text(fits)]


def _fitted(fits: dict[str, Any], law: str) -> list[tuple[str, dict[str, Any]]]:
    """(architecture, its law) of those that were fitted."""
    return [(arch, one["laws"][law]) for arch, one in fits["archs"].items() if one["fitted"]]


def _curvature_notes(arch: str, loss: dict[str, Any], unit: str) -> list[str]:
    told = loss.get("curvature")
    if not told:
        return []
    if told["shape"] == "ragged":
        why = "" if told["tested"] else f" ({told['reason']})"
        return [
            f"{name_of(arch)}: a pure power law does not describe this curve: its points lie "
            f"{math.expm1(loss['off_line']):.1%} off the line. The law has no interval and predicts no loss{why}"
        ]
    if not told["tested"]:
        return [f"{name_of(arch)}: it was not tested whether L(C) is a power law: {told['reason']}"]
    seen = "none" if told["visible"] is None else f"{told['visible']:.2f} {unit}"
    if told["found"]:
        why = "as with an irreducible loss" if told["shape"] == "convex" else "which no irreducible loss explains"
        return [
            f"{name_of(arch)}: a pure power law does not describe this curve: it is {told['shape']} in log-log, {why} "
            f"(p = {chance(loss):.3f}), and its points lie {math.expm1(loss['off_line']):.1%} off the line. The law "
            f"has no interval and predicts no loss"
        ]
    return [
        f"{name_of(arch)}: no bend of L(C) was found (the curve is slightly {lean(told)}, p = {chance(loss):.2f}). In "
        f"{told['power_half']:.0%} of such studies the test finds an irreducible loss of half the lowest loss; the "
        f"smallest one that it finds with a power of 0.8: {seen}"
    ]


def lean(told: dict[str, Any]) -> str:
    return "concave" if told["p_value"] > 0.5 else "convex"


def chance(loss: dict[str, Any]) -> float:
    """The p-value of a bend this large to its side under a pure power law; at least what the replicates resolve."""
    p = loss["curvature"]["p_value"]
    return float(max(min(p, 1 - p), 1 / (loss["replicates"] + 1)))


def common_lean(fits: dict[str, Any]) -> list[str]:
    """A line where the curves of all architectures bend the same way by more than chance (Stouffer's sum, 1%). The side
    is that of the curves, so chance has both: counted on one, 2% of studies of two straight curves had this line."""
    tested = [
        one["laws"]["loss"] for one in fits["archs"].values() if one["fitted"] and one["laws"]["loss"]["identified"]
    ]
    tested = [loss for loss in tested if loss["curvature"]["tested"]]
    leans = {lean(loss["curvature"]) for loss in tested}
    if len(tested) < 2 or len(leans) != 1:
        return []
    summed = sum(stats.norm.isf(chance(loss)) for loss in tested) / math.sqrt(len(tested))
    together = 2 * float(stats.norm.sf(summed))
    if together >= 0.01:
        return []
    side = leans.pop()
    why = "an irreducible loss" if side == "convex" else "learning rates or budgets that suit some sizes better"
    return [
        f"The curves of all {len(tested)} architectures are {side} to some degree (p = {together:.1g} for all of them "
        f"together). A possible cause: {why}."
    ]


def _crossings_note(arch: str, found: dict[str, Any]) -> list[str]:
    """What makes an architecture's crossings less certain, in one line; none where nothing does."""
    told, total = [], found["n_crossings"]
    if n := found["n_crossings_extrapolated"]:
        told.append(f"{counted_of(n, total, 'crossing', 'is', 'are')} extrapolated")
    if n := found["n_crossings_disordered"]:
        told.append(f"{n} of {total} {'lies' if n == 1 else 'lie'} at less compute than that of the next smaller sizes")
    if n := found["n_crossings_missing"]:
        told.append(
            f"{counted(n, 'further pair')} of sizes did not cross, so the law rests on the pairs that "
            "did, which noise may have selected"
        )
    return [f"{name_of(arch)}: {'; '.join(told)}"] if told else []


def _optimum_text(fits: dict[str, Any]) -> str:
    laws = [one["laws"]["n_opt"] for one in fits["archs"].values() if one["fitted"]]
    if not laws:
        return "a and b: nothing was fitted."
    method = laws[0]["method"] if fits["interval"]["seed_noise"] else laws[0]["method"].removesuffix(f", {FIELLER}")
    return f"a and b: {method}. Estimand: {laws[0]['estimand']}."


def interval_text(fits: dict[str, Any]) -> str:
    interval = fits["interval"]
    alone = [run for one in interval["not_paired"] for run in one["runs"]]
    others = f" No seeds of other runs of their size, and no part of that: {', '.join(alone)}." if alone else ""
    if interval["seed_noise"] is None:
        return f"Intervals: {interval['method']}.{others}"
    noise = interval["seed_noise"]
    return (
        f"Intervals: {interval['level']:.0%}. Those of alpha and beta: {interval['method']}, {interval['replicates']} "
        f"replicates; estimand: {interval['estimand']}. Seed noise: {noise_text(noise)}; "
        f"along a curve its correlation over a factor e of compute is {noise['correlation']:.2f}."
        f"{_shared_text(noise.get('shared_batches'))}{others}"
    )


def _shared_text(shared: float | None) -> str:
    if shared is None:
        return ""
    return (
        " Seeds of one number read the same text in every architecture: how they lie apart is correlated "
        f"({shared:.2f}), and counts for fewer degrees of freedom."
    )


def extrapolation_text(fits: dict[str, Any]) -> str:
    losses = [one["laws"]["loss"] for one in fits["archs"].values() if one["fitted"]]
    fitted = [loss["range"] for loss in losses if loss["identified"]]
    if not fitted:
        return "Nothing was fitted."
    low, high = min(r[0] for r in fitted), max(r[1] for r in fitted)
    return (
        f"The laws of L rest on {power_of_ten(low)} to {power_of_ten(high)} FLOP, those of N_opt and D_opt on ranges "
        f"of their own (see the diagnostics). Every value outside, also a coefficient at C = 1 FLOP, is an "
        f"extrapolation, and an interval over seeds does not cover its error."
    )
