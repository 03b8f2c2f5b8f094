"""The fits as rows of text, for the terminal, the report and the notebook. Values are rounded here alone."""

from __future__ import annotations

import math

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.crossings import METHOD as CROSSINGS
from analysis.fits.fit import D_OPT, L_OPT, N_OPT, Law
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import NONE, number, shown
from analysis.report.notes import chance, envelopes, lean
from analysis.run_table import CONVENTIONS

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


def laws_table(fits: StudyFits) -> list[dict[str, str]]:
    """One row an architecture, keys of HEADINGS: L = beta C^alpha, N_opt ~ C^a, D_opt ~ C^b, with [low, high]."""
    rows = []
    for group in fits.groups:
        fit = fits.envelope(group.name)
        if fit is None or fit.envelope is None:
            rows.append({"arch": name_of(group.name)} | dict.fromkeys(list(HEADINGS)[1:], "not fitted"))
            continue
        loss = fit.law(L_OPT)
        rows.append(
            {
                "arch": name_of(group.name),
                "alpha": of_loss(loss, "exponent"),
                "beta": of_loss(loss, "coefficient"),
                "a": estimate(fit.law(N_OPT), "exponent"),
                "b": estimate(fit.law(D_OPT), "exponent"),
                "r2": shown(loss.r2, ".4f"),
                "decades": shown(loss.decades, ".2f"),
            }
        )
    return rows


def short_laws_table(fits: StudyFits) -> list[dict[str, str]]:
    """`laws_table` for a terminal: three digits, and no coefficients."""
    rows = []
    for group in fits.groups:
        row = {"architecture": name_of(group.name)}
        row |= dict.fromkeys(("alpha", "a (N_opt)", "b (D_opt)", "R^2", "decades"), "")
        fit = fits.envelope(group.name)
        if fit is None or fit.envelope is None:
            rows.append(row | {"alpha": "not fitted"})
            continue
        loss = fit.law(L_OPT)
        row["alpha"] = of_loss(loss, "exponent", ".3f")
        row["a (N_opt)"] = estimate(fit.law(N_OPT), "exponent", ".2f")
        row["b (D_opt)"] = estimate(fit.law(D_OPT), "exponent", ".2f")
        row |= {"R^2": "" if loss.r2 is None else f"{loss.r2:.3f}"}
        rows.append(row | {"decades": f"{loss.decades:.2f}"})
    return rows


def optimum_table(fits: StudyFits) -> list[dict[str, str]]:
    """a and b from the crossings of neighbouring sizes and from the points of the envelope, or of its hull, a row an
    architecture."""
    rows = []
    for fit, found in envelopes(fits):
        own, other = {law.quantity: law for law in fit.laws}, {law.quantity: law for law in found.alternative}
        crossings, points = (own, other) if own[N_OPT].method == CROSSINGS else (other, own)
        row = {"architecture": name_of(fit.group)}
        for name, laws in (("crossings", crossings), (_of_points(fits), points)):
            row[f"a ({name})"] = estimate(laws[N_OPT], "exponent")
            row[f"b ({name})"] = estimate(laws[D_OPT], "exponent")
        row["crossings"] = str(found.n_crossings)
        row["pairs without one"] = str(found.n_crossings_missing)
        row["extrapolated"] = str(found.n_crossings_extrapolated)
        row["out of order"] = str(found.n_crossings_disordered)
        misfit = crossings[N_OPT].misfit
        row["p of their scatter"] = shown(misfit.chance, ".2f") if misfit else ""
        rows.append(row)
    return rows


def curvature_table(fits: StudyFits) -> list[dict[str, str]]:
    """Whether a pure power law describes L(C), and what the test could see, a row an architecture."""
    rows = []
    for fit, _ in envelopes(fits):
        loss = fit.law(L_OPT)
        about = loss.about_loss
        if about is None or about.curvature is None:
            continue
        row, bend = {"architecture": name_of(fit.group)}, about.curvature
        if not bend.tested:
            off = f"{math.expm1(about.off_line or 0.0):.1%}"
            missed = f"{'does not fit' if bend.found else 'not tested'}: the points lie {off} off the line"
            rows.append(row | {"power law?": f"{missed}; {bend.reason}"})
            continue
        rows.append(
            row
            | {
                "power law?": "does not fit" if bend.found else "not refuted",
                "shape in log-log": lean(bend) if bend.shape != "ragged" else "ragged",
                "p of this bend": shown(chance(loss), ".3f"),
                "power against an irreducible loss of half the lowest": shown(bend.power_half, ".2f"),
            }
        )
    return rows


def _of_points(fits: StudyFits) -> str:
    return "hull" if fits.settings.optimum == "hull" else "envelope points"


def conventions_table(fits: StudyFits) -> list[dict[str, str]]:
    """Exponents and coefficients under every FLOP convention, a row for each (architecture, convention)."""
    other = _of_points(fits) if fits.settings.optimum == "crossings" else "crossings"
    rows = []
    for group in fits.groups:
        for convention in CONVENTIONS:
            fit = fits.envelope(group.name, convention)
            if fit is None or fit.envelope is None:
                continue
            loss, n_opt, d_opt = fit.law(L_OPT), fit.law(N_OPT), fit.law(D_OPT)
            row = {"architecture": name_of(group.name), "C": convention, "range of L (FLOP)": _range(loss)}
            row |= {"alpha": of_loss(loss, "exponent"), "beta": of_loss(loss, "coefficient")}
            row |= {"a": estimate(n_opt, "exponent"), "N_opt at C = 1": estimate(n_opt, "coefficient")}
            row |= {"b": estimate(d_opt, "exponent"), "D_opt at C = 1": estimate(d_opt, "coefficient")}
            for name, law in zip("ab", fit.envelope.alternative, strict=True):
                row[f"{name} ({other})"] = estimate(law, "exponent")
            rows.append(row)
    return rows


def diagnostics_table(fits: StudyFits) -> list[dict[str, str]]:
    """The diagnostics of the laws, a row an architecture."""
    rows = []
    for fit, found in envelopes(fits):
        loss = fit.law(L_OPT)
        flat = found.flatness
        rows.append(
            {
                "architecture": name_of(fit.group),
                "runs": str(fits.group(fit.group).n_runs),
                "range of L (FLOP)": _range(loss),
                "points of the envelope": str(found.n_points),
                "without a curve": str(found.n_uncovered),
                "points left out of L(C)": str(loss.about_loss.n_outside if loss.about_loss else 0),
                "censored": shown(found.fraction_censored, ".0%"),
                "range of N_opt, D_opt (FLOP)": _range(fit.law(N_OPT)),
                "sizes within 0.5% of the lowest loss": "" if flat is None else number(f"x {flat:.2f}", flat),
            }
        )
    return rows


def of_loss(law: Law, what: str, form: str | None = None) -> str:
    """`estimate` of L(C), marked where it is no power law."""
    return estimate(law, what, form, NO_POWER_LAW if law.curved else "")


def estimate(law: Law, what: str, form: str | None = None, note: str = "") -> str:
    """`exponent` or `coefficient` of a law with its interval and notes (on failed replicates), or `not identified`."""
    if not law.identified:
        return "not identified"
    form = form or (".4g" if what == "coefficient" else ".4f")
    one = law.coefficient if what == "coefficient" else law.exponent
    return shown(one.value, form, one.ends, ", ".join(filter(None, (failed(law), note))))


def failed(law: Law) -> str:
    """Of an interval of which many replicates could not be fitted, how many; "" where few failed."""
    share = law.replicates_lost / law.replicates if law.replicates_lost and law.replicates else 0.0
    if share < MANY:
        return ""
    return f"{'' if law.exponent.interval else 'no interval: '}{share:.0%} of replicates failed"


def _range(law: Law) -> str:
    if law.range is None:
        return "not identified"
    return number(" – ".join(power_of_ten(value) for value in law.range), NONE, law.range)
