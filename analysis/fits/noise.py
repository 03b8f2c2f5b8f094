"""How far two seeds of one size lie apart, pooled over the sizes that have several: the noise that enters a fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

LAST = math.log(10.0)  # log tokens before the end, from which on a curve's mean is taken, as surfaces are fitted to it
LAG = 1.0  # log C over which the correlation of a curve's noise is measured
LEAST_CORRELATION = 0.01  # what is measured as less, or as negative, counts as this
LEAST_COMMON = 5  # points along both runs, from which on two groups tell their correlation
UNKNOWN = 1.0  # correlation of groups that share batches, where it cannot be measured


class Group(NamedTuple):
    """Seeds of one size of one architecture: log loss [seeds, points] at rising log tokens `at` [points], the names of
    their runs, and of each seed what decides its batches: seeds of two groups with one name read the same text."""

    arch: str
    size: str
    log_loss: np.ndarray
    runs: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()
    at: np.ndarray | None = None


@dataclass(frozen=True)
class NoisePart:
    """Architectures that are not told apart in their noise between seeds: its standard deviation in log loss at a point
    and of a curve's mean, and its degrees of freedom."""

    archs: tuple[str, ...]
    s: float
    df: float
    of_means: float | None = None


@dataclass(frozen=True)
class SeedsOfSize:
    """The seeds of one size, and the standard deviation of log loss between them."""

    arch: str
    size: str
    n_seeds: int
    s: float
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class SeedNoise:
    """Between-seed standard deviation of log smoothed loss, its degrees of freedom, what it was pooled from, the
    correlation of a curve's noise with itself an e-fold of compute later, and that of groups that read the same batches
    (None: there are no such groups). of_means: the standard deviation of a curve's mean over the last decade of its
    tokens, less than that of a point where points have noise of their own; None: not known."""

    s: float
    df: float
    groups: tuple[SeedsOfSize, ...] = ()
    correlation: float = 1.0
    shared: float | None = None
    of_means: float | None = None


def pool_seed_noise(groups: Sequence[Group], step: float = 0.0) -> SeedNoise | None:
    """Pool groups of seeds; None where no group has two seeds and a common point.

    At each point the variance between seeds has seeds - 1 degrees of freedom; points along one curve are not
    independent, so a group's variance is their mean and its degrees of freedom stay seeds - 1. Groups that read the
    same batches tell less than as many others (`degrees`). `step`: log C between neighbouring points, for the
    correlation along a curve (0: taken as 1).
    """
    found: list[SeedsOfSize] = []
    used: list[Group] = []
    total, means, summed, lagged = 0.0, 0.0, 0, [0.0, 0.0]
    lag = round(LAG / step) if step else 0
    for group in groups:
        finite = np.isfinite(group.log_loss).all(0)
        common = group.log_loss[:, finite]
        if len(common) > 1 and common.shape[1]:
            variance = float(common.var(0, ddof=1).mean())
            total, summed = total + (len(common) - 1) * variance, summed + len(common) - 1
            kept = slice(None) if group.at is None else group.at[finite] >= group.at[finite][-1] - LAST
            means += (len(common) - 1) * float(common[:, kept].mean(1).var(ddof=1))
            found.append(SeedsOfSize(group.arch, group.size, len(common), variance**0.5, tuple(group.runs)))
            used.append(group._replace(log_loss=common, at=None if group.at is None else group.at[finite]))
            off = common - common.mean(0)
            if 0 < lag < common.shape[1]:
                early, late = off[:, :-lag], off[:, lag:]
                lagged[0] += float((early * late).sum(0).mean())
                lagged[1] += float((early**2 + late**2).sum(0).mean()) / 2
    if not summed:
        return None
    correlation = min(max(lagged[0] / lagged[1], LEAST_CORRELATION), 1.0) ** (1 / (lag * step)) if lagged[1] else 1.0
    df, shared = degrees(used)
    return SeedNoise((total / summed) ** 0.5, df, tuple(found), correlation, shared, (means / summed) ** 0.5)


def degrees(groups: Sequence[Group]) -> tuple[float, float | None]:
    """Degrees of freedom of the pooled variance, and the correlation of groups that read the same batches.

    Satterthwaite (1946): the sum of the groups' sums of squares has the mean D s^2, D the sum of their seeds - 1, and
    the variance 2 s^4 (D + sum over pairs of groups of rho^2 w), so D^2 / (D + ...) degrees of freedom. w is seeds - 1
    of two groups with the same seeds; of n groups this is n (seeds - 1) / (1 + (n - 1) rho^2). rho is the mean
    correlation of the pairs' differences between seeds along their runs, at least 0, one for pairs of one size and one
    for others; UNKNOWN where no pair tells it.
    """
    pairs: dict[bool, list[tuple[float, float | None]]] = {}
    for one, other in combinations(groups, 2):
        if both := [name for name in one.batches if name in other.batches]:
            m, n_one, n_other = len(both), len(one.log_loss), len(other.log_loss)
            weight = m * ((1 - 1 / n_one) * (1 - 1 / n_other) + (m - 1) / (n_one * n_other))
            pairs.setdefault(one.size == other.size, []).append((weight, _correlation(one, other, both)))
    summed = float(sum(len(group.log_loss) - 1 for group in groups))
    more, shared = 0.0, []
    for told in pairs.values():
        known = [rho for _, rho in told if rho is not None]
        shared.append(max(float(np.mean(known)), 0.0) if known else UNKNOWN)
        more += 2 * shared[-1] ** 2 * sum(weight for weight, _ in told)
    return summed**2 / (summed + more), max(shared, default=None)


def degrees_text(df: float) -> str:
    """Rounded down to a decimal, as no more is known than that."""
    return f"{math.floor(df * 10 + 1e-6) / 10:g}"


def _correlation(one: Group, other: Group, both: Sequence[str]) -> float | None:
    """Of how two groups' curves of the same seeds lie about their mean, where their runs have common points along log
    tokens; None without."""
    if one.at is None or other.at is None or len(both) < 2:
        return None
    at = one.at[(one.at >= other.at[0]) & (one.at <= other.at[-1])]
    if len(at) < LEAST_COMMON:
        return None
    off = []
    for group, own in ((one, one.at), (other, other.at)):
        rows = np.stack([np.interp(at, own, group.log_loss[group.batches.index(name)]) for name in both])
        off.append(rows - rows.mean(0))
    off = [rows - rows.mean(1, keepdims=True) for rows in off]
    size = math.sqrt(float((off[0] ** 2).sum() * (off[1] ** 2).sum()))
    return float((off[0] * off[1]).sum()) / size if size > 0 else None
