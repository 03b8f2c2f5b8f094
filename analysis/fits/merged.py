"""How far the loss of a trunk's merged last weights lies above that of the branch decayed to the same tokens."""

from __future__ import annotations

import numpy as np
from scipy import stats

from analysis.fits.fit import Estimate
from analysis.fits.study_fits import MergedOffset
from analysis.run_table import RunTable
from scaling.study.schedule import DECAYED, MERGED


def merged_offsets(table: RunTable, level: float) -> dict[str, MergedOffset]:
    """By group of a grouped table, of its branches that are done and left out of no fit. Pairs of one trunk share its
    error, so each trunk counts once: the mean of the trunks' means, by Student's t."""
    evals, runs = table.evals, table.runs
    if "phase" not in evals or not (evals["phase"] == MERGED).any():
        return {}
    merged, decayed = (
        evals.loc[evals["phase"] == phase, ["run_id", "n_tokens", "loss"]] for phase in (MERGED, DECAYED)
    )
    branches = runs.loc[
        (runs["state"] == "done") & (runs["left_out"] == "") & (runs["trunk"] != ""),
        ["run_id", "trunk", "n_tokens", "group", "size"],
    ]
    pairs = branches.merge(decayed, on=["run_id", "n_tokens"]).merge(
        merged, left_on=["trunk", "n_tokens"], right_on=["run_id", "n_tokens"], suffixes=("", "_merged")
    )
    pairs = pairs.assign(offset=np.log(pairs["loss_merged"] / pairs["loss"]))
    offsets = {}
    for group, own in pairs.groupby("group", sort=False):
        means = own.groupby("trunk")["offset"].mean()
        mean, n = float(means.mean()), len(means)
        offset = Estimate(mean, reason="an interval needs two trunks")
        if n > 1:
            half = float(stats.t.isf((1 - level) / 2, n - 1) * means.std() / np.sqrt(n))
            offset = Estimate(mean, mean - half, mean + half)
        offsets[str(group)] = MergedOffset(len(own), n, tuple(sorted(own["size"].astype(str).unique())), offset)
    return offsets
