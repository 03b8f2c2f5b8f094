"""Variants of a model after equal tokens: points of the grid's axes, and shapes of about as many parameters.

The variants of a family are read at the largest number of tokens at which each has been evaluated, by the seeds that
all of them have; a loss is the mean of its logarithm over these. What a seed adds to all variants alike (its order of
the text, most of all) is no difference between them: noise is the residual of ln loss = variant + seed, pooled over
all families, and the interval of a difference is s sqrt(2 / seeds) times Student's t with the residual's degrees of
freedom, divided among the family's comparisons (Bonferroni), so that all of them hold at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.run_table import RunTable
from scaling.study.schedule import MERGED

ALIKE = 1.1  # shapes of one family: the largest has so many times the parameters of the smallest


@dataclass(frozen=True, eq=False)
class _Family:
    """ln loss [variants, seeds] after n_tokens; why: what it lacks, then there is no loss."""

    arch: str
    name: str
    labels: list[str]
    n_params: list[int]
    flops_per_token: list[float]
    n_tokens: int = 0
    seeds: tuple[int, ...] = ()
    log_loss: np.ndarray | None = None
    why: str | None = None

    @property
    def residuals(self) -> np.ndarray:
        """Of variant + seed, [variants, seeds]."""
        assert self.log_loss is not None
        y = self.log_loss
        return y - y.mean(0, keepdims=True) - y.mean(1, keepdims=True) + y.mean()

    @property
    def df(self) -> int:
        return 0 if self.log_loss is None else (len(self.labels) - 1) * (len(self.seeds) - 1)


def compare_variants(table: RunTable, level: float) -> dict[str, Any]:
    """{"noise": {"s", "df"} of ln loss, None without seeds, "families": [..]} of a table that has been grouped.

    A family: {"arch", "at", "n_tokens", "seeds", "labels", "reason", "rows"}; a row: {"variant", "n_params", "flops"
    (exact, to these tokens), "loss" (nats a token), "more" (of the loss, over the first variant's), "low", "high" (None
    without noise)}. Families of one variant are left out; `reason`: why there are no rows.
    """
    families = [_read(family, table) for family in _families(table)]
    found = [one for one in families if one.log_loss is not None]
    df = sum(one.df for one in found)
    s = math.sqrt(sum(float((one.residuals**2).sum()) for one in found if one.df) / df) if df else None
    return {
        "noise": None if s is None else {"s": s, "df": df},
        "families": [
            {
                "arch": one.arch,
                "at": one.name,
                "n_tokens": one.n_tokens,
                "seeds": list(one.seeds),
                "reason": one.why,
                "labels": one.labels,
                "rows": [] if one.log_loss is None else _rows(one, s, df, level),
            }
            for one in families
        ],
    }


def _rows(family: _Family, s: float | None, df: int, level: float) -> list[dict[str, Any]]:
    assert family.log_loss is not None
    means, others = family.log_loss.mean(1), len(family.labels) - 1
    half = None
    if s is not None:
        half = s * math.sqrt(2 / len(family.seeds)) * float(stats.t.ppf(1 - (1 - level) / (2 * others), df))
    rows = []
    for index, label in enumerate(family.labels):
        more = float(means[index] - means[0])
        ends = [None, None] if half is None or not index else [math.expm1(more - half), math.expm1(more + half)]
        row = {"variant": label, "n_params": family.n_params[index], "loss": float(np.exp(means[index]))}
        row["flops"] = family.flops_per_token[index] * family.n_tokens
        rows.append(row | {"more": math.expm1(more), "low": ends[0], "high": ends[1]})
    return rows


def _families(table: RunTable) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(architecture, what its variants have in common, their runs) of each family of several variants."""
    runs = table.runs
    runs = runs[(runs["state"] == "done") & (runs["left_out"] == "") & runs["n_params_non_embedding"].notna()]
    reads = runs["context_length"].astype(str) + runs["reset_at_documents"].map({True: " apart"}).fillna("")
    for arch, mine in runs.groupby("arch", sort=False):
        size_n = mine.groupby("size", sort=False)["n_params_non_embedding"].first().sort_values(kind="stable")
        classes: list[list[str]] = []
        for size, n in size_n.items():
            if classes and n <= ALIKE * size_n[classes[-1][0]]:
                classes[-1].append(str(size))
            else:
                classes.append([str(size)])
        for sizes in classes:
            several = mine[mine["size"].isin(sizes)]
            contexts = reads[several.index]
            for context in dict.fromkeys(contexts):
                alike = several[contexts == context]
                if len(alike[["size", "point"]].drop_duplicates()) > 1:
                    name = sizes[0] if len(sizes) == 1 else "shapes of about as many parameters"
                    told = f", context {context}" if contexts.nunique() > 1 else ""
                    yield str(arch), name + told, alike


def _read(family: tuple[str, str, pd.DataFrame], table: RunTable) -> _Family:
    arch, name, runs = family
    one_size = runs["size"].nunique() == 1
    labels, n_params, flops = list[str](), list[int](), list[float]()
    losses: list[dict[tuple[int, str], dict[int, float]]] = []  # by variant, (tokens, phase), seed
    evals = {run: rows for run, rows in table.evals.groupby("run_id") if run in set(runs["run_id"])}
    for (size, point), mine in runs.groupby(["size", "point"], sort=False):
        labels.append(", ".join(filter(None, ("" if one_size else str(size), str(point)))) or str(size))
        n_params.append(int(mine["n_params_non_embedding"].iloc[0]))
        flops.append(float(mine["flops_per_token_exact"].iloc[0]))
        at: dict[tuple[int, str], dict[int, float]] = {}
        losses.append(at)
        for run, seed in zip(mine["run_id"], mine["seed"], strict=True):
            for row in evals[run].to_dict("records") if run in evals else ():
                if row["phase"] == MERGED:  # it stands for a decay, less an offset that is not known here
                    continue
                at.setdefault((int(row["n_tokens"]), str(row["phase"])), {})[int(seed)] = math.log(row["loss"])
    shared = set.intersection(*(set(at) for at in losses))
    if not shared:
        return _Family(arch, name, labels, n_params, flops, why="its variants were not evaluated after equal tokens")
    last = max(shared)
    seeds = tuple(sorted(set.intersection(*(set(at[last]) for at in losses))))
    if not seeds:
        return _Family(arch, name, labels, n_params, flops, why="no seed has all of its variants")
    log_loss = np.array([[at[last][seed] for seed in seeds] for at in losses])
    return _Family(arch, name, labels, n_params, flops, last[0], seeds, log_loss)
