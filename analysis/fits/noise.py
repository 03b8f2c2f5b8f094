"""The noise of log losses: between seeds, measured on runs that differ by nothing else, and of whole trunks and runs,
as the residuals of a fitted surface show it.

Between seeds. Noise is pooled over sizes, and over architectures that a test does not tell apart: one noisy
architecture in a common pool widens the intervals of the quiet ones, and its own are too narrow. Architectures are put
in order of the variance of their curves' means between seeds, and cut in two where the likelihood ratio of two
variances against one is largest (as Scott and Knott, 1974, cut means); the cut stands where a larger one has a
probability below CUT among equal variances with these degrees of freedom, which is simulated; then each part is cut in
the same way. A test that cuts nothing proves no equality (docs/research/pooled-noise.md).

Of residuals. Rows of one run share its noise, runs branched from one trunk share the trunk's. The log residuals are
taken as a sum of independent effects: one a trunk, one a run where trunks have several, and one a run that grows along
its curve where runs have curves. A fit absorbs part of what it is fitted to, so the mean square of each effect in the
residuals is set equal to what the linearised fit leaves of it (moments, as Henderson's third method), and each variance
has the degrees of freedom of Satterthwaite (1946): for n runs of one row this is the residual sum of squares over
n - p, p the free parameters: five, four where alpha = beta or E = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations, count
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, sparse, stats

from analysis.fits.fit import SameRuns

LAST = math.log(10.0)  # log tokens before the end, from which on a curve's mean is taken, as surfaces are fitted to it
LAG = 1.0  # log C over which the correlation of a curve's noise is measured
LEAST_CORRELATION = 0.01  # what is measured as less, or as negative, counts as this
LEAST_COMMON = 5  # points along both runs, from which on their correlation is measured
UNKNOWN = 1.0  # correlation of groups that share batches, where it cannot be measured
CUT = 0.1  # probability of a cut among equal variances
DRAWS = 4000  # of equal variances
LEAST = 1e-300  # variance: what seeds that end alike count as
LEAST_DF = 1.0  # degrees of freedom below which residuals tell no noise
ROUNDING = 1e-6  # of an effect's variance, below which a fit has absorbed all of it
LEAST_ROWS = 3  # of a run that is a curve
PROBABLE = 0.95  # residuals above this quantile of their ratio to seed noise are more than seed noise
QUIETER = 0.01  # below this one they are of quieter runs than those that the seed noise was measured on


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
class SeedsOfSize:
    """The seeds of one size, and the standard deviation of log loss between them."""

    arch: str
    size: str
    n_seeds: int
    s: float
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoisePart:
    """Architectures that are not told apart in their noise between seeds: its standard deviation in log loss at a point
    and of a curve's mean, and its degrees of freedom."""

    archs: tuple[str, ...]
    s: float
    df: float
    of_means: float | None = None


@dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of log loss between seeds at a point, its degrees of freedom, and the sizes that it was pooled
    from. correlation: of a curve's noise with itself an e-fold of compute later. of_means: the standard deviation of a
    curve's mean over the last decade of its tokens, less than that of a point where points have noise of their own
    (None: not known). parts: of a whole study, the architectures that are not told apart."""

    s: float
    df: float
    groups: tuple[SeedsOfSize, ...] = ()
    correlation: float = 1.0
    of_means: float | None = None
    parts: tuple[NoisePart, ...] = ()

    @property
    def of_runs(self) -> float:
        """Of a run's mean where that is known, else of a point."""
        return self.of_means or self.s

    def of(self, group: str) -> NoisePart:
        """That of its part; of all where it has no seeds of its own."""
        return next((part for part in self.parts if group in part.archs), NoisePart((), self.s, self.df, self.of_means))


@dataclass(frozen=True)
class SeedNoises:
    """The noise between seeds of several architectures. groups: their seeds; step: log C between neighbouring points
    of those."""

    groups: tuple[Group, ...]
    step: float = 0.0

    @cached_property
    def every(self) -> SeedNoise | None:
        """Of all architectures as one, with its parts; None where no size has two seeds."""
        noise = pool_seed_noise(self.groups, self.step)
        if noise is None:
            return None
        pooled = [(kind, self.of(kind[0])) for kind in self.kinds]
        parts = [NoisePart(tuple(kind), own.s, own.df, own.of_means) for kind, own in pooled if own is not None]
        return replace(noise, parts=tuple(parts))

    @cached_property
    def kinds(self) -> list[list[str]]:
        """The architectures with seeds, in parts of one noise, the quietest first."""
        archs = dict.fromkeys(group.arch for group in self.groups)
        noises = {arch: pool_seed_noise([seeds for seeds in self.groups if seeds.arch == arch]) for arch in archs}
        known = {arch: noise for arch, noise in noises.items() if noise is not None}
        variances = [float(noise.of_means or 0.0) ** 2 for noise in known.values()]
        names = list(known)
        return [[names[i] for i in part] for part in equal_parts(variances, [noise.df for noise in known.values()])]

    def of(self, arch: str) -> SeedNoise | None:
        """Of an architecture and those that are not told from it; of all where it has no seeds of its own."""
        return pool_seed_noise(self._alike(arch), self.step)

    def of_others(self, arch: str) -> SeedNoise | None:
        """Of those that are not told from an architecture, without it; of all others where it has no seeds."""
        return pool_seed_noise([seeds for seeds in self._alike(arch) if seeds.arch != arch], self.step)

    def _alike(self, arch: str) -> list[Group]:
        kind = next((part for part in self.kinds if arch in part), None)
        return [seeds for seeds in self.groups if kind is None or seeds.arch in kind]


def more_seeds(half: Callable[[int], float]) -> int:
    """The fewest seeds more that make an interval half as wide. half: of the interval, by the number of seeds more."""
    return next(more for more in count(1) if half(more) <= half(0) / 2 * (1 + 1e-9))


def pool_seed_noise(groups: Sequence[Group], step: float = 0.0) -> SeedNoise | None:
    """Pool groups of seeds; None where no group has two seeds and a common point.

    At each point the variance between seeds has seeds - 1 degrees of freedom; points along one curve are not
    independent, so a group's variance is their mean and its degrees of freedom stay seeds - 1. Groups that read the
    same batches tell less than as many others (`degrees`). `step`: log C between neighbouring points, for the
    correlation along a curve (0: taken as 1).
    """
    sizes: list[SeedsOfSize] = []
    used: list[Group] = []
    total, means, summed, product, square = 0.0, 0.0, 0, 0.0, 0.0
    lag = round(LAG / step) if step else 0
    for group in groups:
        finite = np.isfinite(group.log_loss).all(0)
        common = group.log_loss[:, finite]
        n_seeds = len(common)
        if n_seeds < 2 or not common.shape[1]:
            continue
        variance = float(common.var(0, ddof=1).mean())
        total, summed = total + (n_seeds - 1) * variance, summed + n_seeds - 1
        at = None if group.at is None else group.at[finite]
        late = slice(None) if at is None else at >= at[-1] - LAST
        means += (n_seeds - 1) * float(common[:, late].mean(1).var(ddof=1))
        sizes.append(SeedsOfSize(group.arch, group.size, n_seeds, variance**0.5, tuple(group.runs)))
        used.append(group._replace(log_loss=common, at=at))
        if 0 < lag < common.shape[1]:
            off = common - common.mean(0)
            product += float((off[:, :-lag] * off[:, lag:]).sum(0).mean())
            square += float((off[:, :-lag] ** 2 + off[:, lag:] ** 2).sum(0).mean()) / 2
    if not summed:
        return None
    correlation = min(max(product / square, LEAST_CORRELATION), 1.0) ** (1 / (lag * step)) if square else 1.0
    return SeedNoise((total / summed) ** 0.5, degrees(used), tuple(sizes), correlation, (means / summed) ** 0.5)


def degrees(groups: Sequence[Group]) -> float:
    """Degrees of freedom of the pooled variance of groups, of which some read the same batches.

    Satterthwaite (1946): the sum of the groups' sums of squares has the mean D s^2, D the sum of their seeds - 1, and
    the variance 2 s^4 (D + sum over pairs of groups of rho^2 w), so D^2 / (D + ...) degrees of freedom. w is seeds - 1
    of two groups with the same seeds; of n groups this is n (seeds - 1) / (1 + (n - 1) rho^2). rho is the mean
    correlation of the pairs' differences between seeds along their runs, at least 0, one for pairs of one size and one
    for others; UNKNOWN where no pair tells it.
    """
    pairs: dict[bool, list[tuple[float, float | None]]] = {}
    for first, second in combinations(groups, 2):
        if both := [name for name in first.batches if name in second.batches]:
            m, n_first, n_second = len(both), len(first.log_loss), len(second.log_loss)
            weight = m * ((1 - 1 / n_first) * (1 - 1 / n_second) + (m - 1) / (n_first * n_second))
            pairs.setdefault(first.size == second.size, []).append((weight, _correlation(first, second, both)))
    summed = float(sum(len(group.log_loss) - 1 for group in groups))
    more = 0.0
    for alike in pairs.values():
        known = [rho for _, rho in alike if rho is not None]
        shared = max(float(np.mean(known)), 0.0) if known else UNKNOWN
        more += 2 * shared**2 * sum(weight for weight, _ in alike)
    return summed**2 / (summed + more)


def _correlation(first: Group, second: Group, both: Sequence[str]) -> float | None:
    """Of how two groups' curves of the same seeds lie about their mean, where their runs have common points along log
    tokens; None without."""
    if first.at is None or second.at is None or len(both) < 2:
        return None
    at = first.at[(first.at >= second.at[0]) & (first.at <= second.at[-1])]
    if len(at) < LEAST_COMMON:
        return None
    off = []
    for group, own in ((first, first.at), (second, second.at)):
        rows = np.stack([np.interp(at, own, group.log_loss[group.batches.index(name)]) for name in both])
        rows = rows - rows.mean(0)
        off.append(rows - rows.mean(1, keepdims=True))
    size = math.sqrt(float((off[0] ** 2).sum() * (off[1] ** 2).sum()))
    return float((off[0] * off[1]).sum()) / size if size > 0 else None


def degrees_text(df: float) -> str:
    """Rounded down to a decimal, as no more is known than that."""
    return f"{math.floor(df * 10 + 1e-6) / 10:g}"


def equal_parts(variances: Sequence[float], df: Sequence[float], level: float = CUT) -> list[list[int]]:
    """Variances with so many degrees of freedom, by index, in parts that are not told apart, the smallest first."""
    if not len(variances):
        return []
    order = [int(i) for i in np.argsort(variances, kind="stable")]
    values, known = np.maximum([variances[i] for i in order], LEAST), np.array([float(df[i]) for i in order])
    if len(order) == 1:
        return [order]
    ratios = _ratios(values[None], known[None])[0]
    at = int(ratios.argmax()) + 1
    if float((_largest_among_equal(tuple(sorted(np.round(known, 1).tolist()))) >= ratios[at - 1]).mean()) >= level:
        return [order]
    return [
        [half[i] for i in part]
        for half in (order[:at], order[at:])
        for part in equal_parts([variances[i] for i in half], [df[i] for i in half], level)
    ]


def _ratios(variances: np.ndarray, df: np.ndarray) -> np.ndarray:
    """[r, n - 1]: twice the log likelihood ratio of two variances against one, for each cut of variances [r, n], in
    order, with df [r, n] degrees of freedom."""
    squares, known = np.cumsum(df * variances, 1), np.cumsum(df, 1)
    total, low, high = squares[:, -1:], squares[:, :-1], squares[:, -1:] - squares[:, :-1]
    whole, first, second = known[:, -1:], known[:, :-1], known[:, -1:] - known[:, :-1]
    return np.asarray(
        whole * np.log(total / whole) - first * np.log(low / first) - second * np.log(np.maximum(high, LEAST) / second)
    )


@cache
def _largest_among_equal(df: tuple[float, ...]) -> np.ndarray:
    """[DRAWS]: the largest ratio of any cut, among variances that are equal."""
    known = np.array(df)
    drawn = np.random.default_rng(0).chisquare(known, (DRAWS, len(df))) / known
    order = np.argsort(drawn, 1)
    return np.asarray(_ratios(np.take_along_axis(drawn, order, 1), known[order]).max(1))


@dataclass(frozen=True)
class Kind:
    """Effects of one kind on n rows: which effect each row has (`member` [n]) and how much of it (`share` [n])."""

    name: str
    member: np.ndarray
    share: np.ndarray

    def matrix(self) -> sparse.csr_array:
        """[n, effects]."""
        rows = np.arange(len(self.member))
        return sparse.csr_array((self.share, (rows, self.member)), (len(rows), int(self.member.max()) + 1))

    def average(self, values: Any) -> Any:
        """[effects, ...]: the least-squares effect of each in values [n, ...]."""
        square = np.maximum(np.bincount(self.member, self.share**2), 1e-300)
        return sparse.diags_array(1 / square) @ (self.matrix().T @ values)


@dataclass(frozen=True)
class Effects:
    """Of each kind: the standard deviation of its effects on log L, `s` [k], with `df` [k] degrees of freedom."""

    kinds: tuple[Kind, ...]
    s: np.ndarray
    df: np.ndarray

    def draw(self, rng: np.random.Generator, r: int) -> np.ndarray:
        """[r, n]: log noise; each replicate draws its variances too, as their degrees of freedom leave them open."""
        noise = np.zeros((r, len(self.kinds[0].member)))
        for kind, s, df in zip(self.kinds, self.s, self.df, strict=True):
            if s > 0:
                spread = s * np.sqrt(df / rng.chisquare(df, r))
                noise += spread[:, None] * rng.standard_normal((r, kind.member.max() + 1))[:, kind.member] * kind.share
        return noise


def kinds_of(trunk: np.ndarray, run: np.ndarray, log_d: np.ndarray) -> tuple[Kind, ...]:
    """The kinds of effects that rows with these labels [n] can have."""
    trunks, runs = (np.unique(labels.astype(str), return_inverse=True)[1] for labels in (trunk, run))
    whole = np.ones(len(trunks))
    kinds = [Kind("trunk", trunks, whole)]
    if len(np.unique(np.column_stack([trunks, runs]), axis=0)) == trunks.max() + 1:
        kinds = [Kind("run", trunks, whole)]
    elif runs.max() > trunks.max():
        kinds.append(Kind("run", runs, whole))
    rows = np.bincount(runs)
    if (rows >= LEAST_ROWS).sum() > 1:
        along = log_d - (np.bincount(runs, log_d) / rows)[runs]
        spread = np.sqrt(np.bincount(runs, along**2) / rows)[runs]
        curve = (rows[runs] >= LEAST_ROWS) & (spread > 0)
        kinds.append(Kind("slope along a run", runs, np.where(curve, along / np.where(curve, spread, 1.0), 0.0)))
    return tuple(kinds)


def effects_of(
    residual: np.ndarray,
    jacobian: np.ndarray,
    weights: np.ndarray,
    kinds: tuple[Kind, ...],
    seeds: tuple[float, float] | None = None,
) -> Effects | None:
    """The effects in log residuals [n] of a fit with this Jacobian of log L [n, p] and weights [n] of their squares;
    None where they leave no degree of freedom.

    `seeds`: standard deviation of log L between seeds, measured elsewhere, and its degrees of freedom. It is pooled
    with the variance of the first kind, unless that is larger than seed noise allows (the surface misses the points) or
    much smaller (these runs have less noise): then the residuals alone count.
    """
    root = np.sqrt(weights)
    solve = np.linalg.pinv(jacobian * root[:, None]) * root
    left = [[_Left.of(kind, other, jacobian, solve) for other in kinds] for kind in kinds]
    expected = np.array([[cell.square for cell in row] for row in left])
    seen = np.array([(kind.average(residual) ** 2).sum() for kind in kinds])
    df = np.array([row[k].degrees for k, row in enumerate(left)])
    known = df >= LEAST_DF
    variance = np.zeros(len(kinds))
    if known.any():
        scale = np.diag(expected)[known]
        variance[known] = optimize.nnls(expected[np.ix_(known, known)] / scale[:, None], seen[known] / scale)[0]
    if seeds is not None:
        s, of_seeds = seeds
        own = df[0] if known[0] else 0.0
        low, high = stats.f.ppf((QUIETER, PROBABLE), own, of_seeds) * s**2 if own else (0.0, math.inf)
        if low <= variance[0] <= high:
            variance[0] = (own * variance[0] + of_seeds * s**2) / (own + of_seeds)
            df[0] = own + of_seeds
    elif not known[0]:
        return None
    return Effects(kinds, np.sqrt(variance), np.maximum(df, LEAST_DF))


@dataclass(frozen=True)
class _Left:
    """What a linearised fit leaves of one kind's effects [m] in the averages over another's [k]: direct - lift @ fit,
    of direct [k, m], lift [k, p] and fit [p, m], which is never written out: k and m are as many as there are runs."""

    direct: sparse.csr_array
    lift: np.ndarray
    fit: np.ndarray

    @classmethod
    def of(cls, averaged: Kind, effects: Kind, jacobian: np.ndarray, solve: np.ndarray) -> _Left:
        matrix = effects.matrix()
        return cls(averaged.average(matrix), averaged.average(jacobian), solve @ matrix)

    @property
    def square(self) -> float:
        """Its sum of squares."""
        both = ((self.direct.T @ self.lift) * self.fit.T).sum()
        of_fit = ((self.lift.T @ self.lift) * (self.fit @ self.fit.T)).sum()
        return float((self.direct.data**2).sum() - 2 * both + of_fit)

    @property
    def degrees(self) -> float:
        """Satterthwaite's: of the sum of squares of it @ u with u standard normal. Its Gram matrix is that of `direct`
        plus side @ core @ side.T."""
        total, p = self.square, len(self.fit)
        if total <= ROUNDING * self.direct.shape[1]:
            return 0.0
        gram = self.direct.T @ self.direct
        side = np.hstack([self.direct.T @ self.lift, self.fit.T])
        core = np.block([[np.zeros((p, p)), -np.eye(p)], [-np.eye(p), self.lift.T @ self.lift]])
        cross, own = core @ (side.T @ (gram @ side)), core @ (side.T @ side)
        return total**2 / float((gram.data**2).sum() + 2 * np.trace(cross) + np.trace(own @ own))


def same_runs(
    residual: np.ndarray,
    log_n: np.ndarray,
    log_d: np.ndarray,
    trunk: np.ndarray,
    recipe: np.ndarray,
    effects: Effects | None,
) -> SameRuns | None:
    """The noise between trunks with the same N and D and recipe; None where there are none. `effects` are those of the
    residuals [n] alone."""
    _, first, member = np.unique(trunk.astype(str), return_index=True, return_inverse=True)
    means = np.bincount(member, residual) / np.bincount(member)
    order = np.lexsort((log_d, log_n, member))
    places = np.split(np.round(np.column_stack([log_n, log_d])[order], 6), np.cumsum(np.bincount(member))[:-1])
    groups: dict[tuple[str, bytes], list[float]] = {}
    for name, place, mean in zip(recipe[first].astype(str).tolist(), places, means.tolist(), strict=True):
        groups.setdefault((name, place.tobytes()), []).append(mean)
    several = [np.array(mine) for mine in groups.values() if len(mine) > 1]
    if not several:
        return None
    square = sum(float(((mine - mine.mean()) ** 2).sum()) for mine in several)
    df = sum(len(mine) - 1 for mine in several)
    p = math.nan
    if effects is not None and effects.df[0] > df and square > 0:
        rest = effects.df[0] - df
        lack = max(effects.df[0] * effects.s[0] ** 2 - square, 0.0) / rest
        p = float(stats.f.sf(lack / (square / df), rest, df))
    return SameRuns((square / df) ** 0.5, df, p)
