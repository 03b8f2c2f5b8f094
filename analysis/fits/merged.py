"""Merged losses in the place of decayed ones: by how much the mean of a trunk's last weights lies above the end of a
decay to the same tokens, measured on branches, and what is not known of it.

A pair is a branch's decayed loss and its trunk's merged loss at equal trained tokens: D where the trunk comes that far.
ln merged - ln decayed of an architecture's pairs is fitted by least squares, as a mean, or from six pairs as a plane in
ln N and ln D, whether or not a test finds one. Merged losses are lowered by it. Its error is one for all of them, so
intervals draw it once a replicate (Points.common); scatter about it is noise of each point, which a fit's residuals
show. NOTES.md beside this file has how often intervals of such fits cover.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.runs import Tables
from arch.amounts import count
from arch.errors import InputError
from scaling.study.schedule import DECAYED, MERGED

LEAST_PAIRS, LEAST_SIZES = 3, 2
PLANE_PAIRS = 6  # from which on the offset is a plane: three parameters, and three degrees of freedom left
APART = 0.1  # least standard deviation across, in ln, of N and D of pairs that a plane is fitted to
REACH = 2.0  # times beyond the pairs' N and D: farther merged losses enter no fit


@dataclass(frozen=True)
class Calibration:
    """Of one architecture: pairs (size, trunk, n_params, n_tokens, offset), beta [p] (a mean, or with the slopes over
    ln N and ln D about `center`), root [p, p] of its covariance, scatter: standard deviation about it, df of it,
    p_trend: of the F test of the plane against the mean (nan: too few pairs)."""

    pairs: tuple[dict[str, Any], ...]
    center: np.ndarray
    beta: np.ndarray
    root: np.ndarray
    scatter: float
    df: int
    p_trend: float

    @property
    def mean(self) -> float:
        return float(np.mean([pair["offset"] for pair in self.pairs]))

    def _design(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        off = np.column_stack([np.log(n_params), np.log(n_tokens)]) - self.center
        return np.column_stack([np.ones(len(off)), off])[:, : len(self.beta)]

    def offset(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """[m]: ln merged - ln decayed at N and D."""
        return np.asarray(self._design(n_params, n_tokens) @ self.beta)

    def error(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """[m, p]: times p standard normal draws, the error that the offsets have in common."""
        return np.asarray(self._design(n_params, n_tokens) @ self.root)

    def reaches(self, n_params: float, n_tokens: float) -> bool:
        found = ((n_params, "n_params"), (n_tokens, "n_tokens"))
        values = {key: [pair[key] for pair in self.pairs] for _, key in found}
        return all(min(values[key]) / REACH <= value <= max(values[key]) * REACH for value, key in found)

    def to_dict(self, level: float) -> dict[str, Any]:
        """As fits.json has it; interval: of the mean offset over the pairs at `level`, by Student's t."""
        half = float(stats.t.isf((1 - level) / 2, self.df)) * float(np.linalg.norm(self.root[0]))
        mean = float(self.beta[0])  # at the pairs' middle
        return {
            "n_pairs": len(self.pairs),
            "sizes": sorted({str(pair["size"]) for pair in self.pairs}),
            "pairs": list(self.pairs),
            "mean": mean,
            "interval": [mean - half, mean + half],
            "scatter": self.scatter,
            "df": self.df,
            "slopes": None if len(self.beta) == 1 else self.beta[1:].tolist(),
            "p_trend": None if math.isnan(self.p_trend) else self.p_trend,
        }


def pairs_of(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """By group (of tables that are grouped), the pairs of its branches that are done and left out of no fit."""
    evals, runs = tables.evals, tables.runs
    found: dict[str, list[dict[str, Any]]] = {}
    if "phase" not in evals or "trunk" not in runs or not (evals["phase"] == MERGED).any():
        return found
    merged, decayed = _losses(evals, MERGED), _losses(evals, DECAYED)
    branches = runs[(runs["state"] == "done") & (runs["left_out"] == "") & (runs["trunk"] != "")]
    for run in branches.to_dict("records"):
        at, own = ((str(run[key]), int(run["n_tokens"])) for key in ("trunk", "run_id"))
        if at in merged and own in decayed:
            pair = {"size": str(run["size"]), "trunk": at[0], "n_params": int(run["n_params_non_embedding"])}
            pair |= {"n_tokens": at[1], "merged": merged[at], "decayed": decayed[own]}
            found.setdefault(str(run["group"]), []).append(pair | {"offset": math.log(merged[at] / decayed[own])})
    return found


def _losses(evals: pd.DataFrame, phase: str) -> dict[tuple[str, int], float]:
    """{(run, tokens): loss} of the rows of a phase."""
    rows = evals[evals["phase"] == phase]
    return {
        (str(run), int(tokens)): float(loss)
        for run, tokens, loss in zip(rows["run_id"], rows["n_tokens"].tolist(), rows["loss"].tolist(), strict=True)
    }


def calibrate(pairs: list[dict[str, Any]]) -> Calibration | None:
    """None of fewer than three pairs, or of pairs at one size."""
    if len(pairs) < LEAST_PAIRS or len({pair["size"] for pair in pairs}) < LEAST_SIZES:
        return None
    y = np.array([pair["offset"] for pair in pairs])
    where = np.log([[pair["n_params"], pair["n_tokens"]] for pair in pairs])
    center = where.mean(0)
    one = np.ones((len(y), 1))
    plane = np.column_stack([one, where - center])
    # D in proportion to N, but for whole batches, tells no slope in D from one in N
    spread = np.linalg.svd((where - center) / math.sqrt(len(y)), compute_uv=False)[-1]
    told = len(y) > plane.shape[1] and spread >= APART
    rest = float(((y - y.mean()) ** 2).sum())
    p_trend = math.nan
    if told:
        df = len(y) - plane.shape[1]
        left = float(((y - plane @ np.linalg.lstsq(plane, y, rcond=None)[0]) ** 2).sum())
        ratio = max(rest - left, 0.0) / 2 / max(left / df, 1e-300)
        p_trend = float(stats.f.sf(ratio, 2, df))
    x = plane if told and len(y) >= PLANE_PAIRS else one
    beta = np.linalg.lstsq(x, y, rcond=None)[0]
    df = len(y) - x.shape[1]
    scatter = math.sqrt(float(((y - x @ beta) ** 2).sum()) / df)
    root = np.linalg.cholesky(np.linalg.inv(x.T @ x)) * scatter
    return Calibration(tuple(pairs), center, beta, root, scatter, df, p_trend)


def calibrations(tables: Tables, needed: bool = False) -> dict[str, Calibration]:
    """By group of grouped tables, of those whose pairs are enough. needed: for a fit of merged losses, which raises
    InputError where a group with merged losses has too few."""
    pairs = pairs_of(tables)
    found = {group: one for group, mine in pairs.items() if (one := calibrate(mine)) is not None}
    if needed:
        runs = tables.runs.set_index("run_id")["group"]
        names = tables.evals.loc[tables.evals["phase"] == MERGED, "run_id"]
        for group in dict.fromkeys(runs.reindex(names).dropna()):
            if group not in found:
                mine = pairs.get(group, [])
                raise InputError(
                    f"fit.points is merged, and {group} has {len(mine)} pairs of a decayed loss and its trunk's merged "
                    f"loss at the same tokens, at {len({pair['size'] for pair in mine})} sizes: calibration needs "
                    f"{LEAST_PAIRS} at {LEAST_SIZES}; add branches that end before their trunk does, or fit decayed "
                    f"losses alone"
                )
    return found


def merged_rows(
    tables: Tables, known: Mapping[str, Calibration], run: Mapping[str, Any], taken: set[tuple[str, int]]
) -> tuple[list[dict[str, Any]], int]:
    """The merged losses of a trunk (`run`: its row of the table of runs) as rows of a table of runs, each with tokens
    [1], loss [1] less its offset, and the offset's error [1, p]; and how many lie too far from the pairs. taken: the
    (trunk, tokens) of decayed losses, where merged ones would count the same training twice."""
    evals, found, far = tables.evals, list[dict[str, Any]](), 0
    one = known.get(str(run["group"]))
    rows = evals[(evals["run_id"] == run["run_id"]) & (evals["phase"] == MERGED)].sort_values("n_tokens")
    for tokens, loss in zip(rows["n_tokens"].tolist(), rows["loss"].tolist(), strict=True):
        if (str(run["run_id"]), int(tokens)) in taken or one is None:
            continue
        n_params = float(run["n_params_non_embedding"])
        if not one.reaches(n_params, tokens):
            far += 1
            continue
        at = np.array([n_params]), np.array([float(tokens)])
        found.append(
            {
                **run,
                "run_id": f"{run['run_id']} merged at {count(tokens, 6)}",
                "trunk": str(run["run_id"]),
                "epochs": run["epochs"] * tokens / run["n_tokens"],
                "n_tokens": int(tokens),
                "tokens": at[1],
                "loss": loss * np.exp(-one.offset(*at)),
                "shift": one.error(*at),
                "shift_df": one.df,
            }
        )
    return found, far


def told_of(tables: Tables, level: float) -> dict[str, Any]:
    """By group, its calibration as plain data; with `reason` where pairs are too few. Empty without merged losses."""
    known = calibrations(tables)
    return {
        group: known[group].to_dict(level)
        if group in known
        else {"n_pairs": len(mine), "pairs": mine, "reason": f"needs {LEAST_PAIRS} pairs at {LEAST_SIZES} sizes"}
        for group, mine in pairs_of(tables).items()
    }


def decayed_at(runs: pd.DataFrame) -> set[tuple[str, int]]:
    """(trunk, tokens) of the branches that are done."""
    done = runs[(runs["state"] == "done") & (runs["trunk"] != "")] if "trunk" in runs else runs[:0]
    return set(zip(done["trunk"].astype(str), done["n_tokens"].astype(int).tolist(), strict=True))
