"""N_opt(C) and D_opt(C) of a continuous choice of sizes, from where neighbouring sizes' curves cross.

At the crossing of two sizes the optimal size is the geometric mean of the two, which is known; the noise sits in the
crossing's compute. So log C is regressed on log N, and the line inverted: ordinary regression of log N on log C would
be attenuated by the noise in C.

The noise is that of the curves' losses. A line C(N) says where two curves should cross; their difference there, which
would be 0 without noise, has variance s^2 (1 / seeds of one + 1 / seeds of the other), and neighbouring crossings share
a curve, so their differences are correlated. Generalised least squares over these differences finds the line. A pair
that does not cross within reach of its runs is left out: read from its tangent, far from where it was trained, it
biased the exponent more than its absence does (docs/research/envelope.md). Intervals are Fieller's: a value belongs to
them as long as the line through it is no worse than t standard errors (Fieller 1954; Draper and Smith 1998, section
3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, stats

from analysis.fits.envelope.crossings import Crossing, Missing, rise
from analysis.fits.envelope.extract import SizeCurve
from analysis.fits.fit import D_OPT, MOST_LOG, N_OPT, Band, Estimate, InverseLine, Law, Misfit
from analysis.fits.noise import SeedNoise
from analysis.fits.settings import MIN_CROSSINGS
from arch.amounts import counted, counted_of

MIN_SEEN = 2  # of them inside the stretch that both curves cover, or at most SLIGHT beyond it in log C
SLIGHT = math.log(1.25)
MOST = 5.0  # an interval that reaches an exponent of N_opt beyond this tells nothing: 1 spends all compute on size
BEYOND = math.log(100)  # of log C to either side of the crossings, over which a law's interval is stored
UNFIT = 0.05  # chance of crossings that scatter as much, below which the noise is scaled up to their scatter

FIELLER = "Fieller's interval"
METHOD = f"crossings of neighbouring sizes, generalised least squares of log C on log N, {FIELLER}"
ESTIMAND = (
    "the optimum over a continuous choice of sizes, under re-drawn seeds (initialisation and order of the data); text "
    "and learning rates fixed"
)


@dataclass(frozen=True)
class Uncertainty:
    """Half an interval's width in units of a parameter's standard error for a noise of 1 (t s), and how it came about:
    `chance` of crossings that scatter as much or more, and the factor `scale` (1: none) by which s grew for it."""

    value: float
    chance: float | None
    scale: float


def optimum_laws(
    curves: Sequence[SizeCurve],
    crossings: Sequence[Crossing],
    missing: Sequence[Missing],
    noise: SeedNoise | None,
    level: float,
) -> tuple[Law, Law]:
    """N_opt and D_opt, identified both or neither.

    D_opt = C / (cost of a token at N_opt): the same crossings, with the cost of a token for the number of parameters.
    """
    log_n = np.log([float(curve.n_params) for curve in curves])
    log_cost = np.log([curve.flops_per_token for curve in curves])
    n_seeds = [curve.n_seeds for curve in curves]
    gaps = [float(log_n[one.small + 1] - log_n[one.small]) for one in crossings]
    found = []
    for log_y in (log_n, log_cost):
        y = [float(log_y[one.small] + log_y[one.small + 1]) / 2 for one in crossings]
        line = None
        if len(crossings) >= MIN_CROSSINGS:
            line = fit_line(crossings, y, gaps, n_seeds, noise.correlation if noise else 1.0)
        found.append((y, line, uncertainty_of(line, noise, level) if line and noise else None))
    reasons = [_why_not(curves, crossings, missing, line, error) for _, line, error in found]
    reason = next((one for one in reasons if one is not None), "")  # they are one optimum: both or neither
    n_opt, d_opt = (
        _law(name, crossings, y, None if reason else line, error, reason)
        for name, (y, line, error) in zip((N_OPT, D_OPT), found, strict=True)
    )
    return n_opt, d_opt


def _why_not(
    curves: Sequence[SizeCurve],
    crossings: Sequence[Crossing],
    missing: Sequence[Missing],
    line: InverseLine | None,
    error: Uncertainty | None,
) -> str | None:
    """Why N_opt and D_opt are not identified; None if they are."""
    if len(crossings) < MIN_CROSSINGS:
        found = counted(len(crossings), "pair of neighbouring sizes crosses", "pairs cross")
        return f"{found} in the range, {MIN_CROSSINGS} are needed{_nearest_text(curves, missing)}"
    seen = sum(one.beyond <= SLIGHT for one in crossings)
    if seen < MIN_SEEN:
        return (
            f"{counted_of(seen, len(crossings), 'crossing', 'lies', 'lie')} where both curves were trained, "
            f"{MIN_SEEN} are needed: the others are extrapolated"
        )
    if line is None:
        return "no line of log C rising in log N fits the crossings: their order is not that of the sizes"
    if error is not None and line.exponent_interval(error.value)[1] > MOST:
        return (
            f"at this seed noise the crossings do not exclude an optimum that grows without bound: the interval of its "
            f"exponent reaches beyond {MOST:g}"
        )
    return None


def _nearest_text(curves: Sequence[SizeCurve], missing: Sequence[Missing]) -> str:
    """The pair that misses a crossing by least, and how many others there are: laws list them all ("crossings")."""
    if not missing:
        return ""
    one = min(missing, key=lambda one: math.inf if one.by is None else one.by)
    more = len(missing) - 1
    others = f"; {counted(more, 'more pair does', 'more pairs do')} not cross either" if more else ""
    return f": {curves[one.small].size} and {curves[one.small + 1].size}: {one.reason}{others}"


def _law(
    quantity: str,
    crossings: Sequence[Crossing],
    y: Sequence[float],
    line: InverseLine | None,
    error: Uncertainty | None,
    reason: str,
) -> Law:
    """D_opt is C / y, where y is the cost of a token; N_opt is y."""
    of_tokens = quantity == D_OPT
    at = np.array([one.at for one in crossings])
    misfit = None if error is None else Misfit(error.chance, error.scale)
    empty = Law(quantity, reason=reason, method=METHOD, estimand=ESTIMAND, n_points=len(crossings), misfit=misfit)
    if line is None:
        return empty

    def of_law(x: Any, value: Any) -> Any:
        return x - value if of_tokens else value

    values = of_law(at, np.array(y))
    off = values - of_law(at, line.centre + (at - line.level) / line.slope)
    spread = float(((values - values.mean()) ** 2).sum())
    line = replace(line, error=None if error is None else error.value, of_tokens=of_tokens)
    exponent, coefficient = of_law(1.0, line.exponent), _finite(of_law(0.0, line.value(0.0)))
    law = replace(
        empty,
        exponent=Estimate(exponent),
        coefficient=Estimate(coefficient),
        r2=1 - float((off**2).sum()) / spread if spread > 0 else None,
        centre=(math.exp(line.level), math.exp(of_law(line.level, line.centre))),
        range=(float(np.exp(at.min())), float(np.exp(at.max()))),
        line=line,
    )
    if error is None:
        return law
    ends = [_finite(value) for value in line.log_interval(0.0) or ()]
    return replace(
        law,
        exponent=Estimate.of(exponent, sorted(of_law(1.0, value) for value in line.exponent_interval(error.value))),
        coefficient=Estimate.of(coefficient, None if None in ends else ends),
        band=_band(line, float(at.min()), float(at.max()), 25),
        wide_band=_band(line, float(at.min()) - BEYOND, float(at.max()) + BEYOND, 49),
    )


def _band(line: InverseLine, low: float, high: float, points: int) -> Band:
    """The law's interval between log C `low` and `high`."""
    grid = np.linspace(low, high, points)
    ends = [line.log_interval(float(x)) or (-math.inf, math.inf) for x in grid]
    return Band(
        tuple(np.exp(grid).tolist()), tuple(_finite(one) for one, _ in ends), tuple(_finite(other) for _, other in ends)
    )


def _finite(log_value: float) -> float | None:
    """exp, or None where that is no float."""
    return math.exp(log_value) if abs(log_value) < MOST_LOG else None


def fit_line(
    crossings: Sequence[Crossing],
    y: Sequence[float],
    gaps: Sequence[float],
    n_seeds: Sequence[int],
    correlation: float,
) -> InverseLine | None:
    """The line through `crossings`, whose sizes' mean is y and distance in log N is `gaps`; n_seeds of every size by
    rank; `correlation` of a curve's noise over one e-fold of compute. None where no line with C rising in N fits.

    Its covariance is that for differences which all rise alike for their gap (crossings.rise).
    """
    if len(crossings) < 2:
        return None
    at, ys = np.array([c.at for c in crossings]), np.array(y, dtype=float)
    centre = float(ys.mean())
    root = np.linalg.cholesky(np.linalg.inv(_covariance(crossings, n_seeds, correlation))).T

    def place(line: np.ndarray) -> np.ndarray:
        return np.asarray(line[0] + line[1] * (ys - centre))

    def residual(line: np.ndarray) -> np.ndarray:
        return np.asarray(root @ [c.difference(x) for c, x in zip(crossings, place(line), strict=True)])

    def jacobian(line: np.ndarray) -> np.ndarray:
        slopes = np.array([c.slope(x) for c, x in zip(crossings, place(line), strict=True)])
        return np.asarray(root @ (slopes[:, None] * np.stack([np.ones_like(ys), ys - centre], 1)))

    steep = float(np.polyfit(ys - centre, at, 1)[0])
    start = np.array([at.mean(), steep if steep > 0 else 1.0])
    found = optimize.least_squares(residual, start, jac=jacobian, method="lm", xtol=1e-14, ftol=1e-14, gtol=1e-14)
    slopes = rise(crossings, np.array(gaps)) * np.array(gaps)
    matrix = root @ (slopes[:, None] * np.stack([np.ones_like(ys), ys - centre], 1))
    information = matrix.T @ matrix
    if found.x[1] <= 0 or not np.isfinite(information).all() or np.linalg.cond(information) > 1e12:
        return None
    (v_level, v_both), (_, v_slope) = np.linalg.inv(information).tolist()
    covariance = (v_level, v_both), (v_both, v_slope)
    return InverseLine(float(found.x[0]), float(found.x[1]), centre, covariance, 2 * float(found.cost), len(ys) - 2)


def uncertainty_of(line: InverseLine, noise: SeedNoise, level: float) -> Uncertainty:
    """What to multiply standard errors of `line` with for an interval of `level`.

    Where the crossings scatter more than seeds explain (chance below UNFIT), s grows to their scatter, as the Particle
    Data Group scales the errors of measurements that disagree.
    """
    chance, scale = None, 1.0
    if line.df > 0:
        ratio = line.misfit / line.df / noise.s**2
        chance = float(stats.f.sf(ratio, line.df, noise.df))
        scale = math.sqrt(ratio) if chance < UNFIT else 1.0
    return Uncertainty(float(stats.t.ppf((1 + level) / 2, noise.df)) * noise.s * scale, chance, scale)


def _covariance(crossings: Sequence[Crossing], n_seeds: Sequence[int], correlation: float) -> np.ndarray:
    """[k, k]: of the differences at the crossings, for a noise of 1: neighbours share a curve, whose noise at their two
    places is correlated as `correlation` says of an e-fold."""
    size = len(crossings)
    found = np.zeros((size, size))
    for i, one in enumerate(crossings):
        found[i, i] = 1 / n_seeds[one.small] + 1 / n_seeds[one.small + 1]
        if i + 1 < size and crossings[i + 1].small == one.small + 1:
            shared = -(correlation ** abs(crossings[i + 1].at - one.at)) / n_seeds[one.small + 1]
            found[i, i + 1] = found[i + 1, i] = shared
    return found
