"""Variants of a model after equal tokens or compute: points of the grid's axes, and shapes of about as many parameters.

The variants of a family are read at the largest number of tokens at which each has been evaluated, or, where they share
none, at their ends if these have equal compute, by the seeds that all of them have. Sizes of a ladder that are about as
large and share neither, as those of neighbouring budgets, are not compared. A loss is the mean of its logarithm over
these. What a seed adds to all variants alike (its order of the text, most of all) is no difference between them: noise
is the residual of ln loss = variant + seed, pooled over all families, and the interval of a difference is s sqrt(2 /
seeds) times Student's t with the residual's degrees of freedom, divided among the family's comparisons (Bonferroni), so
that all of them hold at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from analysis.fits.noise import more_seeds
from analysis.fits.pairwise import LOSS, compared
from analysis.fits.study_fits import Variant, VariantFamily, Variants
from analysis.run_table import RunTable

ALIKE = 1.1  # shapes of one family: the largest has so many times the parameters of the smallest
EQUAL = 1.02  # compute: runs end after whole batches


@dataclass(frozen=True, eq=False)
class _Losses:
    """ln loss [variants, seeds] of a family, and by variant its parameters and its compute there [FLOP, exact]."""

    log_loss: np.ndarray
    n_params: list[int]
    flops: list[float]

    @property
    def squares(self) -> float:
        """Of the residuals of variant + seed."""
        y = self.log_loss
        return float(((y - y.mean(0, keepdims=True) - y.mean(1, keepdims=True) + y.mean()) ** 2).sum())

    @property
    def df(self) -> int:
        n_variants, n_seeds = self.log_loss.shape
        return (n_variants - 1) * (n_seeds - 1)


def compare_variants(table: RunTable, level: float) -> Variants:
    """The families of a table that has been grouped. Families of one variant are left out."""
    read = [pair for arch, name, runs in _families(table) if (pair := _read(arch, name, runs, table.evals))]
    known = [losses for _, losses in read if losses is not None and losses.df]
    df = sum(losses.df for losses in known)
    s = math.sqrt(sum(losses.squares for losses in known) / df) if df else None
    families = (
        family if losses is None else replace(family, variants=_variants(family, losses, s, df, level))
        for family, losses in read
    )
    return Variants(s, df, tuple(families))


def _variants(family: VariantFamily, losses: _Losses, s: float | None, df: int, level: float) -> tuple[Variant, ...]:
    means = losses.log_loss.mean(1)
    half = math.nan if s is None else _half(family, s, df, level)
    variants = []
    for i, name in enumerate(family.labels):
        flops, more = losses.flops[i], float(means[i] - means[0])
        ends = None if s is None else (more - half, more + half)
        against = compared(name, family.labels[0], LOSS, flops, more, ends, "" if ends else "no seeds") if i else None
        variants.append(Variant(name, losses.n_params[i], flops, float(np.exp(means[i])), against))
    return tuple(variants)


def _half(family: VariantFamily, s: float, df: float, level: float, more: int = 0) -> float:
    """Half of the interval of ln loss of a variant against the first; more: seeds that are not there yet."""
    others = len(family.labels) - 1
    quantile = float(stats.t.ppf(1 - (1 - level) / (2 * others), df + more * others))
    return s * math.sqrt(2 / (len(family.seeds) + more)) * quantile


def seeds_that_halve(family: VariantFamily, variants: Variants, level: float) -> int:
    """How many more seeds of each variant make the family's intervals half as wide; the noise is known."""
    assert variants.s is not None
    return more_seeds(partial(_half, family, variants.s, variants.df, level))


def _families(table: RunTable) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(architecture, what its variants have in common, their runs) of each family of several variants."""
    runs = table.runs
    runs = runs[(runs["state"] == "done") & (runs["left_out"] == "") & runs["n_params_non_embedding"].notna()]
    reads = runs["context_length"].astype(str) + runs["reset_at_documents"].map({True: " apart"}).fillna("")
    for arch, own in runs.groupby("arch", sort=False):
        size_n = own.groupby("size", sort=False)["n_params_non_embedding"].first().sort_values(kind="stable")
        classes: list[list[str]] = []
        for size, n in size_n.items():
            if classes and n <= ALIKE * size_n[classes[-1][0]]:
                classes[-1].append(str(size))
            else:
                classes.append([str(size)])
        for sizes in classes:
            contexts = reads[own.index[own["size"].isin(sizes)]]
            for context, rows in contexts.groupby(contexts, sort=False):
                alike = own.loc[rows.index]
                if len(alike[["size", "point"]].drop_duplicates()) > 1:
                    name = sizes[0] if len(sizes) == 1 else "shapes of about as many parameters"
                    yield str(arch), name + (f", context {context}" if contexts.nunique() > 1 else ""), alike


def _read(arch: str, name: str, runs: pd.DataFrame, evals: pd.DataFrame) -> tuple[VariantFamily, _Losses | None] | None:
    one_size = runs["size"].nunique() == 1
    labels, n_params, of_token = list[str](), list[int](), list[float]()
    losses: list[dict[tuple[int, str], dict[int, float]]] = []  # by variant, (tokens, phase), seed
    seed_of = dict(zip(runs["run_id"], runs["seed"].astype(int), strict=True))
    for (size, point), own in runs.groupby(["size", "point"], sort=False):
        labels.append(", ".join(filter(None, ("" if one_size else str(size), str(point)))) or str(size))
        n_params.append(int(own["n_params_non_embedding"].iloc[0]))
        of_token.append(float(own["flops_per_token_exact"].iloc[0]))
        losses.append({})
        for row in evals[evals["run_id"].isin(own["run_id"])].to_dict("records"):
            at = int(row["n_tokens"]), str(row["phase"])
            losses[-1].setdefault(at, {})[seed_of[row["run_id"]]] = math.log(row["loss"])
    family = VariantFamily(arch, name, tuple(labels))
    shared = set.intersection(*(set(of_variant) for of_variant in losses))
    ends = [max(shared)] * len(losses) if shared else [max(of_variant, default=(0, "")) for of_variant in losses]
    flops = [cost * n_tokens for cost, (n_tokens, _) in zip(of_token, ends, strict=True)]
    if not shared and (min(flops) == 0 or max(flops) > EQUAL * min(flops)):
        reason = "its variants were not evaluated after equal tokens or compute"
        return (replace(family, reason=reason), None) if one_size else None
    seeds = tuple(sorted(set.intersection(*(set(own[end]) for own, end in zip(losses, ends, strict=True)))))
    if not seeds:
        return replace(family, reason="no seed has all of its variants"), None
    log_loss = np.array([[own[end][seed] for seed in seeds] for own, end in zip(losses, ends, strict=True)])
    after = {"n_tokens": ends[0][0]} if shared else {"flops": float(np.exp(np.mean(np.log(flops))))}
    return replace(family, seeds=seeds, **after), _Losses(log_loss, n_params, flops)
