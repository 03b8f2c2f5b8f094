"""Is a change of an architecture worth scaling? How a variant compares with its baseline at single sizes, projections
beyond them, and a verdict: pure, no files.

Two errors enter a difference of held-out losses at a size. Text: other held-out documents would give another
difference; runs are paired window by window, and windows of one document count as one cluster (analysis.held_out).
Seeds: other initial weights and another order of the text would give another difference; runs of one seed are paired,
since they read the same batches. The difference estimated is the mean over seeds and over text like the held-out
documents. Where the noise between seeds is unknown, the interval is that of the text alone, and holds only for the
initial weights that were trained.

Projections: the compute for the same loss from surfaces of both, fitted jointly (analysis.fits.comparison); and, where
there are too few runs for surfaces, log(L_variant / L_baseline) as linear in log C, which is a power law of the ratio.
It has no irreducible loss: far beyond the runs the true ratio goes to 1, and the line does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from analysis.fits.comparison.frontiers import NO_E_REASON, Frontiers, fit_frontiers
from analysis.fits.noise import more_seeds
from analysis.fits.pairwise import BETTER, COMPUTE, LOSS, UNKNOWN, WORSE, Comparison, compared
from analysis.fits.points import Points
from analysis.held_out import LEAST, independent, standard_error
from arch.amounts import counted, flop
from arch.errors import InputError

LEVEL = 0.9  # of intervals: the whole interval on one side of 0 is an error of 5%
ENOUGH = 4  # degrees of freedom from which on the noise between seeds is estimated from the pairs alone
LEAST_SIZES = 3  # a line through fewer points has no residuals to estimate its error from
N_REPLICATES = 299
STEP = 1.1  # times C to either side, for the slope of a frontier
VARIANT, BASELINE = "variant", "baseline"
LARGER, MOST_TIMES = "a larger size in the study, nearer to that compute,", 8  # times the seeds that are proposed
WORTH, BETTER_HERE, NOT_WORTH, CANNOT_TELL = "worth scaling", "better here", "not worth", "cannot tell"
ALONE = "seeds were not repeated anywhere: these differences hold for the initial weights that were trained, no others"


@dataclass(frozen=True, eq=False)
class Pairs:
    """The seeds that baseline and variant share at one size: nats a token [seeds, windows] of each; flops: of the
    baseline's runs; documents: the first and last document of every window [windows, 2]."""

    size: str
    seeds: tuple[int, ...]
    baseline: np.ndarray
    variant: np.ndarray
    flops: float
    documents: np.ndarray

    @property
    def log_ratios(self) -> np.ndarray:
        """[seeds]: log of the variant's held-out loss over the baseline's."""
        return np.asarray(np.log(self.variant.mean(1) / self.baseline.mean(1)))


@dataclass(frozen=True)
class SeedVariance:
    """Variance of `Pairs.log_ratios` between seeds, its degrees of freedom, and in words from which seeds it is."""

    value: float
    df: float
    basis: str


@dataclass(frozen=True)
class Difference:
    """Variant less baseline at one size, nats a token, with its standard errors: of the text (None: too few independent
    documents), and between seeds (None: not known and not counted); df: of both together; loss: the comparison, with an
    interval at LEVEL."""

    size: str
    seeds: tuple[int, ...]
    baseline: float
    variant: float
    se_text: float | None
    se_seeds: float | None
    df: float
    loss: Comparison

    @property
    def value(self) -> float:
        return self.variant - self.baseline

    @property
    def ends(self) -> tuple[float, float] | None:
        """Of the difference, nats a token."""
        more = self.loss.more.ends
        return None if more is None else (self.baseline * more[0], self.baseline * more[1])


def seed_variance(pairs: Sequence[Pairs], noise: tuple[float, float] | None = None) -> SeedVariance | None:
    """The noise between seeds of the log ratio; None where nothing is known. noise: (s, degrees of freedom) of log loss
    between seeds of the study's own runs.

    It is estimated from the pairs where sizes have several seeds. Below ENOUGH degrees of freedom it is pooled with 2
    s^2: the variance of a difference of two runs that share nothing, which is too large where shared batches move both.
    """
    df = float(sum(len(pair.seeds) - 1 for pair in pairs))
    squares = sum(float(((pair.log_ratios - pair.log_ratios.mean()) ** 2).sum()) for pair in pairs)
    if df >= ENOUGH or (df > 0 and noise is None):
        return SeedVariance(squares / df, df, f"the pairs' own seeds ({df:g} degrees of freedom)")
    if noise is None:
        return None
    s, more = noise
    basis = f"seeds repeated in the study ({more:.1f} degrees of freedom)"
    basis = f"{basis} and the pairs' own ({df:g})" if df else basis
    return SeedVariance((squares + more * 2 * s**2) / (df + more), df + more, basis)


def difference(pairs: Pairs, seeds: SeedVariance | None) -> Difference:
    """At one size, with degrees of freedom by Satterthwaite (1946) from those of text and seeds."""
    base, other = float(pairs.baseline.mean()), float(pairs.variant.mean())
    by_window = (pairs.variant - pairs.baseline).mean(0)
    n_effective = independent(pairs.documents)
    se_text = standard_error(by_window, pairs.documents) if n_effective >= LEAST else None
    se_seeds = None if seeds is None else base * math.sqrt(seeds.value / len(pairs.seeds))
    df, half = 0.0, None
    if se_text is not None:
        parts = [(se_text**2, n_effective - 1)]
        if seeds is not None and se_seeds is not None:
            parts.append((se_seeds**2, seeds.df))
        total = sum(variance for variance, _ in parts)
        df = total**2 / sum(variance**2 / degrees for variance, degrees in parts) if total > 0 else n_effective - 1
        half = float(stats.t.ppf((1 + LEVEL) / 2, df)) * math.sqrt(total)
    ends = None if half is None else [math.log((other + end) / base) for end in (-half, half)]
    loss = compared(VARIANT, BASELINE, LOSS, pairs.flops, math.log(other / base), ends, "too few independent documents")
    return Difference(pairs.size, pairs.seeds, base, other, se_text, se_seeds, df, loss)


def project_compute(
    baseline: Points,
    variant: Points,
    at: Sequence[float],
    seed_noise: float = 0.0,
    text_error: float = 0.0,
    n_replicates: int = N_REPLICATES,
) -> list[Comparison]:
    """The compute for the same loss at each budget [FLOP] of the baseline's frontier. seed_noise: the least noise of a
    run, as a standard deviation of log loss; text_error: standard error of the log of the losses' ratio from the
    held-out text, which moves all sizes alike: it enters by the slope of the baseline's frontier there.

    Raises InputError where surfaces give none."""
    groups = [replace(baseline, group=BASELINE), replace(variant, group=VARIANT)]
    frontiers = fit_frontiers(groups, n_replicates, LEVEL, seed_noise=seed_noise)
    common = frontiers.common
    if not frontiers.fine[0]:
        raise InputError("the exponents of a fitted surface ended at the end of their range")
    if frontiers.e_at_bound and max(at) > common[1]:
        raise InputError(NO_E_REASON)
    quantile = float(stats.norm.ppf((1 + LEVEL) / 2))
    projected = []
    for c in at:
        drawn = frontiers.log_gain(BASELINE, VARIANT, float(frontiers.l_opt(BASELINE, c)[0]))
        ends, gain = frontiers.interval(drawn), float(drawn[0])
        if ends is None or not math.isfinite(gain):
            raise InputError("too many draws of the fitted surfaces ended at a bound, or never reach the loss")
        of_text = quantile * text_error / _slope(frontiers, c)
        up = math.hypot(max(ends[1] - gain, 0.0), of_text)
        down = math.hypot(max(gain - ends[0], 0.0), of_text)
        projected.append(compared(VARIANT, BASELINE, COMPUTE, float(c), -gain, (-gain - up, -gain + down)))
    return projected


def _slope(frontiers: Frontiers, c: float) -> float:
    """-d log L / d log C along the baseline's frontier."""
    ends = [math.log(float(frontiers.l_opt(BASELINE, c * times)[0])) for times in (1 / STEP, STEP)]
    return max((ends[0] - ends[1]) / (2 * math.log(STEP)), 1e-9)


def project_loss(
    differences: Sequence[Difference], seeds: SeedVariance | None, at: Sequence[float]
) -> list[Comparison] | None:
    """The losses at each budget of `at`, by a line over the sizes. None for fewer than LEAST_SIZES. The error at a size
    is the sizes' scatter about the line, or the noise between seeds where that is larger, by Student's t of n - 2
    degrees of freedom. The error of the text moves all sizes alike, so it is added once."""
    n = len(differences)
    if n < LEAST_SIZES:
        return None
    x = np.log([difference.loss.at for difference in differences])
    y = np.log([difference.variant / difference.baseline for difference in differences])
    line = stats.linregress(x, y)
    left = float(((y - line.intercept - line.slope * x) ** 2).sum()) / (n - 2)
    if seeds is not None:
        left = max(left, seeds.value * float(np.mean([1 / len(difference.seeds) for difference in differences])))
    text = max(((difference.se_text or 0.0) / difference.baseline) ** 2 for difference in differences)
    t, spread = float(stats.t.ppf((1 + LEVEL) / 2, n - 2)), float(((x - x.mean()) ** 2).sum())
    projected = []
    for c in at:
        away = math.log(c) - float(x.mean())
        value = float(y.mean()) + float(line.slope) * away
        half = t * math.sqrt(left * (1 / n + away**2 / spread) + text)
        projected.append(compared(VARIANT, BASELINE, LOSS, float(c), value, (value - half, value + half)))
    return projected


@dataclass(frozen=True)
class Verdict:
    """A verdict and its reason. goes_on: whether larger sizes are to be trained."""

    word: str
    reason: str
    goes_on: bool = False


def first_stage(differences: Sequence[Difference], unit: str) -> Verdict:
    """The verdict after the smallest sizes: to go on, the variant must be better at every size. unit: of losses
    (data.units)."""
    if worse := [difference for difference in differences if difference.loss.verdict == WORSE]:
        return Verdict(NOT_WORTH, f"the variant is worse at {_with_intervals(worse, unit)}")
    if unknown := [difference for difference in differences if difference.loss.verdict == UNKNOWN]:
        return Verdict(
            CANNOT_TELL,
            f"the held-out text of {_sizes(unknown)} amounts to too few independent documents for an interval: raise "
            f"evaluation.validation_tokens or hold out more documents",
        )
    if undecided := [difference for difference in differences if difference.loss.verdict != BETTER]:
        return Verdict(
            CANNOT_TELL,
            f"variant and baseline do not differ clearly at {_with_intervals(undecided, unit)}; {_halved(undecided)}",
        )
    return Verdict(CANNOT_TELL, f"the variant is better at {_sizes(differences)}", goes_on=True)


def last_stage(
    differences: Sequence[Difference],
    compute: Sequence[Comparison] | None,
    losses: Sequence[Comparison] | None,
    unit: str,
) -> Verdict:
    """The verdict after all sizes: by the compute for the same loss where surfaces could be fitted, else by the
    projected losses."""
    if worse := [difference for difference in differences if difference.loss.verdict == WORSE]:
        return Verdict(NOT_WORTH, f"the variant is worse at {_with_intervals(worse, unit)}")
    projected, is_better = compute or losses, all(difference.loss.verdict == BETTER for difference in differences)
    word, here = (BETTER_HERE, f"at {_sizes(differences)}; ") if is_better else (CANNOT_TELL, "")
    if not projected:
        verdicts = [f"{difference.loss.verdict} at {difference.size}" for difference in differences]
        return Verdict(
            word,
            f"{here}not enough to project: {counted(len(differences), 'size')} ({', '.join(verdicts)}), "
            f"and a line over compute takes {LEAST_SIZES}: another size in the study would give one",
        )
    what, form = (
        ("the variant needs", ".2f") if compute else ("the variant's loss over the baseline's is projected at", ".4f")
    )
    unit_of = "times the baseline's compute at" if compute else "at"
    texts = [f"{interval_text(comparison, form)} {unit_of} {flop(comparison.at)} FLOP" for comparison in projected]
    sentence = f"{what} {', '.join(texts)} ({LEVEL:.0%} intervals)"
    if all(comparison.verdict == BETTER for comparison in projected):
        against = [comparison for comparison in losses or () if compute and (comparison.ratio.value or 0.0) >= 1]
        if against:
            return Verdict(
                word,
                f"{here}{sentence}; but the ratio of the losses is projected at {against[0].ratio.value:.4f} at "
                f"{flop(against[0].at)} FLOP: the two disagree; {LARGER} would decide it",
            )
        return Verdict(WORTH, sentence)
    farthest = max(projected, key=lambda comparison: comparison.at)
    if farthest.verdict == WORSE:
        return Verdict(NOT_WORTH, sentence)
    first = next(comparison for comparison in projected if comparison.verdict != BETTER)
    return Verdict(word, f"{here}not certain at {flop(first.at)} FLOP: {sentence}; {_decided(first)}")


def _decided(open_: Comparison) -> str:
    """What would tell whether the variant is better where its projection does not."""
    value, high = math.log(open_.ratio.value or math.nan), (open_.ratio.interval or (0.0, math.inf))[1]
    times = math.inf if value >= 0 or math.isinf(high) else ((math.log(high) - value) / value) ** 2
    seeds = f"about {math.ceil(times)} times the seeds at every size, or " if times <= MOST_TIMES else ""
    return f"{seeds}{LARGER} would decide it"


def interval_text(projected: Comparison, form: str) -> str:
    """A projected ratio with its interval."""
    low, high = projected.ratio.interval or (math.nan, math.nan)
    return f"{projected.ratio.value:{form}} [{low:{form}}, {'no bound' if math.isinf(high) else format(high, form)}]"


def _halved(open_: Sequence[Difference]) -> str:
    """What would make the widest interval of these half as wide, at the most: seeds or text, by which of them its error
    is mainly of."""
    widest = max(open_, key=lambda difference: difference.loss.ratio.high or 0.0)
    text, n_seeds = widest.se_text or 0.0, len(widest.seeds)
    if widest.se_seeds is None:
        return f"4 times evaluation.validation_tokens would halve the interval at {widest.size}"
    of_seeds, quarter = widest.se_seeds**2, (text**2 + widest.se_seeds**2) / 4
    if text**2 < quarter:
        more = more_seeds(lambda more: math.sqrt(text**2 + of_seeds * n_seeds / (n_seeds + more)))
        return f"{counted(more, 'more seed')} at {widest.size} would halve the interval there"
    if of_seeds < quarter:
        times = text**2 / (quarter - of_seeds)
        return f"{times:.1f} times evaluation.validation_tokens would halve the interval at {widest.size}"
    return f"4 times the seeds and evaluation.validation_tokens would halve the interval at {widest.size}"


def _sizes(differences: Sequence[Difference]) -> str:
    *first, last = [difference.size for difference in differences]
    return f"{', '.join(first)} and {last}" if first else last


def _with_intervals(differences: Sequence[Difference], unit: str) -> str:
    each = [f"{difference.size} ({difference.value:+.4f}{_ends_text(difference)})" for difference in differences]
    is_known = all(difference.se_seeds is not None for difference in differences)
    return f"{' and '.join(each)} {unit}{'' if is_known else '; the noise between seeds is not known'}"


def _ends_text(difference: Difference) -> str:
    return "" if difference.ends is None else f" [{difference.ends[0]:+.4f}, {difference.ends[1]:+.4f}]"
