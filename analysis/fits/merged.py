"""Merged losses in the place of decayed ones: by how much the mean of a trunk's last weights lies above the end of a
decay to the same tokens, measured on branches, and what is not known of it.

A pair is a branch's decayed loss and its trunk's merged loss at equal trained tokens: D where the trunk comes that far.
Merged losses are lowered by the offset that an architecture's pairs show (offset.py). Its error is one for all of them,
so intervals draw it once a replicate (Points.common); scatter about it is noise of each point, which a fit's residuals
show. NOTES.md beside this file has how often intervals of such fits cover.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.offset import LEAST_PAIRS, LEAST_SIZES, Calibration, calibrate
from analysis.run_table import RunTable
from arch.amounts import count, counted
from arch.errors import InputError
from scaling.study.schedule import DECAYED, MERGED


def pairs_of(table: RunTable) -> dict[str, list[dict[str, Any]]]:
    """By group (of a table that is grouped), the pairs of its branches that are done and left out of no fit."""
    evals, runs = table.evals, table.runs
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


def calibrations(table: RunTable, needed: bool = False) -> dict[str, Calibration]:
    """By group of a grouped table, of those whose pairs are enough. needed: for a fit of merged losses, which raises
    InputError where a group with merged losses has too few."""
    pairs = pairs_of(table)
    found = {group: one for group, mine in pairs.items() if (one := calibrate(mine)) is not None}
    if needed:
        runs = table.runs.set_index("run_id")["group"]
        names = table.evals.loc[table.evals["phase"] == MERGED, "run_id"]
        for group in dict.fromkeys(runs.reindex(names).dropna()):
            if group not in found:
                mine = pairs.get(group, [])
                sizes = counted(len({pair["size"] for pair in mine}), "size")
                raise InputError(
                    f"fit.points is merged, and {group} has {counted(len(mine), 'pair')} of a decayed loss and its "
                    f"trunk's merged loss at the same tokens, at {sizes}: calibration needs "
                    f"{LEAST_PAIRS} at {LEAST_SIZES}; add branches that end before their trunk does, or fit decayed "
                    f"losses alone"
                )
    return found


def merged_rows(
    table: RunTable, known: Mapping[str, Calibration], run: Mapping[str, Any], taken: set[tuple[str, int]]
) -> tuple[list[dict[str, Any]], int]:
    """The merged losses of a trunk (`run`: its row of the table of runs) as rows of a table of runs, each with `curve`
    (tokens [1] and loss [1] less its offset), and the offset's error [1, p] with its degrees of freedom [p]; and how
    many lie too far from the pairs. taken: the (trunk, tokens) of decayed losses, where merged ones would count the
    same training twice."""
    evals, found, far = table.evals, list[dict[str, Any]](), 0
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
                "curve": {"n_tokens": at[1], "loss": loss * np.exp(-one.offset(*at))},
                "shift": one.error(*at),
                "shift_df": tuple(one.df.tolist()),
            }
        )
    return found, far


def calibrations_to_dict(table: RunTable, level: float) -> dict[str, Any]:
    """By group, its calibration as plain data; with `reason` where pairs are too few. Empty without merged losses."""
    known = calibrations(table)
    return {
        group: known[group].to_dict(level)
        if group in known
        else {"n_pairs": len(mine), "pairs": mine, "reason": f"needs {LEAST_PAIRS} pairs at {LEAST_SIZES} sizes"}
        for group, mine in pairs_of(table).items()
    }


def decayed_at(runs: pd.DataFrame) -> set[tuple[str, int]]:
    """(trunk, tokens) of the branches that are done."""
    done = runs[(runs["state"] == "done") & (runs["trunk"] != "")] if "trunk" in runs else runs[:0]
    return set(zip(done["trunk"].astype(str), done["n_tokens"].astype(int).tolist(), strict=True))
