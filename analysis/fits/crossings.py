"""N_opt(C) and D_opt(C) of a continuous choice of sizes, from where the curves of neighbouring sizes cross.

For L = E + A / N^alpha + B / D^beta, and to second order for any smooth surface, the size that is optimal at the
crossing of two sizes lies half way between them in log N: exactly for alpha = beta, else off by the same factor at
every crossing of equally spaced sizes. (The points of the envelope take the values of the grid alone, and ordinary
least squares through the steps of k equally spaced sizes makes the exponent of N_opt too small by 1 / k^2.) The size is
known and the noise sits in the crossing's compute, so log C is regressed on log N and the line inverted: regression of
log N on log C would be attenuated by the noise in C.

The noise is that of the curves' losses. A line C(N) says where two curves should cross; their difference there, which
would be 0 without noise, has variance s^2 (1 / seeds of one + 1 / seeds of the other), and neighbouring crossings share
a curve, so their differences are correlated. Generalised least squares over these differences finds the line. The
difference of two curves is read as a parabola around its zero, so that neither the noise along a curve nor a grid
decides where the crossing is. A pair that does not cross within reach of its runs is left out: read from its tangent,
far from where it was trained, it biased the exponent more than its absence does (docs/research/envelope.md). Intervals
are Fieller's: a value belongs to them as long as the line through it is no worse than t standard errors (Fieller 1954;
Draper and Smith 1998, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy import optimize, stats

from analysis.fits.fit import D_OPT, MOST_LOG, N_OPT, Band, Estimate, InverseLine, Law
from analysis.fits.noise import SeedNoise
from analysis.fits.seeds import SizeCurve
from analysis.fits.settings import MIN_CROSSINGS
from arch.amounts import counted, counted_of

HALF_WINDOW = 1.25  # of the parabola, in log C: a factor of 3.5 in compute to either side
MIN_SHARED = 0.5  # of log C that two curves must share; less says nothing about a slope
REACH = math.log(2)  # of log C beyond the shared stretch at which a crossing still counts, by extrapolation
POINTS = 160  # at which a difference is read
ROUNDS = 4  # of moving the parabola's window to the zero that it has
MIN_SEEN = 2  # crossings inside the stretch that both curves cover, or at most SLIGHT beyond it in log C
SLIGHT = math.log(1.25)
MOST = 5.0  # an interval that reaches an exponent of N_opt beyond this says nothing: 1 spends all compute on size
UNFIT = 0.05  # chance of crossings that scatter as much, below which the noise is scaled up to their scatter
BEYOND = math.log(100)  # of log C to either side of the crossings, over which a law's band is stored
BAND = 49  # places of it

FIELLER = "Fieller's interval"
ESTIMAND = (
    "the optimum over a continuous choice of sizes, under re-drawn seeds (initialisation and order of the data); text "
    "and learning rates fixed"
)


@dataclass(frozen=True)
class Difference:
    """Of the log losses of two sizes, smaller less larger, over x = log C: the parabola square u^2 + linear u +
    constant of u = x - centre within [low, high], continued by its tangents outside."""

    low: float
    high: float
    square: float
    linear: float
    constant: float

    @classmethod
    def around(cls, centre: float, x: np.ndarray, d: np.ndarray) -> Difference:
        """Least squares through d [n] at x [n] in the window around `centre`; at an end of x the window reaches further
        in."""
        low = max(x[0], min(centre, x[-1] - HALF_WINDOW / 2) - HALF_WINDOW)
        high = min(x[-1], max(centre, x[0] + HALF_WINDOW / 2) + HALF_WINDOW)
        inside = (x >= low) & (x <= high)
        parabola = np.polyfit(x[inside] - (low + high) / 2, d[inside], 2).tolist()
        return cls(float(low), float(high), *parabola)

    @property
    def centre(self) -> float:
        return (self.low + self.high) / 2

    def at(self, x: float) -> float:
        u = min(max(x, self.low), self.high) - self.centre
        return (self.square * u + self.linear) * u + self.constant + self.slope(x) * (x - self.centre - u)

    def slope(self, x: float) -> float:
        return 2 * self.square * (min(max(x, self.low), self.high) - self.centre) + self.linear

    def zero(self) -> float | None:
        """Where it rises through zero."""
        root = self.linear**2 - 4 * self.square * self.constant
        if root > 0:  # the other zero of the parabola is where it falls
            root = math.sqrt(root)
            if self.linear >= 0:
                x = self.centre - 2 * self.constant / (self.linear + root)
            else:
                x = self.centre + (root - self.linear) / (2 * self.square) if self.square else math.inf
            if self.low <= x <= self.high:
                return x
        for end, sign in ((self.high, -1), (self.low, 1)):
            if self.slope(end) > 0 and self.at(end) * sign > 0:
                return end - self.at(end) / self.slope(end)
        return None


@dataclass(frozen=True, eq=False)
class Crossing:
    """Two neighbouring sizes. at: log C from which on the larger one has the lower loss; beyond: how far that lies
    outside the stretch that is compared: after both warm-ups, as far as both smoothed curves and the fit's range reach
    (0: inside). Without a crossing: the reason, and by how much of log loss they miss it (inf: not known)."""

    small: SizeCurve
    large: SizeCurve
    difference: Difference | None = None
    at: float = math.nan
    beyond: float = 0.0
    reason: str = ""
    missed_by: float = math.inf

    @property
    def gap(self) -> float:
        """The distance of the two sizes in log N."""
        return math.log(float(self.large.n_params)) - math.log(float(self.small.n_params))

    def middle(self, field: str) -> float:
        """The mean of the logarithms of a field of the two sizes' curves."""
        return (math.log(float(getattr(self.small, field))) + math.log(float(getattr(self.large, field)))) / 2


def find_crossings(curves: Sequence[SizeCurve], stretch: tuple[float, float]) -> list[Crossing]:
    """Of each two neighbours among `curves` (smallest first), where they cross after both warm-ups, within `stretch`
    [log C] or at most REACH beyond it, or why they do not."""
    return [_cross(small, large, stretch) for small, large in pairwise(curves)]


def crossed(crossings: Sequence[Crossing]) -> list[Crossing]:
    """Those that are known."""
    return [crossing for crossing in crossings if not crossing.reason]


def _cross(small: SizeCurve, large: SizeCurve, stretch: tuple[float, float]) -> Crossing:
    start = max(stretch[0], small.settled_from, large.settled_from)
    end = min(stretch[1], small.log_c[-1], large.log_c[-1])
    if end - start < MIN_SHARED:
        return Crossing(small, large, reason="the two curves share too little compute after their warm-ups")
    x = np.linspace(start, end, POINTS)
    d = np.interp(x, small.log_c, small.log_loss) - np.interp(x, large.log_c, large.log_loss)
    centre = _first_guess(x, d)
    for _ in range(ROUNDS):  # without a zero the window stays at the end that is nearest to it
        difference = Difference.around(centre, x, d)
        at = difference.zero()
        if at is None or at == centre:
            break
        centre = float(min(max(at, x[0]), x[-1]))
    if at is not None and (beyond := max(x[0] - at, at - x[-1], 0.0)) <= REACH:
        return Crossing(small, large, difference, at, float(beyond))
    first, last = difference.at(float(x[0])), difference.at(float(x[-1]))
    if last < 0:
        why = f"the smaller size is still ahead by {-math.expm1(last):.1%} where the compared stretch ends"
        return Crossing(small, large, reason=why, missed_by=-last)
    if first > 0:
        why = f"the larger size is ahead by {math.expm1(first):.1%} from the start of the range on"
        return Crossing(small, large, reason=why, missed_by=first)
    return Crossing(small, large, reason="the two curves run side by side")


def _first_guess(x: np.ndarray, d: np.ndarray) -> float:
    """The last rise through zero of d's running mean, or the end to which d points."""
    width = min(max(1, round(0.25 / (x[1] - x[0]))), (len(x) - 1) // 2)
    window = np.ones(2 * width + 1)
    mean = np.convolve(d, window, "same") / np.convolve(np.ones_like(d), window, "same")
    rises = np.flatnonzero((mean[:-1] < 0) & (mean[1:] >= 0))
    if len(rises):
        return float(x[rises[-1]])
    return float(x[-1] if mean[-1] < 0 else x[0])


def rise(crossings: Sequence[Crossing]) -> float:
    """By how much the difference of two curves rises for each e-fold of compute, over their distance in log N: one
    number for all crossings, since those of single ones are noisy, and too steep where noise made them."""
    gaps = np.array([crossing.gap for crossing in crossings])
    slopes = np.array([crossing.difference.slope(crossing.at) for crossing in crossings if crossing.difference])
    return float(slopes @ gaps / (gaps @ gaps))


def fit_line(
    crossings: Sequence[Crossing], y: Sequence[float], noise: SeedNoise | None, level: float, of_tokens: bool = False
) -> InverseLine | None:
    """The line of log C on y, the mean of a size's logarithm, through MIN_CROSSINGS `crossings` or more; its error is
    that of an interval of `level`. None where no line with C rising in y fits.

    Its covariance is that for differences which all rise alike for their gap (`rise`).
    """
    at, off = np.array([crossing.at for crossing in crossings]), np.array(y, dtype=float)
    centre = float(off.mean())
    off -= centre
    differences = [crossing.difference for crossing in crossings if crossing.difference]
    design = np.stack([np.ones_like(off), off], 1)
    root = np.linalg.cholesky(np.linalg.inv(_covariance(crossings, noise.correlation if noise else 1.0))).T

    def residual(line: np.ndarray) -> np.ndarray:
        return np.asarray(root @ [d.at(x) for d, x in zip(differences, design @ line, strict=True)])

    def jacobian(line: np.ndarray) -> np.ndarray:
        slopes = np.array([d.slope(x) for d, x in zip(differences, design @ line, strict=True)])
        return np.asarray(root @ (slopes[:, None] * design))

    steep = float(np.polyfit(off, at, 1)[0])
    start = np.array([at.mean(), steep if steep > 0 else 1.0])
    solved = optimize.least_squares(residual, start, jac=jacobian, method="lm", xtol=1e-14, ftol=1e-14, gtol=1e-14)
    slopes = rise(crossings) * np.array([crossing.gap for crossing in crossings])
    matrix = root @ (slopes[:, None] * design)
    information = matrix.T @ matrix
    if solved.x[1] <= 0 or not np.isfinite(information).all() or np.linalg.cond(information) > 1e12:
        return None
    (v_level, v_both), (_, v_slope) = np.linalg.inv(information).tolist()
    covariance = (v_level, v_both), (v_both, v_slope)
    error = _error(2 * float(solved.cost), len(off) - 2, noise, level) if noise else None
    return InverseLine(float(solved.x[0]), float(solved.x[1]), centre, covariance, error, of_tokens)


def _error(misfit: float, df: int, noise: SeedNoise, level: float) -> float:
    """Half the width of an interval of `level` in units of a parameter's standard error for a noise of 1. misfit: the
    weighted sum of squares that a line leaves, with `df` degrees of freedom; in units of the noise's variance it is
    chi-squared where the optimum is a power law.

    Where the crossings scatter more than seeds explain (chance below UNFIT), the noise grows to their scatter, as the
    Particle Data Group scales the errors of measurements that disagree.
    """
    ratio = misfit / df / noise.s**2
    scale = math.sqrt(ratio) if stats.f.sf(ratio, df, noise.df) < UNFIT else 1.0
    return float(stats.t.ppf((1 + level) / 2, noise.df)) * noise.s * scale


def _covariance(crossings: Sequence[Crossing], correlation: float) -> np.ndarray:
    """[k, k]: of the differences at the crossings, for a noise of 1: neighbours share a curve, whose noise at their two
    places is correlated as `correlation` says of an e-fold."""
    covariance = np.diag([1 / crossing.small.n_seeds + 1 / crossing.large.n_seeds for crossing in crossings])
    for i, (crossing, other) in enumerate(pairwise(crossings)):
        if crossing.large is other.small:
            shared = -(correlation ** abs(other.at - crossing.at)) / crossing.large.n_seeds
            covariance[i, i + 1] = covariance[i + 1, i] = shared
    return covariance


def crossing_laws(crossings: Sequence[Crossing], noise: SeedNoise | None, level: float) -> tuple[Law, Law]:
    """N_opt and D_opt through `crossings`, identified both or neither.

    D_opt = C / (cost of a token at N_opt): the same crossings, with the cost of a token for the number of parameters.
    """
    known, reason = crossed(crossings), _too_few(crossings)
    n_opt, d_opt = (
        _law(quantity, known, [crossing.middle(field) for crossing in known], noise, level, reason)
        for quantity, field in ((N_OPT, "n_params"), (D_OPT, "flops_per_token"))
    )
    if reason := n_opt.reason or d_opt.reason:
        n_opt, d_opt = (Law(law.quantity, reason=reason, n_points=law.n_points) for law in (n_opt, d_opt))
    return n_opt, d_opt


def _too_few(crossings: Sequence[Crossing]) -> str:
    """Why no line is fitted to the crossings; "" if one is."""
    known = crossed(crossings)
    missing = sorted((crossing for crossing in crossings if crossing.reason), key=lambda crossing: crossing.missed_by)
    if len(known) < MIN_CROSSINGS:
        nearest = ""  # the pair that misses a crossing by least; laws list them all ("pairs")
        if missing:
            nearest = f": {missing[0].small.size} and {missing[0].large.size}: {missing[0].reason}"
        if more := len(missing) - 1 if missing else 0:
            nearest += f"; {counted(more, 'more pair does', 'more pairs do')} not cross either"
        cross = counted(len(known), "pair of neighbouring sizes crosses", "pairs cross")
        return f"{cross} in the range, {MIN_CROSSINGS} are needed{nearest}"
    seen = sum(crossing.beyond <= SLIGHT for crossing in known)
    if seen < MIN_SEEN:
        return (
            f"{counted_of(seen, len(known), 'crossing', 'lies', 'lie')} where both curves were trained, "
            f"{MIN_SEEN} are needed: the others are extrapolated"
        )
    return ""


def _law(
    quantity: str, crossings: Sequence[Crossing], y: Sequence[float], noise: SeedNoise | None, level: float, reason: str
) -> Law:
    """D_opt is C / y, where y is the cost of a token; N_opt is y."""
    empty = Law(quantity, reason=reason, n_points=len(crossings))
    if reason:
        return empty
    line = fit_line(crossings, y, noise, level, quantity == D_OPT)
    if line is None:
        why = "no line of log C rising in log N fits the crossings: their order is not that of the sizes"
        return replace(empty, reason=why)
    if line.steepest is not None and line.steepest > MOST:
        why = (
            f"at this seed noise the crossings do not exclude an optimum that grows without bound: the interval of its "
            f"exponent reaches beyond {MOST:g}"
        )
        return replace(empty, reason=why)
    at = [crossing.at for crossing in crossings]
    low, high = min(at), max(at)
    ends = [_exp(value) for value in line.log_interval(0.0) or (-math.inf, math.inf)]
    return replace(
        empty,
        exponent=Estimate.of(line.exponent, line.exponent_interval()),
        coefficient=Estimate.of(_exp(line.log_value(0.0)), None if None in ends else ends),
        centre=(math.exp(line.level), math.exp(line.log_value(line.level))),
        range=(math.exp(low), math.exp(high)),
        line=line,
        band=_band(line, np.linspace(low - BEYOND, high + BEYOND, BAND)) if noise else None,
    )


def _band(line: InverseLine, log_c: np.ndarray) -> Band:
    """The law's interval at log C [n]."""
    ends = [line.log_interval(x) or (-math.inf, math.inf) for x in log_c.tolist()]
    return Band(
        tuple(np.exp(log_c).tolist()), tuple(_exp(low) for low, _ in ends), tuple(_exp(high) for _, high in ends)
    )


def _exp(log_value: float) -> float | None:
    """None where that is no float."""
    return math.exp(log_value) if abs(log_value) < MOST_LOG else None
