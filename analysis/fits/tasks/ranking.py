"""How each size of a study ranks its architectures by a task's score: signal to noise (Heineman et al. 2025) and
decision accuracy (Magnusson et al. 2025, DataDecide).

Signal: the largest difference between two architectures of one size, each the mean of its last five checkpoints, those
of the last half of its tokens alone. Noise: the standard deviation of these checkpoints about a line in log tokens,
pooled; the line is taken out because scores still rise. (Both are relative to the mean score in the paper; it cancels.)

A ranking is withheld where differences as large come up in more than 5% of studies without any: below the quantile of
the studentised range. What runs of one architecture and size differ by comes from their seeds; where there are none, it
is taken to be as much as checkpoints do, beside the checkpoints' own part. docs/research/task-links.md has how often
that errs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy import stats

from analysis.fits.task_fits import Ranking, Score
from analysis.scales import PERPLEXITY, Scale

LAST = 5  # checkpoints
SINCE = 0.5  # of a run's tokens: checkpoints before have another score
LEAST = 4  # of a run, for its noise: a line has two parameters
RISK = 0.05


@dataclass(frozen=True, eq=False)
class Tail:
    """A run's last checkpoints: tokens and scores [n]."""

    arch: str
    size: str
    tokens: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class SeedNoise:
    """Between seeds: the variance of a run's mean score, and its degrees of freedom."""

    variance: float
    df: int


def rankings_of(scores: Mapping[str, Sequence[Score]], scale: Scale) -> tuple[Ranking, ...]:
    """Of each size, smallest first. scores: by architecture."""
    tails: list[Tail] = []
    compute: dict[str, float] = {}
    for arch, of_arch in scores.items():
        for _, rows in itertools.groupby(sorted(of_arch, key=lambda score: score.run_id), lambda score: score.run_id):
            tail = tail_of(arch, list(rows), scale)
            tails.append(tail)
    for score in itertools.chain(*scores.values()):
        compute[score.size] = max(compute.get(score.size, 0.0), score.flops)
    between = between_seeds(tails)
    sizes = sorted(compute, key=compute.__getitem__)
    rankings = [rank_size(size, [tail for tail in tails if tail.size == size], between) for size in sizes]
    if not rankings:
        return ()
    largest = max(range(len(rankings)), key=lambda i: (len(rankings[i].means), i))
    return tuple(
        _compared(ranking, rankings[largest].means) if i < largest else ranking for i, ranking in enumerate(rankings)
    )


def tail_of(arch: str, scores: Sequence[Score], scale: Scale) -> Tail:
    """Of one run's evaluated checkpoints, of perplexities in logarithms."""
    end = max(score.n_tokens for score in scores)
    late = sorted((score for score in scores if score.n_tokens >= SINCE * end), key=lambda score: score.n_tokens)
    value = np.array([score.value for score in late[-LAST:]])
    tokens = np.array([score.n_tokens for score in late[-LAST:]], dtype=float)
    return Tail(arch, scores[0].size, tokens, np.log(value) if scale.kind == PERPLEXITY else value)


def between_seeds(tails: Sequence[Tail]) -> SeedNoise | None:
    """Pooled over the architectures and sizes with several seeds; None where there is none."""
    runs: dict[tuple[str, str], list[float]] = {}
    for tail in tails:
        runs.setdefault((tail.arch, tail.size), []).append(float(tail.value.mean()))
    several = [np.array(means) for means in runs.values() if len(means) > 1]
    df = sum(len(means) - 1 for means in several)
    return SeedNoise(sum(float(means.var() * len(means)) for means in several) / df, df) if df else None


def rank_size(size: str, tails: Sequence[Tail], between: SeedNoise | None = None) -> Ranking:
    """The architectures of one size, which all have a run among `tails`; between: of all sizes."""
    by_arch: dict[str, list[Tail]] = {}
    for tail in tails:
        by_arch.setdefault(tail.arch, []).append(tail)
    means = {arch: float(np.mean([tail.value.mean() for tail in runs])) for arch, runs in by_arch.items()}
    long = [tail for tail in tails if len(tail.value) >= LEAST]
    df = sum(len(tail.value) - 2 for tail in long)
    if len(means) < 2:
        return Ranking(size, means, reason="one architecture alone has scores at this size")
    if df:
        noise = math.sqrt(sum(_rest(np.log(tail.tokens), tail.value) for tail in long) / df)
    elif between is not None:
        noise = math.sqrt(between.variance)
    else:
        why = f"the noise is not known: no run has {LEAST} evaluated checkpoints in its last half, no size has seeds"
        return Ranking(size, means, reason=why)
    if noise == 0:
        return Ranking(size, means, reason="scores do not change at all")
    n_seeds = min(len(runs) for runs in by_arch.values())
    if between is not None:
        needed = _quantile(len(means), between.df) * math.sqrt(between.variance / n_seeds) / noise
    else:  # runs differ by as much as checkpoints do
        n_checkpoints = min(len(tail.value) for tail in tails)
        needed = _quantile(len(means), df) * math.sqrt((1 + 1 / n_checkpoints) / n_seeds)
    ratio = (max(means.values()) - min(means.values())) / noise
    why = f"signal to noise is {ratio:.2g}, {needed:.2g} is needed for {len(means)} architectures"
    return Ranking(size, means, ratio, needed, "" if ratio > needed else why)


@lru_cache(maxsize=256)
def _quantile(n_archs: int, df: int) -> float:
    """Tenths of a second each."""
    return float(stats.studentized_range.ppf(1 - RISK, n_archs, df))


def _rest(x: np.ndarray, y: np.ndarray) -> float:
    """Sum of squares about the least-squares line."""
    x, y = x - x.mean(), y - y.mean()
    return float(y @ y - (x @ y) ** 2 / (x @ x))


def _compared(small: Ranking, large: Mapping[str, float]) -> Ranking:
    """With the share of pairs of architectures that it ranks as `large` does; a tie counts half."""
    pairs = list(itertools.combinations([arch for arch in small.means if arch in large], 2))
    if not pairs:
        return small
    means = small.means
    signs = [np.sign(means[a] - means[b]) * np.sign(large[a] - large[b]) for a, b in pairs]
    return replace(small, same_pairs=float(np.mean([(1 + sign) / 2 for sign in signs])), n_pairs=len(pairs))
