"""IsoFLOP profiles: the best size at each budget of compute, and the laws through them (Hoffmann et al. 2022, approach
2).

Losses are fitted as they are, not their logarithms: with E in L = E + A / N^alpha + B / D^beta the loss above E of
budgets whose sizes lie alike about the optimum differs by a factor alone, so a parabola's vertex is off by one factor
at all of them and the exponent is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.isoflop.bias import Bias, Surface, bias_of, surface_losses
from analysis.fits.isoflop.budgets import TOLERANCE, Readings, read_budgets
from analysis.fits.isoflop.laws import LAWS, Above, Budget, Laws, describe, exp_interval, fit_laws, interval, minima_of
from analysis.fits.isoflop.minimum import NEEDED
from analysis.fits.isoflop.noise import FROM_RUNS, Noise, draw_noise, draw_residuals, noise_of, residuals
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from arch.errors import InputError

STEP = 1e-5  # of log loss, for derivatives
LOSS_REACH = {False: 1.0, True: 10.0}  # times the last budget, up to which intervals of L_opt were seen to cover
MIN_BUDGETS = 3  # two fix a line, a third can tell whether it is one
WILD = "wild bootstrap over {over} (HC2 residuals, one sign each, t / z), percentiles"
PARAMETRIC = "parametric bootstrap ({source}), percentiles"
OF_MINIMUM = (
    "the {variant}'s minimum at these sizes, not the optimum: no surface tells how far the one lies from the other"
)
OF_KNOWN = "the optimum: the {variant}'s minimum less its bias on the surface that is given as known"
OF_FITTED = (
    "the optimum: the {variant}'s minimum less its bias on the fitted surface, which is uncertain too: every interval "
    "reaches to the value without that correction"
)
INTERPOLATED = "L_opt: the lowest point of an interpolation lies too low by an unknown share of the noise"
LOSS_WITHIN = {False: "the budgets", True: "the budgets and ten times the last"}  # by whether the bias is taken off


@dataclass(frozen=True)
class IsoFlop:
    """A fit with its replicates. lines: N_opt, D_opt and L_opt, the first replicate being the study itself;
    bias, corrected: where a surface was given; known: it was not fitted to these losses."""

    readings: Readings
    budgets: tuple[Budget, ...]
    used: np.ndarray  # [k]: budgets that enter the laws
    lines: Laws
    corrected: Laws | None
    bias: Bias | None
    known: bool
    noise: Noise | None
    wild: bool
    variant: str
    level: float
    rise: float  # of log loss for an e-fold of C, by which losses off their budget's C were moved

    @property
    def range(self) -> tuple[float, float]:
        """C of the first and last budget that has a minimum [FLOP]."""
        log_c = self.readings.log_c[self.used]
        return float(np.exp(log_c.min())), float(np.exp(log_c.max()))

    def predict(self, name: str, c: float) -> tuple[float, tuple[float, float] | None]:
        """N_opt, D_opt or L_opt of the minima at C [FLOP], and its interval."""
        drawn = self.lines[name].at(math.log(c))
        return float(np.exp(drawn[0])), exp_interval(drawn[1:], self.level)

    def optimum(self, name: str, c: float) -> tuple[float, tuple[float, float] | None]:
        """The same of the optimum where a surface told the bias, else of the minima. No interval for a loss at a
        C where none was seen to cover, and for any by interpolation, whose lowest point lies too low."""
        value, ends = self.predict(name, c)
        if self.corrected is not None:
            drawn = self.corrected[name].at(math.log(c))
            value, ends = float(np.exp(drawn[0])), self.reaching(exp_interval(drawn[1:], self.level), value)
        low, high = np.log(self.range)
        reach = math.log(LOSS_REACH[self.corrected is not None])
        beyond = not low - TOLERANCE <= math.log(c) <= high + reach + TOLERANCE
        return value, None if name == "L_opt" and (beyond or self.variant == "interpolation") else ends

    def reaching(self, ends: tuple[float, float] | None, raw: float) -> tuple[float, float] | None:
        """The interval of a corrected value, out to the raw one unless the surface is known: a fitted surface may be
        wrong about the whole of its correction."""
        return ends if ends is None or self.known else (min(ends[0], raw), max(ends[1], raw))


def isoflop(
    points: Points,
    cost: Cost,
    variant: str = "parabola",
    *,
    budgets: Sequence[float] | None = None,
    tolerance: float = TOLERANCE,
    curves: bool | None = None,
    surface: Surface | None = None,
    known: bool = False,
    noise: SeedNoise | None = None,
    n_replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> IsoFlop:
    """The fit with its replicates; arguments as `fit_isoflop` has them."""
    if variant not in NEEDED:
        raise InputError(f"isoFLOP has no variant {variant!r}: {', '.join(NEEDED)}")
    if known and surface is None:
        raise InputError("isoFLOP: known=True tells of a surface, but none is given: give it as surface")
    readings = read_budgets(points, budgets, tolerance, curves)
    told = describe(readings, minima_of(readings, readings.loss[None], variant), cost, variant)
    rise = _rise(told)
    if readings.offset is not None and readings.offset.any():
        readings = readings.at_budget(rise)
        told = describe(readings, minima_of(readings, readings.loss[None], variant), cost, variant)
    used = np.array([one.reason is None for one in told])
    if used.sum() < MIN_BUDGETS:
        raise InputError(_too_few(told, readings, variant))
    found = residuals(readings)
    clean = None if surface is None else surface_losses(readings, surface, cost)
    if clean is not None and known:
        found = found.less(residuals(replace(readings, loss=clean)))
    told_noise = noise_of(readings, found, noise)
    wild = told_noise is not None and noise is None and len(readings.units) >= FROM_RUNS
    drawn = np.empty((0, len(readings.loss)))
    if told_noise is not None and n_replicates and wild:
        gradients = _gradients(readings, variant, used)
        drawn = draw_residuals(readings, found, told_noise, gradients, n_replicates, level, seed)
    elif told_noise is not None and n_replicates:
        drawn = draw_noise(readings, told_noise, n_replicates, seed)
    log_n, loss = _minima(readings, np.concatenate([readings.loss[None], drawn]), variant, used)
    log_c = readings.log_c[used]
    bias, corrected = None, None
    if surface is not None and clean is not None:
        bias = bias_of(readings, clean, variant, surface, cost)
        off, lift = bias.log_n[used], bias.log_loss[used]
        if np.isfinite(off).all():
            corrected = fit_laws(log_c, log_n - off, loss * np.exp(-lift), cost)
    lines = fit_laws(log_c, log_n, loss, cost)
    return IsoFlop(readings, tuple(told), used, lines, corrected, bias, known, told_noise, wild, variant, level, rise)


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

    variant: `parabola` in log N, or `interpolation` (Akima). budgets: their C [FLOP]; without them end points are
    grouped by `tolerance` in log C, and whole curves (`curves`; by default from four rows a run) read at eight.
    surface: the loss of N and D: the parabola's bias is told by it and taken off all that is given; what the minima
    say themselves stands in `diagnostics["bias"]["raw"]`. Intervals reach to those values, since a surface that was
    fitted to the same losses is as uncertain. known: it was not, so they need not, and what the parabolas miss of it is
    no noise. Without a surface all numbers are of the minima, not of the optimum.
    noise: between seeds, where replicates tell it. at: C [FLOP] of `diagnostics["optimum"]`.

    Raises InputError for fewer than three budgets with a minimum inside their sizes, and says what is wrong with each.
    """
    found = isoflop(points, cost, variant, n_replicates=n_replicates, **options)
    return result_of(found, points, n_replicates, at)


def result_of(fit: IsoFlop, points: Points, n_replicates: int, at: Sequence[float] = ()) -> FitResult:
    """As plain data. params: a and b, the exponents of N_opt and D_opt, L_exponent, and N_opt, D_opt and L_opt at
    `middle`, the geometric middle of the budgets; from four budgets E, the irreducible loss of L_opt = E + beta
    C^L_exponent, from three L_opt is a power law. All of the optimum where a surface told the bias, else of the
    minima."""
    middle = math.exp(sum(math.log(c) for c in fit.range) / 2)
    raw, own = _numbers(fit, fit.lines, middle)
    params, intervals = raw, own
    if fit.corrected is not None:
        params, intervals = _numbers(fit, fit.corrected, middle)
        intervals = {name: fit.reaching(ends, raw[name]) for name, ends in intervals.items()}
    over = "runs" if (points.trunk == points.run).all() else "trunks"
    method: dict[str, Any] = {"method": "none: nothing tells the noise", "level": None, "replicates": 0}
    if fit.noise is not None:
        name = WILD.format(over=over) if fit.wild else PARAMETRIC.format(source=fit.noise.source)
        method = {"method": name, "level": fit.level, "replicates": n_replicates}
        method |= {
            f"n_{over}": len(fit.readings.units),
            "without": f"L_opt outside {LOSS_WITHIN[fit.corrected is not None]}",
        }
        if fit.variant == "interpolation":
            method["without"] = INTERPOLATED
    estimand = OF_MINIMUM if fit.corrected is None else OF_KNOWN if fit.known else OF_FITTED
    method["estimand"] = estimand.format(variant=fit.variant)
    kept = [one for one in fit.budgets if one.reason is None]
    diagnostics: dict[str, Any] = {
        "middle": middle,
        "optimum": [_optimum(fit, c) for c in at],
        "budgets": [vars(one) for one in fit.budgets],
        "n_budgets": len(fit.budgets),
        "n_budgets_used": len(kept),
        "refused": [f"{one.c:.4g} FLOP: {one.reason}" for one in fit.budgets if one.reason and one.n_sizes > 1],
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
        interval=method,
    )


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
    """{"C", "N", "D", "L", "intervals"}; None for an interval that is not to be had, and for a loss outside three
    budgets, whose power law runs below any irreducible loss."""
    found: dict[str, Any] = {"C": c, "intervals": {}}
    for name in LAWS:
        found[name[0]], found["intervals"][name[0]] = fit.optimum(name, c)
    if not isinstance(fit.lines["L_opt"], Above) and not fit.range[0] <= c <= fit.range[1]:
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
        "exponent": raw["a"] - params["a"],
        "text": f"the {fit.variant}'s N_opt, {raw['N_opt']:.4g}, lies {abs(inflated - 1):.1%} {word} the surface's own "
        f"optimum at these sizes, its exponent {raw['a'] - params['a']:+.4f} off: taken off",
    }


def _minima(readings: Readings, loss: np.ndarray, variant: str, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log N and loss at the minimum of each used budget, [r, k] each, for losses [r, p]."""
    found = [
        one for one, keep in zip(minima_of(readings, loss, variant), used, strict=True) if keep and one is not None
    ]
    return np.stack([one.log_n for one in found], 1), np.stack([one.loss for one in found], 1)


def _gradients(readings: Readings, variant: str, used: np.ndarray) -> np.ndarray:
    """[2, p]: of log N_opt in the middle and of its exponent, in each log loss."""
    p = len(readings.loss)
    moved = readings.loss * np.exp(STEP * np.concatenate([np.eye(p), -np.eye(p)]))
    log_n, _ = _minima(readings, moved, variant, used)
    change = (log_n[:p] - log_n[p:]) / (2 * STEP)  # [p, k]
    log_c = readings.log_c[used]
    off = log_c - log_c.mean()
    return np.nan_to_num(np.stack([change.mean(1), change @ off / (off @ off)]))


def _alone(budgets: Sequence[Budget]) -> list[str]:
    count = sum(one.n_points for one in budgets if one.n_sizes == 1)
    return [f"{count} points lie at a compute that no other size has"] if count else []


def _rise(budgets: Sequence[Budget]) -> float:
    """d log L_opt / d log C through the minima; 0 for fewer than two."""
    kept = [(math.log(one.c), math.log(one.loss)) for one in budgets if one.loss is not None]
    log_c, log_loss = np.array(kept).reshape(-1, 2).T
    return float(np.polyfit(log_c, log_loss, 1)[0]) if len(kept) > 1 else 0.0


def _too_few(budgets: Sequence[Budget], readings: Readings, variant: str) -> str:
    kept = sum(one.reason is None for one in budgets)
    alike: dict[str, list[float]] = {}
    for one in budgets:
        if one.reason is not None:
            alike.setdefault(one.reason, []).append(one.c)
    where = {True: "at {0:.3g} FLOP", False: "at {1} budgets from {0:.3g} to {2:.3g} FLOP"}
    told_at = {reason: where[len(at) == 1].format(min(at), len(at), max(at)) for reason, at in alike.items()}
    why = "; ".join(f"{at} {reason}" for reason, at in told_at.items())
    left = "; ".join(readings.left_out)
    told = "; ".join(part for part in (why, left) if part)
    return (
        f"isoFLOP ({variant}): {kept} of {len(budgets)} budgets {'has' if kept == 1 else 'have'} a minimum inside "
        f"{'its' if kept == 1 else 'their'} sizes, {MIN_BUDGETS} are needed" + (f" ({told})" if told else "")
    )
