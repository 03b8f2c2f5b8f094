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


def quantiles(values: np.ndarray, tail: float) -> np.ndarray:
    """[2, ...]: the order statistics of values [r, ...] that leave `tail` (r + 1) replicates outside on either side.

    With r replicates the k-th lowest stands for the quantile k / (r + 1); between two it is interpolated, beyond the
    lowest it is the lowest. Infinite values have no interpolation: the outer of the two is taken.
    """
    ordered = np.sort(values, axis=0)
    count = (~np.isnan(values)).sum(0)  # nan sort last
    ends = []
    for share, outer in ((tail, np.minimum), (1 - tail, np.maximum)):
        at = np.clip(share * (count + 1) - 1, 0, np.maximum(count - 1, 0))
        below = np.floor(at).astype(int)
        above = np.where(at > below, np.minimum(below + 1, len(values) - 1), below)
        low, high = (np.take_along_axis(ordered, k[None], 0)[0] for k in (below, above))
        with np.errstate(invalid="ignore"):
            between = low + (at - below) * (high - low)
        ends.append(np.where(np.isfinite(low) & np.isfinite(high), between, outer(low, high)))
    return np.stack(ends)


def percentiles(values: np.ndarray, level: float) -> np.ndarray:
    """[2, ...]: the ends of the central `level` of draws [r, ...]; draws that are not finite are left out, and without
    any the ends are nan."""
    return quantiles(np.where(np.isfinite(values), values, np.nan), (1 - level) / 2)


def interval(values: np.ndarray, level: float, least: float = 0.5) -> tuple[float, float] | None:
    """The central `level` of draws [r]; None where less than the share `least` of them, or fewer than two, are
    finite."""
    if np.isfinite(values).sum() < max(2, least * len(values)):
        return None
    low, high = percentiles(values, level).tolist()
    return low, high
