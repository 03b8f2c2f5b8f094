"""How far whole trunks and runs lie off the surface: the noise that enters intervals below 20 of them.

Rows of one run share its noise, runs branched from one trunk share the trunk's. The log residuals of the fit are taken
as a sum of independent effects: one a trunk, one a run where trunks have several, and one a run that grows along its
curve where runs have curves. A fit absorbs part of what it is fitted to, so the mean square of each effect in the
residuals is set equal to what the linearised fit leaves of it (moments, as Henderson's third method), and each variance
has the degrees of freedom of Satterthwaite (1946): for n runs of one row this is the residual sum of squares over
n - p, p the free parameters: five, four where alpha = beta or E = 0 (module slopes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from analysis.fits.fit import SameRuns

LEAST_DF = 1.0  # degrees of freedom below which residuals tell no noise
ROUNDING = 1e-9  # of an effect's variance, below which a fit has absorbed all of it
LEAST_ROWS = 3  # of a run that is a curve
PROBABLE = 0.95  # residuals above this quantile of their ratio to seed noise are more than seed noise
QUIETER = 0.01  # below this one they are of quieter runs than those that told the seed noise


@dataclass(frozen=True)
class Kind:
    """Effects of one kind on n rows: which effect each row has (`member` [n]) and how much of it (`share` [n])."""

    name: str
    member: np.ndarray
    share: np.ndarray

    def matrix(self) -> np.ndarray:
        """[n, effects]."""
        return (self.member[:, None] == np.arange(self.member.max() + 1)) * self.share[:, None]

    def average(self, values: np.ndarray) -> np.ndarray:
        """[effects, ...]: the least-squares effect of each in values [n, ...]."""
        matrix = self.matrix()
        return np.asarray(
            matrix.T @ values / np.maximum((matrix**2).sum(0), 1e-300)[(...,) + (None,) * (values.ndim - 1)]
        )


@dataclass(frozen=True)
class Effects:
    """Of each kind: the standard deviation of its effects on log L, `s` [k], with `df` [k] degrees of freedom."""

    kinds: tuple[Kind, ...]
    s: np.ndarray
    df: np.ndarray

    def draw(self, rng: np.random.Generator, r: int) -> np.ndarray:
        """[r, n]: log noise; each replicate draws its variances too, as their degrees of freedom leave them open."""
        found = np.zeros((r, len(self.kinds[0].member)))
        for kind, s, df in zip(self.kinds, self.s, self.df, strict=True):
            if s > 0:
                spread = s * np.sqrt(df / rng.chisquare(df, r))
                found += spread[:, None] * rng.standard_normal((r, kind.member.max() + 1))[:, kind.member] * kind.share
        return found


def kinds_of(trunk: np.ndarray, run: np.ndarray, log_d: np.ndarray) -> tuple[Kind, ...]:
    """The kinds of effects that rows with these labels [n] can have."""
    trunks, runs = (np.unique(labels.astype(str), return_inverse=True)[1] for labels in (trunk, run))
    one = np.ones(len(trunks))
    found = [Kind("trunk", trunks, one)]
    if len(np.unique(np.column_stack([trunks, runs]), axis=0)) == trunks.max() + 1:
        found = [Kind("run", trunks, one)]
    elif runs.max() > trunks.max():
        found.append(Kind("run", runs, one))
    rows = np.bincount(runs)
    if (rows >= LEAST_ROWS).sum() > 1:
        along = log_d - (np.bincount(runs, log_d) / rows)[runs]
        spread = np.sqrt(np.bincount(runs, along**2) / rows)[runs]
        curve = (rows[runs] >= LEAST_ROWS) & (spread > 0)
        found.append(Kind("slope along a run", runs, np.where(curve, along / np.where(curve, spread, 1.0), 0.0)))
    return tuple(found)


def measure(
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
    much smaller (these runs have less noise): then the residuals alone tell.
    """
    root = np.sqrt(weights)
    solve = np.linalg.pinv(jacobian * root[:, None]) * root
    left = []
    for kind in kinds:
        matrix = kind.matrix()
        left.append(matrix - jacobian @ (solve @ matrix))
    means = [[kind.average(one) for one in left] for kind in kinds]
    expected = np.array([[(one**2).sum() for one in row] for row in means])
    seen = np.array([(kind.average(residual) ** 2).sum() for kind in kinds])
    df = np.array([_degrees(row[k]) for k, row in enumerate(means)])
    told = df >= LEAST_DF
    variance = np.zeros(len(kinds))
    if told.any():
        scale = np.diag(expected)[told]
        variance[told] = optimize.nnls(expected[np.ix_(told, told)] / scale[:, None], seen[told] / scale)[0]
    if seeds is not None:
        s, known = seeds
        own = df[0] if told[0] else 0.0
        low, high = stats.f.ppf((QUIETER, PROBABLE), own, known) * s**2 if own else (0.0, math.inf)
        if low <= variance[0] <= high:
            variance[0] = (own * variance[0] + known * s**2) / (own + known)
            df[0] = own + known
    elif not told[0]:
        return None
    return Effects(kinds, np.sqrt(variance), np.maximum(df, LEAST_DF))


def _degrees(left: np.ndarray) -> float:
    """Satterthwaite's: of the sum of squares of left @ u with u standard normal."""
    gram = left.T @ left
    total = float(np.trace(gram))
    return total**2 / float((gram**2).sum()) if total > ROUNDING * left.shape[1] else 0.0


def replicates(
    residual: np.ndarray,
    log_n: np.ndarray,
    log_d: np.ndarray,
    trunk: np.ndarray,
    effects: Effects | None,
    recipe: np.ndarray | None = None,
) -> SameRuns | None:
    """What trunks with the same N and D (and recipe, where it is known) tell; None where there are none. `effects` are
    those of the residuals alone."""
    names = trunk.astype(str)
    recipes = np.full(len(names), "") if recipe is None else recipe.astype(str)
    groups: dict[tuple[str, bytes, bytes], list[float]] = {}
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        rows = rows[np.lexsort((log_d[rows], log_n[rows]))]
        key = (str(recipes[rows[0]]), np.round(log_n[rows], 6).tobytes(), np.round(log_d[rows], 6).tobytes())
        groups.setdefault(key, []).append(float(residual[rows].mean()))
    several = [np.array(means) for means in groups.values() if len(means) > 1]
    if not several:
        return None
    square, df = sum(float(((m - m.mean()) ** 2).sum()) for m in several), sum(len(m) - 1 for m in several)
    p = float("nan")
    if effects is not None and effects.df[0] > df and square > 0:
        rest = effects.df[0] - df
        lack = max(effects.df[0] * effects.s[0] ** 2 - square, 0.0) / rest
        p = float(stats.f.sf(lack / (square / df), rest, df))
    return SameRuns((square / df) ** 0.5, df, p)
