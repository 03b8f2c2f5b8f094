"""The compute of a token over model size, C / D as a function of N: 6 N, or what the models really cost.

For an architecture whose cost has other terms (attention, the head) 6 N is wrong by a factor that changes with N, so
optima under `exact` are solved with the real cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.fits.points import Points
from arch.errors import InputError

SIX_ND = ("6nd", "6nd_total")  # the conventions by which C is 6 N D
SAME = 1e-6  # of log cost
ROUNDED = 0.02  # of log cost: columns that were written with two or three digits differ by less


@dataclass(frozen=True)
class Cost:
    """FLOP a token over N: piecewise linear in logarithms through knots (ascending log N, log FLOP a token), its first
    and last pieces extended. Two knots are a power law; `six_nd()` is 6 N."""

    log_n: np.ndarray
    log_cost: np.ndarray
    convention: str

    def per_token(self, n_params: np.ndarray | float) -> np.ndarray:
        """Training FLOP a token of models with `n_params` parameters."""
        return np.exp(self.log_per_token(np.log(np.asarray(n_params, dtype=float))))

    def log_per_token(self, log_n: np.ndarray) -> np.ndarray:
        piece = self._piece(log_n)
        return self.log_cost[piece] + self.growth(log_n) * (log_n - self.log_n[piece])

    def growth(self, log_n: np.ndarray) -> np.ndarray:
        """d log(C / D) / d log N there: 1 for 6 N."""
        piece = self._piece(log_n)
        return (self.log_cost[piece + 1] - self.log_cost[piece]) / (self.log_n[piece + 1] - self.log_n[piece])

    def _piece(self, log_n: np.ndarray) -> np.ndarray:
        return np.clip(np.searchsorted(self.log_n, log_n, side="right") - 1, 0, len(self.log_n) - 2)


def six_nd() -> Cost:
    """C = 6 N D."""
    log_n = np.log([1.0, 1e12])
    return Cost(log_n, np.log(6.0) + log_n, "6nd")


def cost_of(points: Points) -> Cost:
    """The cost law of the sizes of `points`, from their C / D; differences within ROUNDED are taken for rounding.

    Raises InputError where one N has several costs, and for a single size whose cost is not 6 N, which tells nothing
    about the others.
    """
    log_n, log_cost = np.log(points.n_params), np.log(points.flops / points.n_tokens)
    off_six = np.abs(log_cost - np.log(6.0) - log_n)
    if off_six.max() < (ROUNDED if points.convention in SIX_ND else SAME):
        return six_nd()
    knots, where = np.unique(log_n, return_inverse=True)
    mean = np.bincount(where, log_cost) / np.bincount(where)
    off = np.abs(log_cost - mean[where])
    if (off > ROUNDED).any():
        i = int(off.argmax())
        raise InputError(
            f"row {points.row[i]}: C / D is {np.exp(log_cost[i]):.6g} FLOP a token, other rows with N = "
            f"{points.n_params[i]:.6g} have {np.exp(mean[where[i]]):.6g} on average: one fit takes one cost for a size "
            f"(without the column of compute, C is 6 N D)"
        )
    if len(knots) < 2:
        raise InputError(f"one size only (N = {points.n_params[0]:.6g}): the cost of other sizes is not known")
    return Cost(knots, mean, points.convention)
