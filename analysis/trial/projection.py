"""Projections beyond the runs of a trial: gains in compute from surfaces of loss, or ratios of losses from a line.

Gain: how much more compute the baseline needs for the variant's loss. Both architectures' surfaces are fitted jointly,
and the noise that their runs share is taken out of the difference (analysis.fits.comparison).

Ratio: where there are too few runs for surfaces, log(L_variant / L_baseline) is fitted as linear in log C, which is a
power law of the ratio. It has no irreducible loss: far beyond the runs the true ratio goes to 1, and the line does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from analysis.fits.comparison.compare import Compared, compare_architectures, interval, log_gain
from analysis.fits.comparison.pairs import NO_E_REASON, e_at_bound
from analysis.fits.points import Points
from arch.errors import InputError

from .difference import LEVEL, Difference, SeedVariance

N_REPLICATES = 299
STEP = 1.1  # times C to either side, for the slope of a frontier
QUANTILE = float(stats.norm.ppf((1 + LEVEL) / 2))


@dataclass(frozen=True)
class Gain:
    """At budget c [FLOP] of the baseline's frontier: the compute that the baseline needs there over what the variant
    needs for the same loss, above 1 where the variant is better; interval of LEVEL, inf for an end without a bound."""

    c: float
    loss: float
    gain: float
    low: float
    high: float


def project_gain(
    baseline: Points,
    variant: Points,
    at: Sequence[float],
    seed_noise: float = 0.0,
    text_error: float = 0.0,
    n_replicates: int = N_REPLICATES,
) -> list[Gain] | str:
    """The gain at each budget, or in words why surfaces give none. seed_noise: the least noise of a run, as a standard
    deviation of log loss; text_error: standard error of the log of the losses' ratio from the held-out text, which
    moves all sizes alike: it enters by the slope of the baseline's frontier there."""
    groups = [replace(baseline, group="baseline"), replace(variant, group="variant")]
    try:
        comparison = compare_architectures(groups, n_replicates=n_replicates, level=LEVEL, seed_noise=seed_noise)
        common = comparison.common
    except InputError as error:
        return str(error)
    if not comparison.fine[0]:
        return "the exponents of a fitted surface ended at the end of their range"
    if e_at_bound(comparison) and max(at) > common[1]:
        return NO_E_REASON
    gains = []
    for c in at:
        loss = float(comparison.l_opt("baseline", c)[0])
        drawn = log_gain(comparison, "baseline", "variant", loss)
        ends = interval(drawn, comparison)
        if ends is None or not math.isfinite(drawn[0]):
            return "too many draws of the fitted surfaces ended at a bound, or never reach the loss"
        value, of_text = float(drawn[0]), QUANTILE * text_error / _slope(comparison, c)
        low = -math.inf if ends[0] is None else value - math.hypot(value - min(ends[0], value), of_text)
        high = math.inf if ends[1] is None else value + math.hypot(max(ends[1], value) - value, of_text)
        gains.append(Gain(float(c), loss, *(_exp(log_value) for log_value in (value, low, high))))
    return gains


def _slope(comparison: Compared, c: float) -> float:
    """-d log L / d log C along the baseline's frontier."""
    ends = [math.log(float(comparison.l_opt("baseline", c * times)[0])) for times in (1 / STEP, STEP)]
    return max((ends[0] - ends[1]) / (2 * math.log(STEP)), 1e-9)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


LEAST_SIZES = 3  # a line through fewer points has no residuals to estimate its error from


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
    """The ratio at each budget of `at`. flops: the baseline's compute at each size. None for fewer than LEAST_SIZES.
    The error at a size is the sizes' scatter about the line, or the noise between seeds where that is larger, by
    Student's t of n - 2 degrees of freedom. The error of the text moves all sizes alike, so it is added once."""
    n = len(differences)
    if n < LEAST_SIZES:
        return None
    x, y = np.log(flops), np.log([difference.variant / difference.baseline for difference in differences])
    mean, spread = float(x.mean()), float(((x - x.mean()) ** 2).sum())
    slope = float(((x - mean) * y).sum()) / spread
    left = float(((y - y.mean() - slope * (x - mean)) ** 2).sum()) / (n - 2)
    if seeds is not None:
        left = max(left, seeds.value * float(np.mean([1 / len(difference.seeds) for difference in differences])))
    text = max(((difference.se_text or 0.0) / difference.baseline) ** 2 for difference in differences)
    t = float(stats.t.ppf((1 + LEVEL) / 2, n - 2))
    projected = []
    for c in at:
        away = math.log(c) - mean
        value = float(y.mean()) + slope * away
        half = t * math.sqrt(left * (1 / n + away**2 / spread) + text)
        projected.append(Ratio(float(c), *(math.exp(log_ratio) for log_ratio in (value, value - half, value + half))))
    return projected
