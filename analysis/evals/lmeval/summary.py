"""The downstream table of a study: one line a checkpoint, with table 4's columns and the averages' missing parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .averages import TABLE4, Average, accuracy_average, headline, scrolls_official, scrolls_plain
from .sets import CSR, SCROLLS, SUPERGLUE, TASKS


def summary(results: Iterable[Mapping[str, Any]], all_steps: bool = False) -> list[dict[str, Any]]:
    """One record a checkpoint that has a result of these tasks (the last of each run unless `all_steps`), by run.

    results: as analysis.evals.table.stored_results reads them. Accuracies and SCROLLS in percent, perplexities a word;
    `missing` names the tasks that an average lacks although it has others.
    """
    checkpoints: dict[tuple[str, int], dict[str, Any]] = {}
    for result in results:
        if result["task"] in TASKS:
            found = checkpoints.setdefault((result["run_id"], result["step"]), {"n_tokens": result["n_tokens"]})
            found.setdefault("values", {})[result["task"]] = result["values"]
    last = {run_id: step for run_id, step in sorted(checkpoints)}
    return [
        {"run_id": run_id, "step": step, "n_tokens": found["n_tokens"], **_line(found["values"])}
        for (run_id, step), found in sorted(checkpoints.items())
        if all_steps or step == last[run_id]
    ]


def _line(values: dict[str, dict[str, float | None]]) -> dict[str, Any]:
    averages = {
        "csr_avg": (accuracy_average(TABLE4, values), TABLE4),
        "superglue_avg": (accuracy_average(SUPERGLUE, values), SUPERGLUE),
        "scrolls_plain": (scrolls_plain(values), SCROLLS),
        "scrolls_official": (scrolls_official(values), SCROLLS),
    }
    missing: dict[str, list[str]] = {
        name: list(average.missing) for name, (average, tasks) in averages.items() if _begun(average, tasks)
    }
    return {
        **{task: headline(task, values[task]) if task in values else None for task in CSR},
        "wikitext_ppl": values.get("wikitext", {}).get("word_perplexity"),
        "lambada_ppl": values.get("lambada", {}).get("perplexity"),
        **{name: average.value for name, (average, _) in averages.items()},
        "missing": missing,
    }


def _begun(average: Average, tasks: tuple[str, ...]) -> bool:
    return 0 < len(average.missing) < len(tasks)


def show_summary(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Heads and cells of the columns that any line has, and a note for each average that lacks tasks."""
    names = [name for name in (rows[0] if rows else {}) if name not in ("run_id", "step", "n_tokens", "missing")]
    used = [name for name in names if any(row[name] is not None for row in rows)]
    cells = [
        (row["run_id"], f"{row['step']:,}", *(_cell(row[name], name in row["missing"]) for name in used))
        for row in rows
    ]
    notes = sorted({f"* {name} without {', '.join(tasks)}" for row in rows for name, tasks in row["missing"].items()})
    return ("run", "step", *used), cells, notes


def _cell(value: float | None, partial: bool) -> str:
    if value is None:
        return "-"
    return (f"{value:.2f}" if value < 1e5 else f"{value:.2e}") + ("*" if partial else "")
