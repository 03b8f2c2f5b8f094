"""How far two seeds of one size lie apart, pooled over the sizes that have several: the noise that enters a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LAG = 1.0  # log C over which the correlation of a curve's noise is measured
LEAST_CORRELATION = 0.01  # what is measured as less, or as negative, counts as this

# architecture, size, log loss [seeds, points], and perhaps the names of the seeds' runs
Group = tuple[str, str, np.ndarray] | tuple[str, str, np.ndarray, tuple[str, ...]]


@dataclass(frozen=True)
class SeedNoise:
    """Between-seed standard deviation of log smoothed loss, its degrees of freedom, what it was pooled from, and the
    correlation of a curve's noise with itself an e-fold of compute later."""

    s: float
    df: int
    groups: tuple[dict[str, object], ...] = ()
    correlation: float = 1.0


def pool_seed_noise(groups: Sequence[Group], step: float = 0.0) -> SeedNoise | None:
    """Pool groups of seeds; None where no group has two seeds and a common point.

    At each point the variance between seeds has seeds - 1 degrees of freedom; points along one curve are not
    independent, so a group's variance is their mean and its degrees of freedom stay seeds - 1. `step`: log C between
    neighbouring points, for the correlation along a curve (0: taken as 1).
    """
    found: list[dict[str, object]] = []
    total, df, lagged = 0.0, 0, [0.0, 0.0]
    lag = round(LAG / step) if step else 0
    for arch, size, table, *runs in groups:
        common = table[:, np.isfinite(table).all(0)]
        if len(common) > 1 and common.shape[1]:
            variance = float(common.var(0, ddof=1).mean())
            total, df = total + (len(common) - 1) * variance, df + len(common) - 1
            named = {"runs": list(runs[0])} if runs else {}
            found.append({"arch": arch, "size": size, "n_seeds": len(common), "s": variance**0.5} | named)
            off = common - common.mean(0)
            if 0 < lag < common.shape[1]:
                early, late = off[:, :-lag], off[:, lag:]
                lagged[0] += float((early * late).sum(0).mean())
                lagged[1] += float((early**2 + late**2).sum(0).mean()) / 2
    if not df:
        return None
    correlation = min(max(lagged[0] / lagged[1], LEAST_CORRELATION), 1.0) ** (1 / (lag * step)) if lagged[1] else 1.0
    return SeedNoise((total / df) ** 0.5, df, tuple(found), correlation)
