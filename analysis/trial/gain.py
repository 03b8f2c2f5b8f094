"""How much more compute the baseline needs for the variant's loss, at budgets beyond the runs: both architectures'
surfaces of loss fitted jointly, with the noise that runs share taken out of the difference (analysis.fits.comparison).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy import stats

from analysis.fits.comparison.compare import Compared, compare_architectures, interval, log_gain
from analysis.fits.comparison.pairs import NO_E_REASON, e_at_bound
from analysis.fits.points import Points
from arch.errors import InputError

from .difference import LEVEL

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
    """The gain at each budget, or in words why surfaces tell none. seed_noise: the least noise of a run, as a standard
    deviation of log loss; text_error: standard error of the log of the losses' ratio from the held-out text, which
    moves all sizes alike: it enters by the slope of the baseline's frontier there."""
    groups = [replace(baseline, group="baseline"), replace(variant, group="variant")]
    try:
        found = compare_architectures(groups, n_replicates=n_replicates, level=LEVEL, seed_noise=seed_noise)
        common = found.common
    except InputError as error:
        return str(error)
    if not found.fine[0]:
        return "the exponents of a fitted surface ended at the end of their range"
    if e_at_bound(found) and max(at) > common[1]:
        return NO_E_REASON
    gains = []
    for c in at:
        loss = float(found.l_opt("baseline", c)[0])
        drawn = log_gain(found, "baseline", "variant", loss)
        ends = interval(drawn, found)
        if ends is None or not math.isfinite(drawn[0]):
            return "too many draws of the fitted surfaces ended at a bound, or never reach the loss"
        value, of_text = float(drawn[0]), QUANTILE * text_error / _slope(found, c)
        low = -math.inf if ends[0] is None else value - math.hypot(value - min(ends[0], value), of_text)
        high = math.inf if ends[1] is None else value + math.hypot(max(ends[1], value) - value, of_text)
        gains.append(Gain(float(c), loss, *(_exp(one) for one in (value, low, high))))
    return gains


def _slope(found: Compared, c: float) -> float:
    """-d log L / d log C along the baseline's frontier."""
    ends = [math.log(float(found.l_opt("baseline", c * times)[0])) for times in (1 / STEP, STEP)]
    return max((ends[0] - ends[1]) / (2 * math.log(STEP)), 1e-9)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
