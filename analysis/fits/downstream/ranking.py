"""Can a task rank architectures? Its signal to noise (Heineman et al. 2025) and decision accuracy (Magnusson et al.
2025, DataDecide).

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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

LAST = 5  # checkpoints
SINCE = 0.5  # of a run's tokens: checkpoints before have another score
LEAST = 4  # of a run, for its noise: a line has two parameters
RISK = 0.05


@dataclass(frozen=True, eq=False)
class Tail:
    """A run's last checkpoints: tokens and scores [n], the later part of what was evaluated; `group`: architecture."""

    group: str
    size: str
    tokens: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class SizeRanking:
    """One size.

    means: of each architecture, its seeds averaged; noise: of one checkpoint, or, where too few are there, between
    seeds; None where these are not there either; needed: signal / noise from which on a ranking is shown; reason: why
    it is withheld, None where it is not.
    """

    size: str
    means: Mapping[str, float]
    signal: float
    noise: float | None
    ratio: float | None
    needed: float | None
    reason: str | None


def tail_of(group: str, size: str, tokens: np.ndarray, value: np.ndarray) -> Tail | None:
    """Of a run's evaluated checkpoints, those without a score left out; None where none has one."""
    keep = np.isfinite(value)
    keep &= tokens >= SINCE * tokens[keep].max(initial=0)
    order = np.argsort(tokens[keep])[-LAST:]
    return Tail(group, size, tokens[keep][order], value[keep][order]) if len(order) else None


def between_seeds(tails: Sequence[Tail]) -> tuple[float, int] | None:
    """(variance of a run's mean score, degrees of freedom), pooled over the architectures and sizes with several seeds;
    None where there is none."""
    runs: dict[tuple[str, str], list[float]] = {}
    for one in tails:
        runs.setdefault((one.group, one.size), []).append(float(one.value.mean()))
    several = [np.array(means) for means in runs.values() if len(means) > 1]
    df = sum(len(means) - 1 for means in several)
    return (sum(float(((one - one.mean()) ** 2).sum()) for one in several) / df, df) if df else None


def rank_size(size: str, tails: Sequence[Tail], between: tuple[float, int] | None = None) -> SizeRanking:
    """The architectures of one size, which all have a run among `tails`; between: `between_seeds` of all sizes."""
    by_group: dict[str, list[Tail]] = {}
    for one in tails:
        by_group.setdefault(one.group, []).append(one)
    means = {group: float(np.mean([one.value.mean() for one in runs])) for group, runs in by_group.items()}
    signal = max(means.values()) - min(means.values())
    squares, df = 0.0, 0
    for one in tails:
        if len(one.value) >= LEAST:
            squares, df = squares + _rest(np.log(one.tokens), one.value), df + len(one.value) - 2
    noise = math.sqrt(squares / df) if df else math.sqrt(between[0]) if between is not None else None
    if len(means) < 2:
        return SizeRanking(size, means, signal, noise, None, None, "one architecture alone has scores at this size")
    if noise is None:
        why = f"the noise is not known: no run has {LEAST} evaluated checkpoints in its last half, no size has seeds"
        return SizeRanking(size, means, signal, None, None, None, why)
    if noise == 0:
        return SizeRanking(size, means, signal, 0.0, None, None, "scores do not change at all")
    n = min(len(runs) for runs in by_group.values())
    if between is not None:
        needed = _quantile(len(means), between[1]) * math.sqrt(between[0] / n) / noise
    else:
        needed = needed_ratio(len(means), df, min(len(one.value) for one in tails), n)
    ratio = signal / noise
    why = f"signal to noise is {ratio:.2g}, {needed:.2g} is needed for {len(means)} architectures"
    return SizeRanking(size, means, signal, noise, ratio, needed, None if ratio > needed else why)


def needed_ratio(n_groups: int, df: int, n_checkpoints: int = LAST, n_seeds: int = 1) -> float:
    """The ratio of signal to noise that 5% of studies exceed in which all architectures are alike and runs differ from
    each other by as much as checkpoints do."""
    spread = math.sqrt((1 + 1 / n_checkpoints) / n_seeds)
    return _quantile(n_groups, df) * spread


@lru_cache(maxsize=256)
def _quantile(n_groups: int, df: int) -> float:
    """Tenths of a second each."""
    return float(stats.studentized_range.ppf(1 - RISK, n_groups, df))


def _rest(x: np.ndarray, y: np.ndarray) -> float:
    """Sum of squares about the least-squares line."""
    x, y = x - x.mean(), y - y.mean()
    return float(y @ y - (x @ y) ** 2 / (x @ x))


def decision_accuracy(small: Mapping[str, float], large: Mapping[str, float]) -> tuple[float, int] | None:
    """(share of the pairs of architectures that both sizes have which `small` ranks as `large` does, pairs); a tie
    counts half. None without a pair."""
    pairs = list(itertools.combinations([one for one in small if one in large], 2))
    if not pairs:
        return None
    signs = [np.sign(small[a] - small[b]) * np.sign(large[a] - large[b]) for a, b in pairs]
    return float(np.mean([(1 + sign) / 2 for sign in signs])), len(pairs)
