"""A variant and its baseline at a size: by how much the variant's held-out loss differs, and how precisely that is
known.

Two errors enter. Text: other held-out documents would give another difference; runs are paired window by window, and
windows of one document count as one cluster (analysis.held_out). Seeds: other initial weights and another order of the
text would give another difference; runs of one seed are paired, since they read the same batches.

The difference estimated is the mean over seeds and over text like the held-out documents, at this size and these
tokens. Where the noise between seeds is unknown, the interval is that of the text alone, and holds only for the initial
weights that were trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.held_out import LEAST, clustered_sum, standard_error

LEVEL = 0.9  # of intervals: the whole interval on one side of 0 is an error of 5%
ENOUGH = 4  # degrees of freedom from which on the noise between seeds is estimated from the pairs alone
BETTER, WORSE, OPEN = "better", "worse", "undecided"


@dataclass(frozen=True, eq=False)
class Pairs:
    """The seeds that baseline and variant share at one size: nats a token [seeds, windows] of each; documents: the
    first and last document of every window [windows, 2], None: windows count as independent."""

    size: str
    seeds: tuple[int, ...]
    baseline: np.ndarray
    variant: np.ndarray
    documents: np.ndarray | None = None

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
    """Variant less baseline at one size, nats a token, with its standard errors. low, high: the interval of LEVEL, None
    where no standard error is known; se_seeds: None where the noise between seeds is not known and not counted."""

    size: str
    seeds: tuple[int, ...]
    baseline: float
    variant: float
    value: float
    se_text: float | None
    se_seeds: float | None
    df: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """BETTER or WORSE where the whole interval says so, else OPEN."""
        if self.low is None or self.high is None:
            return OPEN
        return BETTER if self.high < 0 else WORSE if self.low > 0 else OPEN


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
    """The difference at one size, with degrees of freedom by Satterthwaite (1946) from those of text and seeds."""
    base, other = float(pairs.baseline.mean()), float(pairs.variant.mean())
    by_window = (pairs.variant - pairs.baseline).mean(0)
    n = len(by_window)
    spans = np.repeat(np.arange(n), 2).reshape(n, 2) if pairs.documents is None else pairs.documents
    n_effective = n / clustered_sum(np.ones(n), spans) * n
    value = other - base
    se_text = standard_error(by_window, spans) if n_effective >= LEAST else None
    se_seeds = None if seeds is None else base * math.sqrt(seeds.value / len(pairs.seeds))
    known = (pairs.size, pairs.seeds, base, other, value, se_text, se_seeds)
    if se_text is None:
        return Difference(*known, 0.0, None, None)
    parts = [(se_text**2, n_effective - 1)]
    if seeds is not None and se_seeds is not None:
        parts.append((se_seeds**2, seeds.df))
    total = sum(variance for variance, _ in parts)
    if total <= 0:
        return Difference(*known, n_effective - 1, value, value)
    df = total**2 / sum(variance**2 / degrees for variance, degrees in parts)
    half = float(stats.t.ppf((1 + LEVEL) / 2, df)) * math.sqrt(total)
    return Difference(*known, df, value - half, value + half)
