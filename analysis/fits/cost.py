"""The compute of a token over model size, C / D as a function of N: 6 N, or what the models really cost.

For an architecture whose cost has other terms (attention, the head) 6 N is wrong by a factor that changes with N, so
optima under `exact` are solved with the real cost. Sizes whose widths come in steps cost now more, now less than their
N says, and an optimum solved on their own costs would jump from one to the next: theirs is a smooth law through all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.polynomial import Polynomial

from arch.amounts import count
from arch.errors import InputError

if TYPE_CHECKING:
    from analysis.fits.points import Points

SIX_ND = ("6nd", "6nd_total")  # the conventions by which C is 6 N D
SAME = 1e-6  # of log cost
ROUNDED = 0.02  # of log cost: columns that were written with two or three digits differ by less
ONE_KNOT = 0.05  # of log N: the slope between sizes that lie closer is their rounding
STEPS = 0.1  # of the slope of log cost over log N
N_KNOTS = 33  # of a smooth law
SPAN = 3.0  # factor of N over which the slope beyond the first and the last size is taken
GROWTH = (0.2, 2.0)  # of a token's cost with N beyond the sizes; no architecture's lies outside
SECONDS = "seconds"  # a cost in time, not in FLOP: small models wait for the hardware, so it may hardly grow with N


@dataclass(frozen=True)
class Cost:
    """FLOP a token over N: piecewise linear in logarithms through knots (ascending log N, log FLOP a token), its first
    and last pieces extended (`cost_of` adds a knot where those alone are too short). Two knots are a power law;
    `six_nd()` is 6 N."""

    log_n: np.ndarray
    log_cost: np.ndarray
    convention: str

    def per_token(self, n_params: np.ndarray | float) -> np.ndarray:
        """Training FLOP a token of models with `n_params` parameters."""
        return np.exp(self.log_per_token(np.log(np.asarray(n_params, dtype=float))))

    def log_per_token(self, log_n: np.ndarray) -> np.ndarray:
        piece = self._piece(log_n)
        return self.log_cost[piece] + self._slopes[piece] * (log_n - self.log_n[piece])

    def growth(self, log_n: np.ndarray) -> np.ndarray:
        """d log(C / D) / d log N there: 1 for 6 N."""
        return self._slopes[self._piece(log_n)]

    @cached_property
    def _slopes(self) -> np.ndarray:
        return np.diff(self.log_cost) / np.diff(self.log_n)

    def _piece(self, log_n: np.ndarray) -> np.ndarray:
        piece = np.searchsorted(self.log_n, log_n, side="right") - 1
        return np.minimum(np.maximum(piece, 0), len(self.log_n) - 2)  # np.clip takes longer than the search


def six_nd() -> Cost:
    """C = 6 N D."""
    log_n = np.log([1.0, 1e12])
    return Cost(log_n, np.log(6.0) + log_n, "6nd")


def cost_of(points: Points) -> Cost:
    """The cost law of the sizes of `points`, from their C / D, smooth where their widths come in steps. Differences
    within ROUNDED are taken for rounding, sizes within ONE_KNOT for one. Beyond the sizes it goes on as over their last
    (first) factor of SPAN, or over all of them.

    Raises InputError where one N has several costs, for a single size whose cost is not 6 N, which tells nothing
    about the others, and where a cost in FLOP grows outside of GROWTH at an end.
    """
    log_n, log_cost = np.log(points.n_params), np.log(points.flops / points.n_tokens)
    off_six = np.abs(log_cost - np.log(6.0) - log_n)
    if off_six.max() < (ROUNDED if points.convention in SIX_ND else SAME):
        return six_nd()
    sizes, where = np.unique(log_n, return_inverse=True)
    mean = np.bincount(where, log_cost) / np.bincount(where)
    off = np.abs(log_cost - mean[where])
    if (off > ROUNDED).any():
        i = int(off.argmax())
        raise InputError(
            f"row {points.row[i]}: C / D is {np.exp(log_cost[i]):.6g} FLOP a token, other rows with N = "
            f"{count(points.n_params[i], 6)} have {np.exp(mean[where[i]]):.6g} on average: one fit takes one cost for "
            f"a size (without the column of compute, C is 6 N D)"
        )
    knots, costs = _merged(sizes, mean)
    if len(knots) < 2:
        raise InputError(f"one size only (N = {count(points.n_params[0], 6)}): the cost of other sizes is not known")
    return Cost(*_extended(*_without_steps(knots, costs), points.convention), points.convention)


def _without_steps(log_n: np.ndarray, log_cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The knots as they are; where the slope between them both rises and falls by more than STEPS, even knots of the
    parabola through them."""
    slopes = np.diff(log_cost) / np.diff(log_n)
    falls, rises = np.maximum.accumulate(slopes) - slopes, slopes - np.minimum.accumulate(slopes)
    if min(falls.max(), rises.max()) <= STEPS:
        return log_n, log_cost
    knots = np.linspace(log_n[0], log_n[-1], N_KNOTS)
    return knots, Polynomial.fit(log_n, log_cost, 2)(knots)


def _merged(log_n: np.ndarray, log_cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ascending sizes within ONE_KNOT of the lowest of them become one: their mean in logarithms."""
    firsts = [0]
    for i in range(1, len(log_n)):
        if log_n[i] - log_n[firsts[-1]] > ONE_KNOT:
            firsts.append(i)
    count = np.diff([*firsts, len(log_n)])
    return np.add.reduceat(log_n, firsts) / count, np.add.reduceat(log_cost, firsts) / count


def _extended(log_n: np.ndarray, log_cost: np.ndarray, convention: str) -> tuple[np.ndarray, np.ndarray]:
    """With a knot more beyond an end whose piece is shorter than SPAN: the slope over SPAN or more goes on there."""
    knots, costs = [*log_n], [*log_cost]
    upper = max(int(np.searchsorted(log_n, log_n[-1] - np.log(SPAN) + SAME, side="right")) - 1, 0)
    lower = min(int(np.searchsorted(log_n, log_n[0] + np.log(SPAN) - SAME)), len(log_n) - 1)
    for end, other, step in ((len(log_n) - 1, upper, 1.0), (0, lower, -1.0)):
        growth = (log_cost[end] - log_cost[other]) / (log_n[end] - log_n[other])
        if not GROWTH[0] < growth < GROWTH[1] and convention != SECONDS:
            low, high = np.exp(sorted((log_n[end], log_n[other])))
            raise InputError(
                f"C / D grows as N^{growth:.3g} from N = {count(low, 6)} to {count(high, 6)}, not between "
                f"N^{GROWTH[0]:g} and N^{GROWTH[1]:g}: the cost of sizes beyond is not known; check C and N of these "
                "sizes (without the column of compute, C is 6 N D)"
            )
        if abs(end - other) > 1:
            at = len(knots) if step > 0 else 0
            knots.insert(at, log_n[end] + step)
            costs.insert(at, log_cost[end] + step * growth)
    return np.array(knots), np.array(costs)
