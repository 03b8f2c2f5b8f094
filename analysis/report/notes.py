"""What belongs under the tables of the fits, in lines: why something is no number, and how numbers came about."""

from __future__ import annotations

import math
from typing import Any

from scipy import stats

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.optimum import FIELLER
from analysis.fits.optimum import METHOD as CROSSINGS


def notes(fits: dict[str, Any]) -> list[str]:
    """All of them, for a reader who has the tables alone."""
    lines = [*method_notes(fits), *law_notes(fits), *common_lean(fits)]
    for arch, loss in _fitted(fits, "loss"):
        if not loss["curved"]:
            lines += _curvature_notes(arch, loss)
    return [*lines, *crossing_notes(fits)]


def law_notes(fits: dict[str, Any]) -> list[str]:
    """Under the table of laws: what is missing or does not hold in it, and why."""
    lines = list(fits.get("warnings", []))
    for arch, one in fits["archs"].items():
        if not one["fitted"]:
            lines.append(f"{name_of(arch)}: not fitted: {one['reason']}")
            continue
        for law, name in (("loss", "alpha, beta"), ("n_opt", "a, b")):
            if not one["laws"][law]["identified"]:
                lines.append(f"{name_of(arch)}: {name} not identified: {one['laws'][law]['reason']}")
        if one["laws"]["loss"]["curved"]:
            lines += _curvature_notes(arch, one["laws"]["loss"])
            if one["laws"]["loss"]["steep_early"] and not one["range_stated"]:
                lines.append(
                    f"{name_of(arch)}: the curve is steep early on: state fit.range.{arch} in the study file to leave "
                    f"that out, from about where the two smallest sizes cross to where the largest ones end; where "
                    f"it is convex still, it is no power law"
                )
        misfit = one["laws"]["n_opt"].get("misfit")
        if misfit and misfit["scale"] > 1:
            lines.append(
                f"{name_of(arch)}: the crossings scatter more than seeds explain (chance {misfit['chance']:.3f}); the "
                f"intervals of a and b take {misfit['scale']:.2f} times the seed noise"
            )
        for run in one["left_out"]:
            lines.append(f"{run['run_id']}: left out, {run['state']}" + (f": {run['reason']}" if run["reason"] else ""))
    return lines + [
        f"{one['run_id']}: rows left out, as the run cannot have written them: {one['why']}" for one in fits["skipped"]
    ]


def crossing_notes(fits: dict[str, Any]) -> list[str]:
    """Under the table of crossings: what weakens them."""
    lines = []
    for arch, law in _fitted(fits, "n_opt"):
        if law["identified"] and law["method"] == CROSSINGS:
            lines += _crossings_note(arch, fits["archs"][arch]["diagnostics"])
    return lines


def method_notes(fits: dict[str, Any]) -> list[str]:
    """How the intervals and the optimum were made."""
    lines = [interval_text(fits)]
    moved = {arch: loss.get("level_bias") for arch, loss in _fitted(fits, "loss")}
    if told := ", ".join(
        f"{name_of(arch)} {math.expm1(bias):+z.2%}" for arch, bias in moved.items() if bias is not None
    ):
        lines.append(
            f"the lowest of several curves that chance has moved lies too low: by simulation the level of L is off by "
            f"{told}. Its interval (beta, the band) is corrected for that, the line is not: it follows the envelope, "
            f"and need not lie in the middle of its band"
        )
    return [*lines, _optimum_text(fits)]


def _fitted(fits: dict[str, Any], law: str) -> list[tuple[str, dict[str, Any]]]:
    """(architecture, its law) of those that were fitted."""
    return [(arch, one["laws"][law]) for arch, one in fits["archs"].items() if one["fitted"]]


def _curvature_notes(arch: str, loss: dict[str, Any]) -> list[str]:
    told = loss.get("curvature")
    if not told:
        return []
    if told["shape"] == "ragged":
        why = "" if told["tested"] else f" ({told['reason']})"
        return [
            f"{name_of(arch)}: a pure power law does not describe this curve: its points lie "
            f"{math.expm1(loss['off_line']):.1%} off the line; no interval and no loss by it is given{why}"
        ]
    if not told["tested"]:
        return [f"{name_of(arch)}: whether L(C) is a power law was not tested: {told['reason']}"]
    seen = "none" if told["visible"] is None else f"one of {told['visible']:.2f} nats/token"
    if told["found"]:
        why = "as an irreducible loss makes it" if told["shape"] == "convex" else "which no irreducible loss makes"
        return [
            f"{name_of(arch)}: a pure power law does not describe this curve: it is {told['shape']}, {why} (chance of "
            f"this under a power law: {chance(loss):.3f}), its points lie {math.expm1(loss['off_line']):.1%} off the "
            f"line; no interval and no loss by it is given"
        ]
    return [
        f"{name_of(arch)}: no bend of L(C) was found (it leans {lean(told)}, by what noise does with a chance of "
        f"{chance(loss):.2f}); the test finds an irreducible loss of half the lowest loss in {told['power_half']:.0%} "
        f"of such studies, and with 80% chance {seen}"
    ]


def lean(told: dict[str, Any]) -> str:
    return "concave" if told["p_value"] > 0.5 else "convex"


def chance(loss: dict[str, Any]) -> float:
    """Of a bend as large to its side under a pure power law; no less than the replicates can tell."""
    p = loss["curvature"]["p_value"]
    return float(max(min(p, 1 - p), 1 / (loss["replicates"] + 1)))


def common_lean(fits: dict[str, Any]) -> list[str]:
    """A line where all architectures' curves lean one way, together by more than chance (Stouffer's sum, 1%)."""
    tested = [
        one["laws"]["loss"] for one in fits["archs"].values() if one["fitted"] and one["laws"]["loss"]["identified"]
    ]
    tested = [loss for loss in tested if loss["curvature"]["tested"]]
    leans = {lean(loss["curvature"]) for loss in tested}
    if len(tested) < 2 or len(leans) != 1:
        return []
    together = float(stats.norm.sf(sum(stats.norm.isf(chance(loss)) for loss in tested) / math.sqrt(len(tested))))
    if together >= 0.01:
        return []
    side = leans.pop()
    why = "an irreducible loss" if side == "convex" else "learning rates or budgets that suit some sizes better"
    return [
        f"the curves of all {len(tested)} architectures lean {side} (together by a chance of {together:.1g}): {why}?"
    ]


def _crossings_note(arch: str, found: dict[str, Any]) -> list[str]:
    """What weakens an architecture's crossings, in one line; none where nothing does."""
    told = [
        f"{found[key]} {what}"
        for key, what in (
            ("n_crossings_extrapolated", "lie beyond what was compared"),
            ("n_crossings_disordered", "come before that of the next smaller sizes"),
            ("n_crossings_missing", "more were not reached, which leaves the law to those that noise brought near"),
        )
        if found[key]
    ]
    return [f"{name_of(arch)}: of {found['n_crossings']} crossings {', '.join(told)}"] if told else []


def _optimum_text(fits: dict[str, Any]) -> str:
    laws = [one["laws"]["n_opt"] for one in fits["archs"].values() if one["fitted"]]
    if not laws:
        return "a, b: nothing was fitted"
    method = laws[0]["method"] if fits["interval"]["seed_noise"] else laws[0]["method"].removesuffix(f", {FIELLER}")
    return f"a, b: {method}; estimand: {laws[0]['estimand']}"


def interval_text(fits: dict[str, Any]) -> str:
    interval = fits["interval"]
    if interval["seed_noise"] is None:
        return f"intervals: {interval['method']}"
    noise = interval["seed_noise"]
    return (
        f"intervals: {interval['level']:.0%}; of alpha and beta: {interval['method']}, {interval['replicates']} "
        f"replicates; estimand: {interval['estimand']}; seed noise {noise['s']:.2%} of the loss with {noise['df']} "
        f"degrees of freedom, correlated by {noise['correlation']:.2f} along a curve over a factor e of compute"
    )


def extrapolation_text(fits: dict[str, Any]) -> str:
    losses = [one["laws"]["loss"] for one in fits["archs"].values() if one["fitted"]]
    fitted = [loss["range"] for loss in losses if loss["identified"]]
    if not fitted:
        return "nothing was fitted"
    low, high = min(r[0] for r in fitted), max(r[1] for r in fitted)
    return (
        f"the laws of L rest on {power_of_ten(low)} to {power_of_ten(high)} FLOP in all, those of N_opt and D_opt on "
        f"ranges of their own (table of diagnostics); every number outside, coefficients at C = 1 FLOP included, is an "
        f"extrapolation, and an interval over seeds does not cover its error"
    )
