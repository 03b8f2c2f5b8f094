"""L(C) = E + beta C^alpha, a power law above an irreducible loss, one law or thousands at once.

For a given exponent the law is linear in E and beta: both by least squares of relative errors (equal to first order to
those of log loss), E no lower than 0, so that E = 0 gives the pure power law. What is left is a search over the
exponent alone, on a grid and then by golden section (variable projection: Golub and Pereyra 1973). Few points hardly
tell the exponent; what it is of other laws can be said beforehand, as a normal density of its logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

NEEDED = 4  # points: three parameters and one more
EXPONENTS = np.geomspace(3e-3, 3.0, 48)  # -alpha among which the search begins
GOLDEN = (5**0.5 - 1) / 2
LEAST_SQUARE = 1e-10  # of relative errors, that any points have


@dataclass(frozen=True)
class Irreducible:
    """L = floor + above exp(exponent (log C - centre)), of r fits: floor E, above = L - E at the centre, exponent
    alpha < 0, each [r]."""

    floor: np.ndarray
    above: np.ndarray
    exponent: np.ndarray
    centre: float

    def at(self, log_c: float | np.ndarray) -> np.ndarray:
        """Loss [r] at log C, or [r, g] at g of them."""
        off = np.asarray(log_c) - self.centre
        if off.ndim:
            return self.floor[:, None] + self.above[:, None] * np.exp(self.exponent[:, None] * off)
        return self.floor + self.above * np.exp(self.exponent * off)

    def take(self, which: Any) -> Irreducible:
        """The fits of an index."""
        return Irreducible(self.floor[which], self.above[which], self.exponent[which], self.centre)


def fit_irreducible(
    log_c: np.ndarray,
    loss: np.ndarray,
    weights: np.ndarray | None = None,
    expected: tuple[float, float] | None = None,
) -> Irreducible:
    """Fits of loss [r, g] at log_c [g], weighted by `weights` [r, g] (None: alike). expected: -alpha of other laws, and
    the standard deviation of its logarithm between them. Raises ValueError for fewer than NEEDED points (2 where an
    exponent is expected) or values that are not positive and finite. A row of nan has a fit of nan."""
    loss = np.atleast_2d(loss)
    good = np.isfinite(loss).all(1)
    needed = NEEDED if expected is None else 2
    if loss.shape[1] < needed or not np.isfinite(log_c).all() or len(np.unique(log_c)) < needed:
        raise ValueError(f"a power law with an irreducible loss needs {needed} different C")
    if (loss[good] <= 0).any():
        raise ValueError("a power law needs positive losses")
    centre = float(log_c.mean())
    x, y = log_c - centre, np.where(good[:, None], loss, 1.0)
    relative = np.ones(y.shape) if weights is None else weights / weights.mean(1, keepdims=True)
    n_points, weights = len(x) ** 2 / (relative**2).sum(1), relative / y**2  # so many that weigh alike tell as much

    def misfit(exponent: np.ndarray) -> np.ndarray:
        squares = _solve(x, y, weights, exponent)[2]
        if expected is None:
            return squares
        deviance = n_points * np.log(squares / len(x) + LEAST_SQUARE)
        return np.asarray(deviance + (np.log(exponent / expected[0]) / expected[1]) ** 2)

    table = np.stack([misfit(np.full(len(y), exponent)) for exponent in EXPONENTS], 1)  # [r, G]
    best = table.argmin(1)
    log_e = np.log(EXPONENTS)
    low, high = log_e[np.maximum(best - 1, 0)], log_e[np.minimum(best + 1, len(log_e) - 1)]
    for _ in range(32):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        lower = misfit(np.exp(left)) < misfit(np.exp(right))
        low, high = np.where(lower, low, left), np.where(lower, right, high)
    exponent = np.exp((low + high) / 2)
    floor, above, _ = _solve(x, y, weights, exponent)
    nan = np.where(good, 0.0, np.nan)
    return Irreducible(floor + nan, above + nan, nan - exponent, centre)


def _solve(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, exponent: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E, the loss above it at x = 0, and the weighted sum of squares, each [r], for -alpha = exponent [r]."""
    u = np.exp(-exponent[:, None] * x)
    w, wu, wuu = weights.sum(1), (weights * u).sum(1), (weights * u**2).sum(1)
    wy, wuy = (weights * y).sum(1), (weights * u * y).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):  # an exponent near 0 tells no two terms apart
        floor = np.nan_to_num(np.maximum((wuu * wy - wu * wuy) / (w * wuu - wu**2), 0.0), posinf=0.0)
    above = np.maximum((wuy - floor * wu) / wuu, 0.0)
    flat = above == 0
    floor = np.where(flat, wy / w, floor)
    return floor, above, (weights * (y - floor[:, None] - above[:, None] * u) ** 2).sum(1)
