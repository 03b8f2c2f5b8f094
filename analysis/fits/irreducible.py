"""L(C) = E + beta C^alpha, a power law above an irreducible loss, one law or thousands at once.

For a given exponent the law is linear in E and beta: both by least squares of relative errors (equal to first order to
those of log loss), E no lower than 0, so that E = 0 gives the pure power law. What is left is a search over the
exponent alone, on a grid and then by golden section (variable projection: Golub and Pereyra 1973).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NEEDED = 4  # points: three parameters and one more
EXPONENTS = np.geomspace(3e-3, 3.0, 48)  # -alpha among which the search begins
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Irreducible:
    """L = floor + above exp(exponent (log C - centre)), of r fits: floor E, above = L - E at the centre, exponent
    alpha < 0, squares: the mean square of relative errors, each [r]."""

    floor: np.ndarray
    above: np.ndarray
    exponent: np.ndarray
    squares: np.ndarray
    centre: float

    def at(self, log_c: float | np.ndarray) -> np.ndarray:
        """Loss [r] at log C, or [r, g] at g of them."""
        off = np.asarray(log_c) - self.centre
        if off.ndim:
            return self.floor[:, None] + self.above[:, None] * np.exp(self.exponent[:, None] * off)
        return self.floor + self.above * np.exp(self.exponent * off)


def fit_irreducible(log_c: np.ndarray, loss: np.ndarray) -> Irreducible:
    """Fits of loss [r, g] at log_c [g]; raises ValueError for fewer than NEEDED points or values that are not positive
    and finite. A row of nan has a fit of nan."""
    loss = np.atleast_2d(loss)
    good = np.isfinite(loss).all(1)
    if loss.shape[1] < NEEDED or not np.isfinite(log_c).all() or len(np.unique(log_c)) < NEEDED:
        raise ValueError(f"a power law with an irreducible loss needs {NEEDED} different C")
    if (loss[good] <= 0).any():
        raise ValueError("a power law needs positive losses")
    centre = float(log_c.mean())
    x, y = log_c - centre, np.where(good[:, None], loss, 1.0)
    weights = 1 / y**2
    table = np.stack([_solve(x, y, weights, np.full(len(y), exponent))[2] for exponent in EXPONENTS], 1)  # [r, G]
    best = table.argmin(1)
    log_e = np.log(EXPONENTS)
    low, high = log_e[np.maximum(best - 1, 0)], log_e[np.minimum(best + 1, len(log_e) - 1)]
    for _ in range(32):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        lower = _solve(x, y, weights, np.exp(left))[2] < _solve(x, y, weights, np.exp(right))[2]
        low, high = np.where(lower, low, left), np.where(lower, right, high)
    exponent = np.exp((low + high) / 2)
    floor, above, squares = _solve(x, y, weights, exponent)
    nan = np.where(good, 0.0, np.nan)
    return Irreducible(floor + nan, above + nan, nan - exponent, squares / len(x) + nan, centre)


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
