"""Forecast runs of a mixture, source by source: which text a missed prediction was wrong about.

The same surface, fitted to the held-out losses of one source alone. It is made when the runs are measured, so it judges
no prediction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.fits.approaches import fit_surface, options_of
from analysis.fits.points import CURVES
from analysis.fits.prepare import prepare
from analysis.labels import OF_SOURCE
from analysis.last_steps import last_steps
from analysis.run_table import RunTable

if TYPE_CHECKING:
    import pandas as pd


def by_source(
    study: RunTable, scores: pd.DataFrame, forecast: RunTable, forecast_scores: pd.DataFrame
) -> list[dict[str, Any]]:
    """A row an architecture and source: `group`, `source`, `n_params`, `n_tokens`, `predicted` (nats a token of that
    source, by its own surface), `measured` (mean of the forecast runs that are done), `n_runs`, `error` (measured over
    predicted, less 1). One size of forecast runs is read, the largest of each group.

    scores, forecast_scores: of all evaluations (analysis.evals.results.tidy). Raises InputError where a group's losses
    of a source cannot identify a surface.
    """
    rows = []
    for source in dict.fromkeys(name for name in scores["metric"] if name.startswith(OF_SOURCE)):
        alone = _of_source(study, scores, source)
        ends = _of_source(forecast, forecast_scores, source)
        for group, points in prepare(alone, points=CURVES).groups.items():
            found = _largest(ends, group)
            if found is None:
                continue
            n_params, n_tokens, losses = found
            fit = fit_surface(points, options_of(alone.settings), None, 0)
            predicted, measured = float(fit.surface.loss(n_params, n_tokens)), float(np.mean(losses))
            rows.append(
                {
                    "group": group,
                    "source": source.removeprefix(OF_SOURCE),
                    "n_params": n_params,
                    "n_tokens": n_tokens,
                    "predicted": predicted,
                    "measured": measured,
                    "n_runs": len(losses),
                    "error": measured / predicted - 1,
                }
            )
    return rows


def _of_source(tables: RunTable, scores: pd.DataFrame, metric: str) -> RunTable:
    """The tables with the held-out losses of one source in the place of the mixture's."""
    mine = scores[(scores["task"] == "validation") & (scores["metric"] == metric)]
    losses = mine.set_index(["run_id", "step"])["value"]
    evals = tables.evals.copy()
    evals["loss"] = [losses.get(key, np.nan) for key in zip(evals["run_id"], evals["step"], strict=True)]
    return replace(tables, evals=evals[evals["loss"].notna()].reset_index(drop=True), nuisance=None)


def _largest(tables: RunTable, arch: str) -> tuple[float, float, list[float]] | None:
    """N, D and the last losses of the largest runs of an architecture that are done."""
    done = tables.runs[(tables.runs["state"] == "done") & (tables.runs["arch"] == arch)]
    if done.empty:
        return None
    mine = done[done["n_params_non_embedding"] == done["n_params_non_embedding"].max()]
    last = last_steps(tables.evals[tables.evals["run_id"].isin(mine["run_id"])])
    last = last[last["n_tokens"] == last["n_tokens"].max()]
    return float(mine["n_params_non_embedding"].iloc[0]), float(last["n_tokens"].iloc[0]), last["loss"].tolist()
