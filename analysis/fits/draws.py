"""Seeded draws of errors, and intervals between percentiles of what is computed from them.

One rule of percentiles: of r draws in rising order the k-th is the quantile k / (r + 1) (Weibull 1939), interpolated
between two, so that an interval of few draws is not too narrow.
"""

from __future__ import annotations

import numpy as np


def student_scale(rng: np.random.Generator, df: float, r: int) -> np.ndarray:
    """[r] factors by which a standard deviation that was measured with `df` degrees of freedom may be too small:
    sqrt(df / chi-squared). Normal draws times these have Student's t distribution."""
    return np.asarray(np.sqrt(df / rng.chisquare(df, size=r)))


def percentiles(values: np.ndarray, level: float) -> np.ndarray:
    """[2, ...]: the ends of the central `level` of draws [r, ...]; draws that are not finite are left out, and without
    any the ends are nan."""
    tail = (1 - level) / 2
    values = np.where(np.isfinite(values), values, np.nan)
    ends = np.full((2, *values.shape[1:]), np.nan)
    known = np.isfinite(values).any(0)
    if known.any():
        ends[:, known] = np.nanquantile(values[:, known], [tail, 1 - tail], axis=0, method="weibull")
    return ends


def interval(values: np.ndarray, level: float, least: float = 0.5) -> tuple[float, float] | None:
    """The central `level` of draws [r]; None where less than the share `least` of them, or fewer than two, are
    finite."""
    if np.isfinite(values).sum() < max(2, least * len(values)):
        return None
    low, high = percentiles(values, level).tolist()
    return low, high
