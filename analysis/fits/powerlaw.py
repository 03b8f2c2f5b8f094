"""y = coef x^exponent by ordinary least squares in log-log, one law or thousands at once.

Logarithms of x are centred before the fit: at 1e22 FLOP the raw normal equations lose half of their digits. The
response enters linearly, so laws of N and D fitted on the same points of C = 6 N D have exponents that sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PowerLaw:
    """y = coef x^exponent, equally centre_y (x / centre_x)^exponent; r2 is that of log y (nan for a constant y)."""

    coef: float
    exponent: float
    r2: float
    n_points: int
    centre_x: float
    centre_y: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.centre_y * (np.asarray(x, dtype=float) / self.centre_x) ** self.exponent


def fit_power_law(x: np.ndarray, y: np.ndarray) -> PowerLaw:
    """Fit positive x, y [n]; raises ValueError for fewer than two distinct x or a value that is not positive."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if not (np.all(np.isfinite(x)) and np.all(np.isfinite(y)) and np.all(x > 0) and np.all(y > 0)):
        raise ValueError("a power law needs positive, finite x and y")
    if len(np.unique(x)) < 2:
        raise ValueError("a power law needs at least two different x")
    log_y = np.log(y)
    slope, intercept, centre = fit_lines(np.log(x), log_y[None, :], np.ones((1, len(x)), dtype=bool))
    residual = log_y - (intercept[0] + slope[0] * (np.log(x) - centre[0]))
    spread = float(((log_y - log_y.mean()) ** 2).sum())
    return PowerLaw(
        coef=float(np.exp(intercept[0] - slope[0] * centre[0])),
        exponent=float(slope[0]),
        r2=1 - float((residual**2).sum()) / spread if spread > 0 else float("nan"),
        n_points=len(x),
        centre_x=float(np.exp(centre[0])),
        centre_y=float(np.exp(intercept[0])),
    )


def fit_lines(x: np.ndarray, y: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least-squares lines y = intercept + slope (x - centre) for x [n] and y [r, n], over the points keep [r, n].

    Returns slope, intercept and centre, each [r]; nan where fewer than two different x are kept.
    """
    count = keep.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = (keep * x).sum(1) / count
        intercept = np.where(keep, y, 0.0).sum(1) / count
        off = np.where(keep, x - centre[:, None], 0.0)
        spread = (off**2).sum(1)
        rise = (off * np.where(keep, y - intercept[:, None], 0.0)).sum(1)
        slope = np.where(spread > 0, rise / spread, np.nan)
    return slope, np.where(count > 1, intercept, np.nan), centre
