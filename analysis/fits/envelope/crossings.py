"""Where the curves of neighbouring sizes cross: the compute from which on the larger size has the lower loss.

For L = E + A / N^alpha + B / D^beta, and to second order for any smooth surface, the size that is optimal at the
crossing of two sizes lies half way between them in log N: exactly for alpha = beta, else off by the same factor at
every crossing of equally spaced sizes. So crossings tell N_opt(C) of a continuous choice of sizes. The points of the
envelope do not: they take the values of the grid alone, and ordinary least squares through the steps of k equally
spaced sizes makes the exponent of N_opt too small by 1 / k^2.

The difference of two curves is read as a parabola around its zero, so that neither the noise along a curve nor a
grid decides where the crossing is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analysis.fits.envelope.extract import SizeCurve

HALF_WINDOW = 1.25  # of the parabola, in log C: a factor of 3.5 in compute to either side
MIN_SHARED = 0.5  # of log C that two curves must share; less says nothing about a slope
REACH = math.log(2)  # of log C beyond the shared stretch at which a crossing still counts, by extrapolation
POINTS = 160  # at which a difference is read


@dataclass(frozen=True)
class Crossing:
    """Two neighbouring sizes, by rank, and the difference d of their log losses, smaller size less larger one.

    d(x) in x = log C is the parabola `coefficients` (highest first) of x - centre within [low, high], continued by its
    tangents outside. `at`: x where d rises through zero; `beyond`: how far that lies outside the stretch that is
    compared: after both warm-ups, as far as both smoothed curves and the fit's range reach (0: inside).
    """

    small: int
    at: float
    beyond: float
    low: float
    high: float
    centre: float
    coefficients: tuple[float, float, float]

    def difference(self, x: float) -> float:
        inside = min(max(x, self.low), self.high)
        return float(np.polyval(self.coefficients, inside - self.centre)) + self.slope(x) * (x - inside)

    def slope(self, x: float) -> float:
        square, linear, _ = self.coefficients
        return 2 * square * (min(max(x, self.low), self.high) - self.centre) + linear


@dataclass(frozen=True)
class Missing:
    """Two neighbouring sizes whose crossing is not known, why, and by how much of log loss they miss it (None: that is
    not known)."""

    small: int
    reason: str
    by: float | None = None


def find_crossings(curves: Sequence[SizeCurve], stretch: tuple[float, float]) -> tuple[list[Crossing], list[Missing]]:
    """The crossings of neighbouring sizes of `curves` (smallest first) after both warm-ups, within `stretch` [log C]
    or at most REACH beyond; and the pairs that have none."""
    found: list[Crossing] = []
    missing: list[Missing] = []
    for rank, (small, large) in enumerate(pairwise(curves)):
        start = max(stretch[0], small.settled_from, large.settled_from)
        end = min(stretch[1], small.log_c[-1], large.log_c[-1])
        if end - start < MIN_SHARED:
            missing.append(Missing(rank, "the two curves share too little compute after their warm-ups"))
            continue
        x = np.linspace(start, end, POINTS)
        d = np.interp(x, small.log_c, small.log_loss) - np.interp(x, large.log_c, large.log_loss)
        crossing = _cross(rank, x, d)
        if isinstance(crossing, Crossing):
            found.append(crossing)
        else:
            missing.append(crossing)
    return found, missing


def rise(crossings: Sequence[Crossing], gaps: np.ndarray) -> float:
    """By how much the difference of two curves rises for each e-fold of compute, over their distance `gaps` [k] in
    log N: one number for all crossings, since those of single ones are noisy, and too steep where noise made them."""
    slopes = np.array([one.slope(one.at) for one in crossings])
    return float(slopes @ gaps / (gaps @ gaps))


def _cross(rank: int, x: np.ndarray, d: np.ndarray) -> Crossing | Missing:
    """Where the difference d [n] at x [n] rises through zero, or why it does not.

    The parabola's window moves to the zero that it finds; where there is none it stays at the end that is nearest.
    """
    centre = _first_guess(x, d)
    for _ in range(4):
        parabola = _parabola(rank, x, d, centre)
        at = _zero(parabola)
        if at is None or at == centre:
            break
        centre = float(min(max(at, x[0]), x[-1]))
    if at is None:
        return _why_none(parabola, x)
    beyond = max(x[0] - at, at - x[-1], 0.0)
    if beyond > REACH:
        return _why_none(parabola, x)
    return Crossing(rank, at, float(beyond), parabola.low, parabola.high, parabola.centre, parabola.coefficients)


def _first_guess(x: np.ndarray, d: np.ndarray) -> float:
    """The last rise through zero of d's running mean, or the end to which d points."""
    width = max(1, round(0.25 / (x[1] - x[0])))
    total = np.concatenate([[0.0], np.cumsum(d)])
    low = np.maximum(np.arange(len(d)) - width, 0)
    high = np.minimum(np.arange(len(d)) + width + 1, len(d))
    mean = (total[high] - total[low]) / (high - low)
    rises = np.flatnonzero((mean[:-1] < 0) & (mean[1:] >= 0))
    if len(rises):
        return float(x[rises[-1]])
    return float(x[-1] if mean[-1] < 0 else x[0])


def _window(x: np.ndarray, centre: float) -> tuple[float, float]:
    """HALF_WINDOW to either side of `centre`; at an end of x the window reaches further in."""
    low = max(x[0], min(centre, x[-1] - HALF_WINDOW / 2) - HALF_WINDOW)
    high = min(x[-1], max(centre, x[0] + HALF_WINDOW / 2) + HALF_WINDOW)
    return float(low), float(high)


def _parabola(rank: int, x: np.ndarray, d: np.ndarray, centre: float) -> Crossing:
    """Least squares through d in the window around `centre`."""
    low, high = _window(x, centre)
    inside = (x >= low) & (x <= high)
    middle = float((low + high) / 2)
    square, linear, constant = np.polyfit(x[inside] - middle, d[inside], 2)
    return Crossing(rank, math.nan, 0.0, low, high, middle, (float(square), float(linear), float(constant)))


def _zero(parabola: Crossing) -> float | None:
    """Where the parabola, or a tangent at an end of its window, rises through zero."""
    square, linear, constant = parabola.coefficients
    roots = [-constant / linear] if abs(square) < 1e-12 and linear else np.roots([square, linear, constant]).tolist()
    for root in roots:
        x = parabola.centre + float(np.real(root))
        if abs(np.imag(root)) < 1e-12 and parabola.low <= x <= parabola.high and parabola.slope(x) > 0:
            return x
    for end, sign in ((parabola.high, -1), (parabola.low, 1)):
        value, slope = parabola.difference(end), parabola.slope(end)
        if slope > 0 and value * sign > 0:
            return end - value / slope
    return None


def _why_none(parabola: Crossing, x: np.ndarray) -> Missing:
    first, last = parabola.difference(float(x[0])), parabola.difference(float(x[-1]))
    if last < 0:
        told = f"the smaller size is still ahead by {-math.expm1(last):.1%} where the compared stretch ends"
        return Missing(parabola.small, told, -last)
    if first > 0:
        told = f"the larger size is ahead by {math.expm1(first):.1%} from the start of the range on"
        return Missing(parabola.small, told, first)
    return Missing(parabola.small, "the two curves run side by side")
