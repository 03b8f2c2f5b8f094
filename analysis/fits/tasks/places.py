"""The evaluated checkpoints of a study, each with the loss that the laws are fitted to, read where it was taken."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.fits.grouping import grouped
from analysis.fits.losses import RunCurves
from analysis.fits.settings import FitSettings
from analysis.run_table import RunTable

ROUNDING = 1e-9
Key = tuple[str, int]  # run id, tokens


class Checkpoint(NamedTuple):
    """An evaluated checkpoint that can enter a fit."""

    arch: str
    size: str
    run_id: str
    n_tokens: float
    loss: float
    flops: float


def places_of(
    tables: RunTable, evals: pd.DataFrame, settings: FitSettings
) -> tuple[dict[Key, Checkpoint], dict[Key, str]]:
    """The loss and compute of each evaluated checkpoint, or why it has none."""
    tables = grouped(tables, settings)
    curves = RunCurves(tables, settings)
    raw = RunCurves(tables, settings.model_copy(update={"smoothing_tokens": 0, "smoothing_fraction": 0.0}))
    runs: dict[str, Any] = {str(row.run_id): row for row in tables.runs.itertuples()}
    places: dict[Key, Checkpoint] = {}
    reasons: dict[Key, str] = {}
    for run_id, rows in evals.groupby("run_id", sort=False):
        run = runs.get(str(run_id))
        keys = [(str(run_id), int(n)) for n in dict.fromkeys(rows["n_tokens"].tolist())]
        if run is not None and run.left_out and run.run_id not in tables.averaged:
            reasons |= dict.fromkeys(keys, f"its run is left out of the fits ({run.left_out})")
            continue
        if run is None or run.state != "done":
            reasons |= dict.fromkeys(keys, "its run is not done" if run is not None else "its run is not of the fit")
            continue
        per_token = float(getattr(run, f"flops_per_token_{settings.flops}"))
        if np.isnan(per_token):
            reasons |= dict.fromkeys(keys, f"the convention {settings.flops} has no formula for its architecture")
            continue
        losses = _losses(curves, raw, str(run_id), np.array([n for _, n in keys], dtype=float))
        settled = settings.settled_after(int(run.warmup_tokens))
        for key, loss in zip(keys, losses.tolist(), strict=True):
            n = float(key[1])
            if n < settled:
                reasons[key] = "it lies inside warm-up"
            elif np.isnan(loss):
                reasons[key] = "its run has no loss there"
            else:
                places[key] = Checkpoint(str(run.group), str(run.size), str(run_id), n, loss, n * per_token)
    return places, reasons


def _losses(curves: RunCurves, raw: RunCurves, run_id: str, at: np.ndarray) -> np.ndarray:
    """[m]: the curve's loss after `at` tokens, log-linear between its points, NaN outside of it.

    A smoothed curve ends half a window before its run does. Behind it a line through the losses of the last window is
    read (local linear regression, which has no lag at an end, where a one-sided mean would).
    """
    settings, (tokens, loss) = curves.settings, curves.of(run_id)
    if not len(tokens):
        return np.full(len(at), np.nan)
    found = np.exp(np.interp(np.log(at), np.log(tokens), np.log(loss)))
    found[(at < tokens[0] * (1 - ROUNDING)) | (at > tokens[-1] * (1 + ROUNDING))] = np.nan
    if settings.loss == "validation":
        return found
    steps, seen = raw.of(run_id)
    last = steps >= steps[-1] - max(settings.smoothing_tokens, settings.smoothing_fraction * steps[-1])
    behind = (at > tokens[-1]) & (at <= steps[-1])
    if last.sum() > 2 and behind.any():
        x = np.log(steps[last] / steps[-1])
        found[behind] = np.polyval(np.polyfit(x, seen[last], 1), np.log(at[behind] / steps[-1]))
    return found
