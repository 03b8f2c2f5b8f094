"""An isoFLOP fit as every approach returns it: exponents, optima, budgets and the bias that was taken off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.isoflop.fit import IsoFlop, isoflop
from analysis.fits.isoflop.laws import LAWS, Above, Budget, Laws, exp_interval, interval
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from arch.amounts import count, counted, flop

WILD = "wild bootstrap over {over} (HC2 residuals, one sign each, t / z), percentiles"
PARAMETRIC = "parametric bootstrap ({source}), percentiles"
JOINT = (
    "fits of surface and {variant} alike to losses drawn on the fitted surface with noise of whole {over} as its "
    "residuals show it, percentiles"
)
OF_MINIMUM = (
    "the {variant}'s minimum at these sizes, not the optimum: no surface tells how far the one lies from the other"
)
INTERPOLATED = "L_opt: the lowest point of an interpolation lies too low by an unknown share of the noise"
LOSS_WITHIN = {False: "the budgets", True: "the budgets and ten times the last"}  # by whether the bias is taken off


def fit_isoflop(
    points: Points,
    cost: Cost,
    variant: str = "parabola",
    *,
    n_replicates: int = 1000,
    at: Sequence[float] = (),
    **options: Any,
) -> FitResult:
    """Laws of N_opt, D_opt and L_opt through the minima of the budgets; `options` are the further ones of `isoflop`.

    at: C [FLOP] of `diagnostics["optimum"]`. With a surface all is of the optimum, and what the minima say themselves
    stands in `diagnostics["bias"]["raw"]`. Raises what `isoflop` raises.
    """
    found = isoflop(points, cost, variant, n_replicates=n_replicates, **options)
    return isoflop_result(found, points, n_replicates, at)


def isoflop_result(fit: IsoFlop, points: Points, n_replicates: int, at: Sequence[float] = ()) -> FitResult:
    """As plain data. params: a and b, the exponents of N_opt and D_opt, L_exponent, and N_opt, D_opt and L_opt at
    `middle`, the geometric middle of the budgets; from four budgets E, the irreducible loss of L_opt = E + beta
    C^L_exponent, from three L_opt is a power law. All of the optimum where a surface told the bias, else of the
    minima."""
    middle = math.exp(sum(math.log(c) for c in fit.range) / 2)
    raw, own = _numbers(fit, fit.lines, middle)
    params, intervals, estimand = raw, own, OF_MINIMUM.format(variant=fit.variant)
    if (told := fit.corrected) is not None:
        params, intervals = _numbers(fit, told.laws, middle)
        intervals = {name: fit.reaching(ends, raw[name]) for name, ends in intervals.items()}
        estimand = told.estimand
    kept = [one for one in fit.budgets if one.reason is None]
    diagnostics: dict[str, Any] = {
        "middle": middle,
        "optimum": [_optimum(fit, c) for c in at],
        "budgets": [vars(one) for one in fit.budgets],
        "n_budgets": len(fit.budgets),
        "n_budgets_used": len(kept),
        "refused": [f"{flop(one.c, 4)} FLOP: {one.reason}" for one in fit.budgets if one.reason and one.n_sizes > 1],
        "left_out": [*fit.readings.left_out, *_alone(fit.budgets)],
        "from_curves": fit.readings.from_curves,
        "off_budget": float(np.expm1(fit.readings.spread.max())),
        "flatness": float(np.median([one.flat[1] / one.flat[0] for one in kept if one.flat is not None])),
        "a_plus_b": params["a"] + params["b"],
        "noise": None
        if fit.noise is None
        else {name: getattr(fit.noise, name) for name in ("trunk", "own", "total", "df", "source")},
        "bias": _bias(fit, raw, own, params, at),
    }
    return FitResult(
        approach="isoflop",
        n_points=len(points),
        params=params,
        intervals=intervals,
        objective={"name": f"{fit.variant} of the loss in log N at each budget, least squares through the minima"},
        diagnostics=diagnostics,
        input_hash=points.input_hash,
        group=points.group,
        n_runs=points.n_runs,
        range=fit.range,
        conventions={"C": points.convention, "L": points.loss_unit},
        interval=_method(fit, points, n_replicates) | {"estimand": estimand},
    )


def _method(fit: IsoFlop, points: Points, n_replicates: int) -> dict[str, Any]:
    """How the intervals were made."""
    over = "runs" if (points.trunk == points.run).all() else "trunks"
    if fit.corrected is not None and fit.corrected.joint:
        name = JOINT.format(over=over, variant=fit.variant)
    elif fit.noise is None:
        return {"method": "none: nothing tells the noise", "level": None, "replicates": 0}
    else:
        name = WILD.format(over=over) if fit.wild else PARAMETRIC.format(source=fit.noise.source)
    without = INTERPOLATED
    if fit.variant != "interpolation":
        without = f"L_opt outside {LOSS_WITHIN[fit.corrected is not None]}"
    told = {"method": name, "level": fit.level, "replicates": n_replicates, "without": without}
    return told | {f"n_{over}": len(fit.readings.units)}


def _numbers(
    fit: IsoFlop, lines: Laws, middle: float
) -> tuple[dict[str, float], dict[str, tuple[float, float] | None]]:
    params, intervals = {}, {}
    for name, exponent in zip(LAWS, ("a", "b", "L_exponent"), strict=True):
        slope, at = lines[name].slope, lines[name].at(math.log(middle))
        params[exponent], intervals[exponent] = float(slope[0]), interval(slope[1:], fit.level)
        params[name] = float(np.exp(at[0]))
        intervals[name] = exp_interval(at[1:], fit.level)
    if isinstance(law := lines["L_opt"], Above):
        params["E"], intervals["E"] = float(law.law.floor[0]), interval(law.law.floor[1:], fit.level)
    if fit.variant == "interpolation":
        intervals |= dict.fromkeys(intervals.keys() & {"L_opt", "L_exponent", "E"})
    return params, intervals


def _optimum(fit: IsoFlop, c: float) -> dict[str, Any]:
    """{"C", "N", "D", "L", "intervals"}; None for an interval or a loss that is not to be had."""
    found: dict[str, Any] = {"C": c, "intervals": {}}
    for name in LAWS:
        found[name[0]], found["intervals"][name[0]] = fit.optimum(name, c)
    if not fit.tells_loss(c):
        found["L"] = None
    return found


def _bias(
    fit: IsoFlop, raw: dict[str, float], own: dict[str, Any], params: dict[str, float], at: Sequence[float]
) -> dict[str, Any] | None:
    """The factor by which the minima lie above the surface's own optima, budget by budget and in the laws, and what
    the laws of the minima are; None without a surface."""
    if fit.bias is None:
        return None
    factor = [None if not math.isfinite(one) else math.exp(one) for one in fit.bias.log_n]
    told: dict[str, Any] = {"n_opt_factor": factor, "raw": None, "reason": None}
    if fit.corrected is None:
        why = "the surface has no optimum, or no minimum at these sizes, at one of the budgets"
        return told | {"reason": f"{why}: not taken off"}
    inflated = raw["N_opt"] / params["N_opt"]
    word = "above" if inflated > 1 else "below"
    minima = [{"C": c} | {name[0]: fit.predict(name, c)[0] for name in LAWS} for c in at]
    return told | {
        "raw": {"params": raw, "intervals": own, "optimum": minima},
        "inflated": inflated,
        "tests": dict(fit.corrected.tests),
        "exponent": raw["a"] - params["a"],
        "text": f"the {fit.variant}'s N_opt, {count(raw['N_opt'], 4)}, lies {abs(inflated - 1):.1%} {word} the "
        f"surface's own optimum at these sizes, its exponent {raw['a'] - params['a']:+.4f} off: taken off",
    }


def _alone(budgets: Sequence[Budget]) -> list[str]:
    n_points = sum(one.n_points for one in budgets if one.n_sizes == 1)
    return [f"{counted(n_points, 'point lies', 'points lie')} at a compute that no other size has"] if n_points else []
