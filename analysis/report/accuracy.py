"""Test accuracies of classifiers by what was trained, over seeds, beside published ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from analysis.figures.palette import name_of
from analysis.report.section import Rows, Section, Table

if TYPE_CHECKING:
    import pandas as pd

NOTE = (
    "Of each run's last checkpoint on the whole split. The standard error is over seeds: of the mean, where there "
    "are several; a single run's, over the split's examples, stands in the section on benchmarks."
)


def accuracy_rows(
    runs: pd.DataFrame, scores: pd.DataFrame | None, published: Mapping[str, float], split: str
) -> list[dict[str, str]]:
    """A row for the runs that differ by their seed alone: mean accuracy and its standard error, in percent, with the
    number that `published` has by the architecture's name; then a row for each of its other names. runs, scores: as
    RunTable.runs and results/evals.parquet have them; split: that the scores are of. No rows where no
    classifier was evaluated."""
    if scores is None or (scores := scores[(scores["task"] == "classify") & (scores["metric"] == "acc")]).empty:
        return []
    ordered = scores.sort_values("step")
    last = dict(zip(ordered["run_id"], (100 * ordered["value"].astype(float)).tolist(), strict=True))
    values, arch_of = dict[str, list[float]](), dict[str, str]()
    for run in runs.itertuples():
        if run.run_id in last:
            head, seed = f"{run.arch}-{run.size}-c{run.context_length}", f"-s{run.seed}"
            kind = head + str(run.run_id).removeprefix(head).removeprefix(seed)
            values.setdefault(kind, []).append(last[str(run.run_id)])
            arch_of[kind] = str(run.arch)
    rows = []
    for kind, of_seeds in values.items():
        mean, n = sum(of_seeds) / len(of_seeds), len(of_seeds)
        error = math.sqrt(sum((value - mean) ** 2 for value in of_seeds) / (n - 1) / n) if n > 1 else None
        known = published.get(arch_of[kind])
        rows.append(_row(name_of(arch_of[kind]), kind, str(n), f"{mean:.2f}", error, known, split))
    others = published.keys() - set(arch_of.values())
    return rows + [_row(name, "-", "-", "-", None, value, split) for name, value in published.items() if name in others]


def _row(
    model: str, runs: str, seeds: str, accuracy: str, error: float | None, published: float | None, split: str
) -> dict[str, str]:
    return {
        "model": model,
        "runs": runs,
        "seeds": seeds,
        f"{split} accuracy, %": accuracy,
        "standard error": "-" if error is None else f"{error:.2f}",
        "published, %": "-" if published is None else f"{published:.2f}",
    }


def accuracy_section(rows: Rows) -> Section:
    return Section("Test accuracy", tables=[Table("accuracy", rows)], notes=[NOTE] if rows else [])
