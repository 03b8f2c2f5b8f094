"""The ratio of two losses over compute, where runs are too few for surfaces of loss: log(L_variant / L_baseline) is
taken as linear in log C, which is a power law of the ratio, and read off at larger budgets.

A straight line has no irreducible loss in it: far beyond the runs every ratio goes to 1, and this one does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .difference import LEVEL, Difference, SeedVariance

LEAST_SIZES = 3  # a line through fewer leaves nothing to tell its error by


@dataclass(frozen=True)
class Ratio:
    """L_variant / L_baseline at compute c [FLOP] with its interval of LEVEL."""

    c: float
    ratio: float
    low: float
    high: float


def project_ratio(
    differences: Sequence[Difference], flops: Sequence[float], seeds: SeedVariance | None, at: Sequence[float]
) -> list[Ratio] | None:
    """The ratio at each budget of `at`; flops: the baseline's compute at each size. None for fewer than LEAST_SIZES.

    The error at a size is what the sizes scatter about the line, or the noise between seeds where that is larger, by
    Student's t of n - 2 degrees of freedom. The error of the text moves all sizes alike, so it is added once.
    """
    n = len(differences)
    if n < LEAST_SIZES:
        return None
    x, y = np.log(flops), np.log([one.variant / one.baseline for one in differences])
    mean, spread = float(x.mean()), float(((x - x.mean()) ** 2).sum())
    slope = float(((x - mean) * y).sum()) / spread
    left = float(((y - y.mean() - slope * (x - mean)) ** 2).sum()) / (n - 2)
    if seeds is not None:
        left = max(left, seeds.value * float(np.mean([1 / len(one.seeds) for one in differences])))
    text = max(((one.se_text or 0.0) / one.baseline) ** 2 for one in differences)
    t = float(stats.t.ppf((1 + LEVEL) / 2, n - 2))
    found = []
    for c in at:
        away = math.log(c) - mean
        value = float(y.mean()) + slope * away
        half = t * math.sqrt(left * (1 / n + away**2 / spread) + text)
        found.append(Ratio(float(c), *(math.exp(one) for one in (value, value - half, value + half))))
    return found
