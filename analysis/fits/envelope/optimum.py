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
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from analysis.fits.envelope.crossings import Crossing, Missing, rise
from analysis.fits.envelope.extract import SizeCurve
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
class InverseLine:
    """x = log C at the crossing of sizes y: x = level + slope (y - centre); y is log N, or log of a token's cost.

    covariance [2, 2] of (level, slope) for a noise of 1 in log loss; misfit: the weighted sum of squares that is left,
    with `df` degrees of freedom; in units of the noise's variance it is chi-squared where the optimum is a power law.
    """

    level: float
    slope: float
    centre: float
    covariance: np.ndarray
    misfit: float
    df: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "slope": self.slope,
            "centre": self.centre,
            "covariance": self.covariance.tolist(),
            "misfit": self.misfit,
            "df": self.df,
        }

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> InverseLine:
        names = ("level", "slope", "centre", "misfit", "df")
        return cls(covariance=np.array(stored["covariance"]), **{name: stored[name] for name in names})

    @property
    def exponent(self) -> float:
        """dy / dx."""
        return 1 / self.slope

    def value(self, x: float) -> float:
        """y at x."""
        return self.centre + (x - self.level) / self.slope

    def exponent_interval(self, error: float) -> tuple[float, float]:
        """Of dy / dx, for `error` = t s; unbounded where a slope of 0 belongs to it."""
        half = error * math.sqrt(self.covariance[1, 1])
        low, high = self.slope - half, self.slope + half
        return (1 / high, 1 / low) if low > 0 else (1 / high if high > 0 else -math.inf, math.inf)

    def interval(self, x: float, error: float) -> tuple[float, float]:
        """Of y at x: Fieller's, all y with |x - level - slope u| <= error sqrt(variance of level + slope u),
        u = y - centre; unbounded where a slope of 0 belongs to the slope's interval."""
        off, k = x - self.level, error**2
        (v_level, v_both), (_, v_slope) = self.covariance
        square = self.slope**2 - k * v_slope
        half = -(self.slope * off + k * v_both)
        rest = off**2 - k * v_level
        if square <= 0 or self.slope <= 0:
            return -math.inf, math.inf
        root = math.sqrt(max(half**2 - square * rest, 0.0))
        return self.centre + (-half - root) / square, self.centre + (-half + root) / square


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
) -> tuple[dict[str, dict[str, Any]], InverseLine | None]:
    """{n_opt, d_opt}: laws as plain data; and the line behind N_opt where it is identified.

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
    reason = next((one for one in reasons if one is not None), None)  # they are one optimum: both or neither
    laws = {
        name: _law(crossings, y, line if reason is None else None, error, reason, name == "d_opt")
        for name, (y, line, error) in zip(("n_opt", "d_opt"), found, strict=True)
    }
    return laws, found[0][1] if reason is None else None


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
    crossings: Sequence[Crossing],
    y: Sequence[float],
    line: InverseLine | None,
    error: Uncertainty | None,
    reason: str | None,
    is_tokens: bool,
) -> dict[str, Any]:
    """A law as plain data; is_tokens: of D = C / y, where y is the cost of a token."""
    at = np.array([one.at for one in crossings])
    result: dict[str, Any] = {"identified": line is not None, "reason": reason, "method": METHOD, "estimand": ESTIMAND}
    result |= {"exponent": None, "coef": None, "r2": None, "n_points": len(crossings), "interval": None, "band": None}
    result["misfit"] = None if error is None else {"chance": error.chance, "scale": error.scale}
    if line is None:
        return result

    def of_law(x: Any, value: Any) -> Any:
        return x - value if is_tokens else value

    exponent = of_law(1.0, line.exponent)
    values = of_law(at, np.array(y))
    off = values - of_law(at, line.centre + (at - line.level) / line.slope)
    spread = float(((values - values.mean()) ** 2).sum())
    result |= {
        "exponent": exponent,
        "coef": _finite(of_law(0.0, line.value(0.0))),
        "r2": 1 - float((off**2).sum()) / spread if spread > 0 else None,
        "centre": [math.exp(line.level), math.exp(of_law(line.level, line.centre))],
        "range": [float(np.exp(at.min())), float(np.exp(at.max()))],
    }
    result["line"] = {"is_tokens": is_tokens, "error": None if error is None else error.value, **line.to_dict()}
    if error is None:
        return result
    coef = [_finite(value) for value in interval_at(result, 0.0)]
    result["interval"] = {
        "exponent": sorted(of_law(1.0, value) for value in line.exponent_interval(error.value)),
        "coef": None if None in coef else coef,
    }
    result["band"] = _band(result, float(at.min()), float(at.max()), 25)
    result["band_beyond"] = _band(result, float(at.min()) - BEYOND, float(at.max()) + BEYOND, 49)
    return result


def _band(law: dict[str, Any], low: float, high: float, points: int) -> dict[str, list[float | None]]:
    """The law's interval between log C `low` and `high`."""
    grid = np.linspace(low, high, points)
    ends = [interval_at(law, float(x)) for x in grid]
    return {
        "c": np.exp(grid).tolist(),
        "low": [_finite(one) for one, _ in ends],
        "high": [_finite(other) for _, other in ends],
    }


def interval_at(law: dict[str, Any], log_c: float) -> tuple[float, float]:
    """Of log N_opt or log D_opt at log C, anywhere, from an identified law with an interval (plain data)."""
    stored = law["line"]
    line = InverseLine.from_dict(stored)
    low, high = line.interval(log_c, stored["error"])
    return (log_c - high, log_c - low) if stored["is_tokens"] else (low, high)


def _finite(log_value: float) -> float | None:
    """exp, or None where that is no float."""
    return math.exp(log_value) if abs(log_value) < 700 else None


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
    return InverseLine(
        float(found.x[0]), float(found.x[1]), centre, np.linalg.inv(information), 2 * float(found.cost), len(ys) - 2
    )


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
