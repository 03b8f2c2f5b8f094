"""Perplexity by context length, of every run's last evaluated checkpoint: what the task `extrapolate` found."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.last_steps import last_steps
from analysis.run_table import RunTable

TASK, METRIC = "extrapolate", "perplexity@"


def by_length(tables: RunTable, evals: pd.DataFrame) -> list[dict[str, Any]]:
    """A row a run, group by group, small sizes first: {"run_id", "arch", "size", "n_params", "trained_at" [tokens],
    "perplexity": {context length as text: value}}; evals as in `analysis.fits.tasks.fit.fit_tasks`."""
    found = last_steps(evals[(evals["task"] == TASK) & evals["metric"].str.startswith(METRIC)])
    runs: dict[str, Any] = {str(row["run_id"]): row for row in tables.runs.to_dict("records")}
    rows = []
    for run_id, mine in found.groupby("run_id", sort=False):
        run = runs.get(str(run_id))
        if run is None or run.get("left_out"):
            continue
        told = {
            int(metric.removeprefix(METRIC)): value for metric, value in zip(mine["metric"], mine["value"], strict=True)
        }
        rows.append(
            {
                "run_id": str(run_id),
                "arch": str(run.get("group") or run["arch"]),
                "size": str(run["size"]),
                "n_params": int(run["n_params_non_embedding"]),
                "trained_at": int(run["context_length"]),
                "perplexity": {str(n): float(told[n]) for n in sorted(told) if pd.notna(told[n])},
            }
        )
    groups = [str(run.get("group") or run["arch"]) for run in runs.values()]
    return sorted(rows, key=lambda row: (groups.index(row["arch"]), row["n_params"], row["run_id"]))
