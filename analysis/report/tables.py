"""The fits as rows of text, for the terminal, the report and the notebook. Values are rounded here alone."""

from __future__ import annotations

import math
from typing import Any

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.envelope.optimum import METHOD as CROSSINGS
from analysis.pages.cells import NONE, number, shown, signed
from analysis.report.notes import chance, lean
from analysis.units import unit_of

NO_POWER_LAW = "no power law"
MANY = 0.1  # of the replicates: from this share on the cell says how many failed

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
            rows.append({"arch": name_of(arch)} | dict.fromkeys(list(HEADINGS)[1:], "not fitted"))
            continue
        laws = one["laws"]
        r2 = laws["loss"]["r2"]
        rows.append(
            {
                "arch": name_of(arch),
                "alpha": of_loss(laws["loss"], "exponent"),
                "beta": of_loss(laws["loss"], "coef"),
                "a": estimate(laws["n_opt"], "exponent"),
                "b": estimate(laws["d_opt"], "exponent"),
                "r2": shown(r2, ".4f"),
                "decades": shown(one["diagnostics"]["decades"], ".2f"),
            }
        )
    return rows


def short_laws_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """`laws_table` for a terminal: three digits, and no coefficients."""
    rows = []
    for arch, one in fits["archs"].items():
        row = {"architecture": name_of(arch)} | dict.fromkeys(("alpha", "a (N_opt)", "b (D_opt)", "R^2", "decades"), "")
        if not one["fitted"]:
            rows.append(row | {"alpha": "not fitted"})
            continue
        loss, n_opt, d_opt = (one["laws"][law] for law in ("loss", "n_opt", "d_opt"))
        row["alpha"] = of_loss(loss, "exponent", ".3f")
        row |= {"a (N_opt)": estimate(n_opt, "exponent", ".2f"), "b (D_opt)": estimate(d_opt, "exponent", ".2f")}
        row |= {"R^2": "" if loss["r2"] is None else f"{loss['r2']:.3f}"}
        rows.append(row | {"decades": f"{one['diagnostics']['decades']:.2f}"})
    return rows


def optimum_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """a and b from the crossings of neighbouring sizes and from the points of the envelope, a row an architecture."""
    rows = []
    for arch, one in fits["archs"].items():
        if not one["fitted"]:
            continue
        by_method = {law["n_opt"]["method"] == CROSSINGS: law for law in (one["laws"], one["alternative"])}
        row = {"architecture": name_of(arch)}
        for name, is_crossings in (("crossings", True), ("envelope points", False)):
            laws = by_method[is_crossings]
            row |= {
                f"a ({name})": estimate(laws["n_opt"], "exponent"),
                f"b ({name})": estimate(laws["d_opt"], "exponent"),
            }
        found = one["diagnostics"]
        row["crossings"] = str(found["n_crossings"])
        row["pairs without one"] = str(found["n_crossings_missing"])
        row["extrapolated"] = str(found["n_crossings_extrapolated"])
        row["out of order"] = str(found["n_crossings_disordered"])
        misfit = by_method[True]["n_opt"]["misfit"]
        row["p of their scatter"] = shown(misfit["chance"], ".2f") if misfit else ""
        rows.append(row)
    return rows


def curvature_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """Whether a pure power law describes L(C), and what the test could see, a row an architecture."""
    rows = []
    for arch, one in fits["archs"].items():
        told = one["laws"]["loss"].get("curvature") if one["fitted"] else None
        if told is None:
            continue
        row = {"architecture": name_of(arch)}
        if not told["tested"]:
            off = f"{math.expm1(one['laws']['loss']['off_line']):.1%}"
            missed = f"{'does not fit' if told['found'] else 'not tested'}: the points lie {off} off the line"
            rows.append(row | {"power law?": f"{missed}; {told['reason']}"})
            continue
        verdict = "does not fit" if told["found"] else "not refuted"
        visible = told["visible"]
        rows.append(
            row
            | {
                "power law?": verdict,
                "shape in log-log": lean(told) if told["shape"] != "ragged" else "ragged",
                "p of this bend": shown(chance(one["laws"]["loss"]), ".3f"),
                "quadratic term of log L": signed(told["quadratic"], ".2e"),
                "quadratic term of the steps (subtracted)": signed(told["steps"], ".2e"),
                "power against an irreducible loss of half the lowest": shown(told["power_half"], ".2f"),
                f"irreducible loss found with power 0.8 ({unit_of(fits)})": "none"
                if visible is None
                else shown(visible, ".2f"),
            }
        )
    return rows


def conventions_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """Exponents and coefficients under every FLOP convention, a row for each (architecture, convention)."""
    other = "envelope points" if fits["settings"]["optimum"] == "crossings" else "crossings"
    return [
        {
            "architecture": name_of(arch),
            "C": convention,
            "range of L (FLOP)": _range(one["loss"]),
            "alpha": of_loss(one["loss"], "exponent"),
            "beta": of_loss(one["loss"], "coef"),
            "a": estimate(one["n_opt"], "exponent"),
            "N_opt at C = 1": estimate(one["n_opt"], "coef"),
            "b": estimate(one["d_opt"], "exponent"),
            "D_opt at C = 1": estimate(one["d_opt"], "coef"),
            f"a ({other})": estimate(one["alternative"]["n_opt"], "exponent"),
            f"b ({other})": estimate(one["alternative"]["d_opt"], "exponent"),
        }
        for arch in fits["archs"]
        for convention, archs in fits["by_convention"].items()
        if (one := archs.get(arch)) is not None
    ]


def diagnostics_table(fits: dict[str, Any]) -> list[dict[str, str]]:
    """The diagnostics of the laws, a row an architecture."""
    rows = []
    for arch, one in fits["archs"].items():
        if not one["fitted"]:
            continue
        found = one["diagnostics"]
        owners = [f"{o['size']} {o['n_uncensored']}/{o['n_points']}" for o in found["owners"] if o["n_points"]]
        censored, flat, ends = found["fraction_censored"], found["flatness"], found["compute_identity"]
        rows.append(
            {
                "architecture": name_of(arch),
                "runs": str(one["n_runs"]),
                "range of L (FLOP)": _range(one["laws"]["loss"]),
                "loss falls over (decades)": shown(found.get("falling_decades", 0.0), ".2f"),
                "points of the envelope": str(found["n_points"]),
                "without a curve": str(found["n_uncovered"]),
                "points left out of L(C)": str(one["laws"]["loss"]["n_outside"]),
                "censored": shown(censored, ".0%"),
                "uncensored/all points by size": ", ".join(owners),
                "range of N_opt, D_opt (FLOP)": _range(one["laws"]["n_opt"]),
                "a + b": shown(found["a_plus_b"], ".4f"),
                "a p + b - 1": shown(found["cost_identity"], "+.1e"),
                "6 N D / C at the ends": "" if ends is None else f"{ends[0]:.2f}, {ends[1]:.2f}",
                "sizes within 0.5% of the lowest loss": "" if flat is None else number(f"x {flat:.2f}", flat),
            }
        )
    return rows


def of_loss(law: dict[str, Any], what: str, form: str | None = None) -> str:
    """`estimate` of L(C), marked where it is no power law."""
    return estimate(law, what, form, NO_POWER_LAW if law["curved"] else "")


def estimate(law: dict[str, Any], what: str, form: str | None = None, note: str = "") -> str:
    """`exponent` or `coef` of a law with its interval and notes (on failed replicates), or `not identified`."""
    if not law["identified"]:
        return "not identified"
    form = form or (".4g" if what == "coef" else ".4f")
    interval = law["interval"]
    notes = ", ".join(filter(None, (failed(law), note)))
    return shown(law[what], form, interval[what] if interval else None, notes)


def failed(law: dict[str, Any]) -> str:
    """Of an interval of which many replicates could not be fitted, how many; "" where few failed."""
    lost, total = law.get("replicates_not_identified"), law.get("replicates")
    share = lost / total if lost and total else 0.0
    if share < MANY:
        return ""
    return f"{'' if law['interval'] else 'no interval: '}{share:.0%} of replicates failed"


def _range(law: dict[str, Any]) -> str:
    if not law["identified"]:
        return "not identified"
    return number(" – ".join(power_of_ten(value) for value in law["range"]), NONE, law["range"])
