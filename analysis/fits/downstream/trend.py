"""A score that has no known form: that it gets better as the loss falls is all that is taken for granted.

The curve is isotonic regression. The interval at a loss takes of each run at most one checkpoint: a mean over runs just
on the better side cannot lie below the trend there, one over runs on the worse side not above it, so Student's t of
the two means bounds the trend. It needs runs on both sides; there is no extrapolation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from analysis.fits.downstream.scores import LOSS, Scores

LEAST_SIDE = 4  # runs on each side of an interval


@dataclass(frozen=True, eq=False)
class Trend:
    """z [n] rising, as Scores.order has it, and the isotonic fit there, in the task's units."""

    scores: Scores
    against: str
    z: np.ndarray
    fitted: np.ndarray
    tau: float  # Kendall's, of scores and z: above 0 where scores get better

    def predict(self, at: np.ndarray | float) -> np.ndarray:
        """[m]: between the checkpoints; NaN outside of what they cover."""
        z = self._z(at)
        found = np.interp(z, self.z, self.fitted)
        return np.where((z < self.z[0] - 1e-12) | (z > self.z[-1] + 1e-12), np.nan, found)

    def interval(self, at: np.ndarray | float, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) [m], NaN where fewer than 4 runs lie on a side."""
        worse, better = np.array([self._bounds(one, level) for one in self._z(at)]).T
        return (worse, better) if self.scores.scale.higher_is_better else (better, worse)

    def _z(self, at: np.ndarray | float) -> np.ndarray:
        at = np.atleast_1d(np.asarray(at, dtype=float))
        return np.log(at) if self.against != LOSS else -at

    def _bounds(self, z: float, level: float) -> tuple[float, float]:
        """Of the side where models are worse, and of the one where they are better."""
        sign = 1 if self.scores.scale.higher_is_better else -1
        order, found = self.scores.order(self.against), []
        for side in (-1, 1):
            distance = side * (order - z)
            near: dict[str, tuple[float, float]] = {}
            for i in np.flatnonzero(distance >= -1e-12):
                one = (float(distance[i]), float(self.scores.value[i]))
                near[str(self.scores.run[i])] = min(near.get(str(self.scores.run[i]), one), one)
            values = np.array([value for _, value in sorted(near.values())[: max(LEAST_SIDE, -(-len(near) // 3))]])
            if len(values) < LEAST_SIDE:
                return np.nan, np.nan
            half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
            found.append(float(values.mean() + sign * side * half))
        return found[0], found[1]


def fit_trend(scores: Scores, against: str = LOSS) -> Trend:
    """Of one architecture's checkpoints, of which there is at least one."""
    z = scores.order(against)
    knots, where = np.unique(z, return_inverse=True)
    mean = np.bincount(where, scores.value) / np.bincount(where)
    rising = scores.scale.higher_is_better
    found = optimize.isotonic_regression(mean, weights=np.bincount(where).astype(float), increasing=rising).x
    tau = float(stats.kendalltau(z, scores.value).statistic) * (1 if rising else -1)
    return Trend(scores, against, knots, np.asarray(found), tau)
