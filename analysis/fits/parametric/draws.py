"""Replicates of a fit, and intervals from them.

From 20 independent trunks up: a bootstrap over trunks (a run that was not branched is its own). Below that resampling
repeats too few of them, so replicates are drawn from the fitted surface and the noise that its residuals show, with
effects of whole trunks and runs and with variances drawn too (module noise). So they are for the data-constrained
forms, of as many runs: those that tell R* are few of them. Either way each replicate is fitted as the
points were, and an interval lies between percentiles of whatever is computed from the replicates' surfaces.
docs/research/parametric-fits.md has how often they cover.

Percentiles of a bootstrap are too narrow for least squares with few trunks: they take the quantiles of Student's t with
n - p degrees of freedom, p the free parameters, in the place of the normal's (Hesterberg 2015, section 3.2). Those of
Huber losses need not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.solver import LEAST_SQUARES
from analysis.fits.surface import Surface

LEAST_TRUNKS = 20  # for a bootstrap
CHUNK = 4_000_000  # weights of a bootstrap that are held at once, for the memory's sake
OVER_TRUNKS = "bootstrap over {n} {what}, percentile interval"
WIDENED = "bootstrap over {n} {what}, percentile interval with quantiles of Student's t"
SIMULATED = "{r} fits to the fitted surface with noise of whole {what} as its residuals show it, percentile interval"
NONE = "none: the residuals leave no degree of freedom for the noise, and no seeds were measured"
NOT_ASKED = "none: no replicates were asked for"


@dataclass(frozen=True)
class Draws:
    """r surfaces [r] that the noise could have led to.

    `at_bound`: the shares of replicates in which alpha, beta, R_D and R_N ended at the end of their range or have no
    term. `df`: of Student's t where the percentiles are widened by it. `noise` [r, n]: of log loss at the fitted
    points, where replicates were drawn from the surface."""

    surface: Surface
    method: str
    over: str
    at_bound: tuple[float, ...]
    df: float | None = None
    noise: np.ndarray | None = None

    def interval(self, values: Any, level: float = 0.95) -> np.ndarray:
        """[2, ...]: low and high ends for values [r, ...] computed from the replicates. Values that are nan are left
        out; infinite ones count."""
        tail = (1 - level) / 2
        if self.df is not None:
            tail = float(stats.norm.sf(stats.t.isf(tail, self.df)))
        return quantiles(np.asarray(values, dtype=float), tail)


def quantiles(values: np.ndarray, tail: float) -> np.ndarray:
    """[2, ...]: the order statistics of values [r, ...] that leave `tail` (r + 1) replicates outside on either side.

    With r replicates the k-th lowest stands for the quantile k / (r + 1); between two it is interpolated, beyond the
    lowest it is the lowest. Infinite values have no interpolation: the outer of the two is taken.
    """
    r = len(values)
    ordered = np.sort(values, axis=0)
    count = np.isfinite(values).sum(0) + np.isinf(values).sum(0)  # nan sort last
    found = []
    for share, outer in ((tail, np.minimum), (1 - tail, np.maximum)):
        at = np.clip(share * (count + 1) - 1, 0, np.maximum(count - 1, 0))
        low, high = (
            np.take_along_axis(ordered, np.clip(k, 0, r - 1)[None], 0)[0] for k in (_floor(at), _floor(at) + 1)
        )
        high = np.where(at > _floor(at), high, low)
        with np.errstate(invalid="ignore"):
            between = low + (at - np.floor(at)) * (high - low)
        found.append(np.where(np.isfinite(low) & np.isfinite(high), between, outer(low, high)))
    return np.stack(found)


def _floor(at: np.ndarray) -> np.ndarray:
    return np.asarray(np.floor(at).astype(int))


def resampled(trunk: np.ndarray, weights: np.ndarray, rng: np.random.Generator, r: int) -> Iterator[np.ndarray]:
    """Weights of r bootstraps over trunks, whose rows stay together: [k, n] in turn, of at most CHUNK numbers."""
    _, which = np.unique(trunk.astype(str), return_inverse=True)
    n = int(which.max()) + 1
    chunk = max(1, CHUNK // len(which))
    for first in range(0, r, chunk):
        yield rng.multinomial(n, np.full(n, 1 / n), min(chunk, r - first))[:, which] * weights


def widening(n_trunks: int, objective: str, n_free: int) -> float | None:
    return float(n_trunks - n_free) if objective == LEAST_SQUARES else None
