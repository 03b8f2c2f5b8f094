"""Test accuracies of classifiers, or perplexities of a text, by what was trained, over seeds, beside published ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from analysis.figures.palette import name_of
from analysis.report.section import Rows, Section, Table

if TYPE_CHECKING:
    import pandas as pd

CLASSIFY = "classify"  # the task of accuracies
NOTE = (
    "Of each run's last checkpoint on the whole split. The standard error is over seeds: of the mean, where there "
    "are several; a single run's, over the split's examples, stands in the section on benchmarks."
)


def accuracy_rows(
    runs: pd.DataFrame,
    scores: pd.DataFrame | None,
    published: Mapping[str, float],
    split: str,
    task: str = CLASSIFY,
) -> list[dict[str, str]]:
    """A row for the runs that differ by their seed alone: mean accuracy and its standard error, in percent, or those of
    the perplexity a token by a task `perplexity-NAME`, with the number that `published` has by the architecture's name;
    then a row for each of its other names. runs, scores: as RunTable.runs and results/evals.parquet have them; split:
    that accuracies are of. No rows where nothing was evaluated."""
    metric, unit, factor = ("acc", ", %", 100) if task == CLASSIFY else ("perplexity", "", 1)
    column = f"{split} accuracy{unit}" if task == CLASSIFY else task
    if scores is None or (scores := scores[(scores["task"] == task) & (scores["metric"] == metric)]).empty:
        return []

    def row(model: str, kind: str, seeds: str, value: str, error: float | None, known: float | None) -> dict[str, str]:
        return {
            "model": model,
            "runs": kind,
            "seeds": seeds,
            column: value,
            "standard error": "-" if error is None else f"{error:.2f}",
            f"published{unit}": "-" if known is None else f"{known:.2f}",
        }

    ordered = scores.sort_values("step")
    last = dict(zip(ordered["run_id"], (factor * ordered["value"].astype(float)).tolist(), strict=True))
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
        rows.append(row(name_of(arch_of[kind]), kind, str(n), f"{mean:.2f}", error, known))
    others = published.keys() - set(arch_of.values())
    return rows + [row(name, "-", "-", "-", None, value) for name, value in published.items() if name in others]


def accuracy_section(rows: Rows) -> Section:
    if rows and "published" in rows[0]:
        return Section("Perplexity beside published numbers", tables=[Table("perplexity", rows)])
    return Section("Test accuracy", tables=[Table("accuracy", rows)], notes=[NOTE] if rows else [])
