"""Merged losses in the place of decayed ones: by how much the mean of a trunk's last weights lies above the end of a
decay to the same tokens, measured on branches, and what is not known of it.

A pair is a branch's decayed loss and its trunk's merged loss at equal trained tokens: D where the trunk comes that far.
Merged losses are lowered by the offset that an architecture's pairs show. Its error is one for all of them, so
intervals draw it once a replicate (Points.common); scatter about it is noise of each point, which a fit's residuals
show.

Pairs of one trunk share its error, so the trunk is the unit, as in a split plot: the slope in ln D is known from pairs
of one trunk, against each other; the mean and the slope in ln N from trunks, of which each counts once. With equal
tokens in every trunk these are least squares, and the intervals those of Student's t with the degrees of freedom of
trunks, whether or not trunks have an error of their own (Searle, Casella & McCulloch 1992, "Variance Components",
chapter 4). A slope is taken where it leaves two degrees of freedom, whether or not a test finds one.
docs/research/merged-losses.md has how often the intervals cover.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.fits.fit import Estimate
from analysis.fits.study_fits import MergedOffset, MergedPair
from analysis.run_table import RunTable
from arch.amounts import count, counted
from arch.errors import InputError
from scaling.study.schedule import DECAYED, MERGED

LEAST_PAIRS, LEAST_SIZES = 3, 2
LEFT = 2  # degrees of freedom that a slope must leave
APART = 0.1  # least standard deviation across, in ln, of N and D of pairs that slopes are fitted to
REACH = 2.0  # times beyond the pairs' N and D: farther merged losses enter no fit


@dataclass(frozen=True)
class Calibration:
    """Of one architecture: its pairs, beta [3]: the offset at `center` (ln N, ln D), and the slopes over ln N and ln D,
    0 where none is known; root [3, 3] of its covariance, with df [3] degrees of freedom of its columns: those of
    trunks, and of pairs within them; scatter: standard deviation of a pair about it."""

    pairs: tuple[MergedPair, ...]
    center: np.ndarray
    beta: np.ndarray
    root: np.ndarray
    scatter: float
    df: np.ndarray

    def _design(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        off = np.column_stack([np.log(n_params), np.log(n_tokens)]) - self.center
        return np.column_stack([np.ones(len(off)), off])

    def offset(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """[m]: ln merged - ln decayed at N and D."""
        return np.asarray(self._design(n_params, n_tokens) @ self.beta)

    def error(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """[m, 3]: times draws of Student's t with `df`, the error that the offsets have in common."""
        return np.asarray(self._design(n_params, n_tokens) @ self.root)

    def reaches(self, n_params: float, n_tokens: float) -> bool:
        sizes, tokens = [pair.n_params for pair in self.pairs], [pair.n_tokens for pair in self.pairs]
        return all(
            min(known) / REACH <= value <= max(known) * REACH
            for value, known in ((n_params, sizes), (n_tokens, tokens))
        )

    def in_the_middle(self, level: float) -> Estimate:
        """The offset in the middle of the trunks, by Student's t."""
        half = float(stats.t.isf((1 - level) / 2, self.df[0])) * float(np.linalg.norm(self.root[0]))
        mean = float(self.beta[0])
        return Estimate(mean, mean - half, mean + half)


def calibrate(pairs: Sequence[MergedPair]) -> Calibration | None:
    """None of fewer than three pairs, or of pairs at one size."""
    if len(pairs) < LEAST_PAIRS or len({pair.size for pair in pairs}) < LEAST_SIZES:
        return None
    names, trunk = np.unique([pair.trunk for pair in pairs], return_inverse=True)
    rows = np.array([[math.log(pair.n_params), math.log(pair.n_tokens), pair.offset] for pair in pairs])
    n_pairs = np.bincount(trunk)
    means = np.column_stack([np.bincount(trunk, column) / n_pairs for column in rows.T])
    center = means[:, :2].mean(0)
    beta, root = np.zeros(3), np.zeros((3, 3))
    # pairs against others of their trunk: the slope in ln D, and the variance of a pair within its trunk
    d, y = (rows - means[trunk])[:, 1:].T
    df_within = len(pairs) - len(names)
    has_slope = df_within - 1 >= LEFT and math.sqrt(float((d**2).mean())) >= APART
    if has_slope:
        beta[2], df_within = float(d @ y / (d @ d)), df_within - 1
    within = float(((y - beta[2] * d) ** 2).sum()) / df_within if df_within else None
    # trunks: the mean, the slope in ln N, and that in ln D where pairs of one trunk do not tell it
    x, held = _between(means[:, :2] - center, has_slope)
    inverse = np.linalg.inv(x.T @ x)
    along = means[:, 1] - center[1]
    level = means[:, 2] - beta[2] * along
    beta[held] = inverse @ x.T @ level
    df = len(names) - x.shape[1]
    variance = float(((level - x @ beta[held]) ** 2).sum()) / df  # of a trunk's mean
    root[np.ix_(held, range(len(held)))] = np.linalg.cholesky(inverse) * math.sqrt(variance)
    if has_slope:
        assert within is not None
        root[2, 2] = math.sqrt(within / float(d @ d))
        root[held, 2] = -(inverse @ x.T @ along) * root[2, 2]
    scatter = math.sqrt(variance)
    if within is not None:
        scatter = math.sqrt(max(0.0, variance - within * float((1 / n_pairs).mean())) + within)
    dfs = np.array([df, df, df_within if has_slope else df])
    return Calibration(tuple(pairs), center, beta, root, scatter, dfs)


def _between(where: np.ndarray, has_slope: bool) -> tuple[np.ndarray, list[int]]:
    """The design over trunks, and which of [1, ln N, ln D] it has. has_slope: the one in ln D is known already."""
    columns = [0, 1] if has_slope else [0, 1, 2]
    x = np.column_stack([np.ones(len(where)), where])[:, columns]
    # D in proportion to N, but for whole batches, tells no slope in D from one in N
    spread = np.linalg.svd(x[:, 1:] / math.sqrt(len(x)), compute_uv=False)[-1]
    if len(x) - len(columns) < LEFT or spread < APART:
        return x[:, :1], [0]
    return x, columns


def pairs_of(table: RunTable) -> dict[str, list[MergedPair]]:
    """By group (of a table that is grouped), the pairs of its branches that are done and left out of no fit."""
    evals, runs = table.evals, table.runs
    pairs: dict[str, list[MergedPair]] = {}
    if "phase" not in evals or "trunk" not in runs or not (evals["phase"] == MERGED).any():
        return pairs
    merged, decayed = _losses(evals, MERGED), _losses(evals, DECAYED)
    branches = runs[(runs["state"] == "done") & (runs["left_out"] == "") & (runs["trunk"] != "")]
    for run in branches.to_dict("records"):
        at, own = ((str(run[key]), int(run["n_tokens"])) for key in ("trunk", "run_id"))
        if at in merged and own in decayed:
            pair = MergedPair(
                str(run["size"]), at[0], int(run["n_params_non_embedding"]), at[1], merged[at], decayed[own]
            )
            pairs.setdefault(str(run["group"]), []).append(pair)
    return pairs


def _losses(evals: pd.DataFrame, phase: str) -> dict[tuple[str, int], float]:
    """{(run, tokens): loss} of the rows of a phase."""
    rows = evals[evals["phase"] == phase]
    keys = zip(rows["run_id"].astype(str), rows["n_tokens"].astype(int).tolist(), strict=True)
    return dict(zip(keys, rows["loss"].tolist(), strict=True))


def calibrations(table: RunTable, needed: bool = False) -> dict[str, Calibration]:
    """By group of a grouped table, of those whose pairs are enough. needed: for a fit of merged losses, which raises
    InputError where a group with merged losses has too few."""
    pairs = pairs_of(table)
    known = {group: made for group, own in pairs.items() if (made := calibrate(own)) is not None}
    if needed:
        runs = table.runs.set_index("run_id")["group"]
        names = table.evals.loc[table.evals["phase"] == MERGED, "run_id"]
        for group in dict.fromkeys(runs.reindex(names).dropna()):
            if group not in known:
                own = pairs.get(group, [])
                sizes = counted(len({pair.size for pair in own}), "size")
                raise InputError(
                    f"fit.points is merged, and {group} has {counted(len(own), 'pair')} of a decayed loss and its "
                    f"trunk's merged loss at the same tokens, at {sizes}: calibration needs "
                    f"{LEAST_PAIRS} at {LEAST_SIZES}; add branches that end before their trunk does, or fit decayed "
                    f"losses alone"
                )
    return known


def merged_offsets(table: RunTable, level: float) -> dict[str, MergedOffset]:
    """By group, the offset that its pairs show. Empty without merged losses."""
    too_few = Estimate(reason=f"needs {LEAST_PAIRS} pairs at {LEAST_SIZES} sizes")
    offsets = {}
    for group, pairs in pairs_of(table).items():
        known = calibrate(pairs)
        offset, scatter = (too_few, None) if known is None else (known.in_the_middle(level), known.scatter)
        offsets[group] = MergedOffset(tuple(pairs), offset, scatter)
    return offsets


def merged_rows(
    table: RunTable, known: Mapping[str, Calibration], run: Mapping[str, Any], taken: set[tuple[str, int]]
) -> tuple[list[dict[str, Any]], int]:
    """The merged losses of a trunk (`run`: its row of the table of runs) as rows of a table of runs, each with `curve`
    (tokens [1] and loss [1] less its offset), and the offset's error [1, p] with its degrees of freedom [p]; and how
    many lie too far from the pairs. taken: the (trunk, tokens) of decayed losses, where merged ones would count the
    same training twice."""
    rows, too_far = list[dict[str, Any]](), 0
    calibration, n_params = known.get(str(run["group"])), float(run["n_params_non_embedding"])
    evals = table.evals[(table.evals["run_id"] == run["run_id"]) & (table.evals["phase"] == MERGED)]
    for row in evals.sort_values("n_tokens").itertuples():
        tokens = int(row.n_tokens)
        if (str(run["run_id"]), tokens) in taken or calibration is None:
            continue
        if not calibration.reaches(n_params, tokens):
            too_far += 1
            continue
        at = np.array([n_params]), np.array([float(tokens)])
        rows.append(
            {
                **run,
                "run_id": f"{run['run_id']} merged at {count(tokens, 6)}",
                "trunk": str(run["run_id"]),
                "epochs": run["epochs"] * tokens / run["n_tokens"],
                "n_tokens": tokens,
                "curve": {"n_tokens": at[1], "loss": row.loss * np.exp(-calibration.offset(*at))},
                "shift": calibration.error(*at),
                "shift_df": tuple(calibration.df.tolist()),
            }
        )
    return rows, too_far


def decayed_at(runs: pd.DataFrame) -> set[tuple[str, int]]:
    """(trunk, tokens) of the branches that are done."""
    done = runs[(runs["state"] == "done") & (runs["trunk"] != "")] if "trunk" in runs else runs[:0]
    return set(zip(done["trunk"].astype(str), done["n_tokens"].astype(int).tolist(), strict=True))
