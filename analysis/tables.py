"""The fits as rows of text: for the terminal and for the report. Rounded here and nowhere else."""

from __future__ import annotations

import math
from typing import Any

from scipy import stats

from analysis.axes import power_of_ten
from analysis.fits.laws import CURVED, is_curved
from analysis.fits.optimum import FIELLER
from analysis.fits.optimum import METHOD as CROSSINGS

NO_POWER_LAW = f"({CURVED})"

HEADINGS = {
    "arch": "architecture",
    "alpha": "alpha (L exponent)",
    "beta": "beta (L at C = 1 FLOP)",
    "a": "a (N_opt exponent)",
    "b": "b (D_opt exponent)",
    "r2": "R^2 of L",
    "decades": "decades of C",
}


def laws_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """One row an architecture, keys of HEADINGS: L = beta C^alpha, N_opt ~ C^a, D_opt ~ C^b, with [low, high]."""
    rows = []
    for arch, one in fits["archs"].items():
        if not one["fitted"]:
            rows.append({"arch": arch} | dict.fromkeys(list(HEADINGS)[1:], "not fitted"))
            continue
        laws = one["laws"]
        r2 = laws["loss"]["r2"]
        rows.append(
            {
                "arch": arch,
                "alpha": estimate(laws["loss"], "exponent") + (f" {NO_POWER_LAW}" if is_curved(laws["loss"]) else ""),
                "beta": estimate(laws["loss"], "coef"),
                "a": estimate(laws["n_opt"], "exponent"),
                "b": estimate(laws["d_opt"], "exponent"),
                "r2": "" if r2 is None else f"{r2:.4f}",
                "decades": f"{one['diagnostics']['decades']:.2f}",
            }
        )
    return rows


def optimum_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """a and b from the crossings of neighbouring sizes and from the envelope's points, a row an architecture."""
    rows = []
    for arch, one in fits["archs"].items():
        if not one["fitted"]:
            continue
        by_method = {law["n_opt"]["method"] == CROSSINGS: law for law in (one["laws"], one["beside"])}
        row = {"architecture": arch}
        for name, is_crossings in (("crossings", True), ("envelope points", False)):
            laws = by_method[is_crossings]
            row |= {
                f"a, {name}": estimate(laws["n_opt"], "exponent"),
                f"b, {name}": estimate(laws["d_opt"], "exponent"),
            }
        found = one["diagnostics"]
        row["crossings (missing)"] = f"{found['n_crossings']} ({found['n_crossings_missing']})"
        row["extrapolated, out of order"] = f"{found['n_crossings_extrapolated']}, {found['n_crossings_disordered']}"
        misfit = by_method[True]["n_opt"]["misfit"]
        row["chance of their scatter"] = "" if not misfit or misfit["chance"] is None else f"{misfit['chance']:.2f}"
        rows.append(row)
    return rows


def curvature_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """Whether a pure power law describes L(C), and what the test could see, a row an architecture."""
    rows = []
    for arch, one in fits["archs"].items():
        told = one["laws"]["loss"].get("curvature") if one["fitted"] else None
        if told is None:
            continue
        row = {"architecture": arch}
        if not told["tested"]:
            off = f"{one['laws']['loss']['off_line']:.1%}"
            missed = (
                f"does not describe this curve: its points lie {off} off the line" if told["found"] else "not tested"
            )
            rows.append(row | {"a pure power law": f"{missed}; {told['reason']}"})
            continue
        verdict = f"does not describe this curve ({told['shape']})" if told["found"] else "not refuted"
        visible = told["visible"]
        rows.append(
            row
            | {
                "a pure power law": verdict,
                "it leans": _lean(told),
                "chance of as much that way": f"{_chance(one['laws']['loss']):.3f}",
                "quadratic term of log L": f"{told['quadratic']:+.2e}",
                "of the envelope's steps": f"{told['steps']:+.2e}",
                "power: irreducible loss of half the lowest": f"{told['power_half']:.2f}",
                "irreducible loss seen with power 0.8 (nats/token)": "none" if visible is None else f"{visible:.2f}",
            }
        )
    return rows


def conventions_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """Exponents and coefficients under every FLOP convention, a row for each (architecture, convention)."""
    other = "envelope points" if fits["settings"]["optimum"] == "crossings" else "crossings"
    return [
        {
            "architecture": arch,
            "C": convention,
            "range of C (FLOP)": " – ".join(power_of_ten(value) for value in one["range"]),
            "alpha": estimate(one["loss"], "exponent") + (f" {NO_POWER_LAW}" if one["loss"]["curved"] else ""),
            "beta": estimate(one["loss"], "coef"),
            "a": estimate(one["n_opt"], "exponent"),
            "N_opt at C = 1": estimate(one["n_opt"], "coef"),
            "b": estimate(one["d_opt"], "exponent"),
            "D_opt at C = 1": estimate(one["d_opt"], "coef"),
            f"a, {other}": estimate(one["beside"]["n_opt"], "exponent"),
            f"b, {other}": estimate(one["beside"]["d_opt"], "exponent"),
        }
        for arch in fits["archs"]
        for convention, archs in fits["by_convention"].items()
        if (one := archs.get(arch)) is not None
    ]


def diagnostics_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """What says when not to believe a law, a row an architecture."""
    rows = []
    for arch, one in fits["archs"].items():
        if not one["fitted"]:
            continue
        found = one["diagnostics"]
        owners = [f"{o['size']} {o['n_uncensored']}/{o['n_points']}" for o in found["owners"] if o["n_points"]]
        censored, flat, ends = found["fraction_censored"], found["flatness"], found["compute_identity"]
        rows.append(
            {
                "architecture": arch,
                "runs": str(one["n_runs"]),
                "range of C (FLOP)": " – ".join(power_of_ten(value) for value in one["range"]),
                "loss falls over": f"{found.get('falling_decades', 0):.2f} decades",
                "points (uncovered)": f"{found['n_points']} ({found['n_uncovered']})",
                "not in L(C): no size near the optimal one": str(one["laws"]["loss"]["n_outside"]),
                "censored": "" if censored is None else f"{censored:.0%}",
                "owners: uncensored/points": ", ".join(owners),
                "range of N_opt, D_opt": _range(one["laws"]["n_opt"]),
                "a + b": _number(found["a_plus_b"]),
                "a p + b - 1": _number(found["cost_identity"], "+.1e"),
                "6 N D / C at the ends": "" if ends is None else f"{ends[0]:.2f}, {ends[1]:.2f}",
                "N within 0.5% of min loss": "" if flat is None else f"x {flat:.2f}",
            }
        )
    return rows


def notes(fits: dict[str, Any]) -> list[str]:
    """Lines that belong under the table of laws: the interval's method, and why something is not a number."""
    lines = [interval_text(fits)]
    moved = {arch: one["laws"]["loss"].get("level_bias") for arch, one in fits["archs"].items() if one["fitted"]}
    if told := ", ".join(f"{arch} {math.expm1(bias):+z.2%}" for arch, bias in moved.items() if bias is not None):
        lines.append(
            f"the lowest of several curves that chance has moved lies too low: by simulation the level of L is off by "
            f"{told}. Its interval (beta, the band) is corrected for that, the line is not: it follows the envelope, "
            f"and need not lie in the middle of its band"
        )
    lines.append(_optimum_text(fits))
    lines += [*fits.get("warnings", []), *_common_lean(fits)]
    lines += [f"{one['run_id']}: left out, as no run can have written them: {one['why']}" for one in fits["skipped"]]
    for arch, one in fits["archs"].items():
        if not one["fitted"]:
            lines.append(f"{arch}: not fitted: {one['reason']}")
            continue
        for law, name in (("loss", "alpha, beta"), ("n_opt", "a, b")):
            if not one["laws"][law]["identified"]:
                lines.append(f"{arch}: {name} not identified: {one['laws'][law]['reason']}")
        lines += _curvature_notes(arch, one["laws"]["loss"])
        if one["laws"]["n_opt"]["identified"] and one["laws"]["n_opt"]["method"] == CROSSINGS:
            lines += _crossings_note(arch, one["diagnostics"])
        misfit = one["laws"]["n_opt"].get("misfit")
        if misfit and misfit["scale"] > 1:
            lines.append(
                f"{arch}: the crossings scatter more than seeds explain (chance {misfit['chance']:.3f}); the intervals "
                f"of a and b take {misfit['scale']:.2f} times the seed noise"
            )
        lost, total = (one["laws"]["n_opt"].get(key) for key in ("replicates_not_identified", "replicates"))
        if lost:
            what = "the interval is of the others" if one["laws"]["n_opt"]["interval"] else "too many for an interval"
            lines.append(f"{arch}: a, b were not identified in {lost} of {total} replicates; {what}")
        for run in one["left_out"]:
            lines.append(f"{run['run_id']}: left out, {run['state']}" + (f": {run['reason']}" if run["reason"] else ""))
    return lines


def _curvature_notes(arch: str, loss: dict[str, Any]) -> list[str]:
    told = loss.get("curvature")
    if not told:
        return []
    if not told["tested"]:
        if told["found"]:
            return [
                f"{arch}: a pure power law does not describe this curve: its points lie {loss['off_line']:.1%} off the "
                f"line; no interval is given for it ({told['reason']})"
            ]
        return [f"{arch}: whether L(C) is a power law was not tested: {told['reason']}"]
    seen = "none" if told["visible"] is None else f"one of {told['visible']:.2f} nats/token"
    if told["found"]:
        why = "as an irreducible loss makes it" if told["shape"] == "convex" else "which no irreducible loss makes"
        return [
            f"{arch}: a pure power law does not describe this curve: it is {told['shape']}, {why} (chance of this "
            f"under a power law: {_chance(loss):.3f}); no interval is given for it"
        ]
    return [
        f"{arch}: no bend of L(C) was found (it leans {_lean(told)}, by what noise does with a chance of "
        f"{_chance(loss):.2f}); the test finds an irreducible loss of half the lowest loss in {told['power_half']:.0%} "
        f"of such studies, and with 80% chance {seen}"
    ]


def _lean(told: dict[str, Any]) -> str:
    return "concave" if told["p_value"] > 0.5 else "convex"


def _chance(loss: dict[str, Any]) -> float:
    """Of a bend as large to its side under a pure power law; no less than the replicates can tell."""
    p = loss["curvature"]["p_value"]
    return float(max(min(p, 1 - p), 1 / (loss["replicates"] + 1)))


def _common_lean(fits: dict[str, Any]) -> list[str]:
    """A line where all architectures' curves lean one way, together by more than chance (Stouffer's sum, 1%)."""
    tested = [
        one["laws"]["loss"] for one in fits["archs"].values() if one["fitted"] and one["laws"]["loss"]["identified"]
    ]
    tested = [loss for loss in tested if loss["curvature"]["tested"]]
    leans = {_lean(loss["curvature"]) for loss in tested}
    if len(tested) < 2 or len(leans) != 1:
        return []
    chance = float(stats.norm.sf(sum(stats.norm.isf(_chance(loss)) for loss in tested) / math.sqrt(len(tested))))
    if chance >= 0.01:
        return []
    lean = leans.pop()
    why = "an irreducible loss" if lean == "convex" else "learning rates or budgets that suit some sizes better"
    return [f"the curves of all {len(tested)} architectures lean {lean} (together by a chance of {chance:.1g}): {why}?"]


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
    return [f"{arch}: of {found['n_crossings']} crossings {', '.join(told)}"] if told else []


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
        f"the laws rest on {power_of_ten(low)} to {power_of_ten(high)} FLOP, those of N_opt and D_opt on less (the "
        f"table of diagnostics says what); every number outside, coefficients at C = 1 FLOP included, is an "
        f"extrapolation, and an interval over seeds does not cover its error"
    )


def estimate(law: dict[str, Any], what: str) -> str:
    """`exponent` or `coef` of a law with its interval, or `not identified`."""
    if not law["identified"]:
        return "not identified"
    form = ".4g" if what == "coef" else ".4f"
    interval = law["interval"]
    tail = f" [{interval[what][0]:{form}}, {interval[what][1]:{form}}]" if interval else ""
    return f"{law[what]:{form}}{tail}"


def _range(law: dict[str, Any]) -> str:
    return " – ".join(power_of_ten(value) for value in law["range"]) if law["identified"] else "not identified"


def _number(value: float | None, form: str = ".4f") -> str:
    return "" if value is None else format(value, form)
