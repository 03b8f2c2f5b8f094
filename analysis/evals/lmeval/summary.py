"""The downstream table of a study: one line a checkpoint, with the columns of table 4 of "Scaling Laws for Linear
Complexity Language Models" in its order, then what it does not have, and the averages' missing parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from arch.amounts import counted

from ..niah.settings import NiahSettings
from .averages import HGRN_SUPERGLUE, TABLE4, Average, accuracy_average, headline, scrolls_official, scrolls_plain
from .sets import CSR, SCROLLS, SUPERGLUE, TASKS

NIAH = "niah-easy"  # table 4's mode; its weighted average accuracy
# Table 4's columns, and by which words `scaling eval --tasks` computes what they lack
PAPER = {task: task for task in TABLE4} | {
    "csr_avg": "",  # of the ones before
    "wikitext_ppl": "wikitext",
    "lambada_ppl": "lambada",
    "niah_easy": NIAH,
    "scrolls_plain": "scrolls",
}
GRID = ("first_length", "last_length", "n_lengths", "n_depths", "alpha_c", "alpha_d")
NO_COLUMNS = ("run_id", "step", "n_tokens", "missing", "unlike", "errors", "rows")
MOST_COLUMNS = 110  # characters of a line that has its standard errors in the cells


def summary(results: Iterable[Mapping[str, Any]], all_steps: bool = False) -> list[dict[str, Any]]:
    """One record a checkpoint that has a result of these tasks (the last of each run unless `all_steps`), by run.

    results: those of analysis.evals.standing; those of another version of a task do not count.
    Accuracies, niah_easy and SCROLLS in percent, perplexities a word; `missing` names the tasks that an average lacks
    although it has others; `unlike` tells of tasks that were asked on less than all of their data; `errors` has the
    standard errors of columns, in their units, as far as lm-eval gives them; `rows` the rows evaluated by task.
    """
    checkpoints: dict[tuple[str, int], dict[str, Any]] = {}
    for result in results:
        task = result["task"]
        if task == NIAH or (task in TASKS and result["version"] == TASKS[task].version):
            new = {"n_tokens": result["n_tokens"], "values": {}, "unlike": {}}
            found = checkpoints.setdefault((result["run_id"], result["step"]), new)
            found["values"][task] = result["values"]
            if unlike := _unlike(task, result["settings"]):
                found["unlike"][task] = unlike
    last = {run_id: step for run_id, step in sorted(checkpoints)}
    return [
        {
            "run_id": run_id,
            "step": step,
            "n_tokens": found["n_tokens"],
            **_line(found["values"]),
            "unlike": found["unlike"],
            "errors": _errors(found["values"]),
            "rows": {task: n for task, values in found["values"].items() if (n := values.get("n_documents"))},
        }
        for (run_id, step), found in sorted(checkpoints.items())
        if all_steps or step == last[run_id]
    ]


def _line(values: dict[str, dict[str, float | None]]) -> dict[str, Any]:
    glue = {} if set(values) & set(SUPERGLUE) <= set(CSR) else values  # BoolQ, which is of both, makes no SuperGLUE
    averages = {
        "csr_avg": (accuracy_average(TABLE4, values), TABLE4),
        "scrolls_plain": (scrolls_plain(values), SCROLLS),
        "superglue_avg": (accuracy_average(SUPERGLUE, glue), SUPERGLUE),
        "superglue_hgrn": (accuracy_average(HGRN_SUPERGLUE, glue), tuple(HGRN_SUPERGLUE)),
        "scrolls_official": (scrolls_official(values), SCROLLS),
    }
    missing: dict[str, list[str]] = {
        name: list(average.missing) for name, (average, tasks) in averages.items() if _begun(average, tasks)
    }
    found = {
        **{task: headline(task, values[task]) if task in values else None for task in (*TABLE4, "siqa")},
        "wikitext_ppl": values.get("wikitext", {}).get("word_perplexity"),
        "lambada_ppl": values.get("lambada", {}).get("perplexity"),
        "niah_easy": values.get(NIAH, {}).get("weighted_avg_acc"),
        **{name: average.value for name, (average, _) in averages.items()},
    }
    ours = [name for name in found if name not in PAPER]
    return {name: found[name] for name in (*PAPER, *ours)} | {"missing": missing}


def _errors(values: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    """The standard error of each column of one task that has one; averages have none."""
    found = {
        task: headline(task, {metric: values.get(task, {}).get(f"{metric}_stderr")}, metric)
        for task in (*TABLE4, "siqa")
        for metric in TASKS[task].metrics[:1]
    }
    found["wikitext_ppl"] = values.get("wikitext", {}).get("word_perplexity_stderr")
    found["lambada_ppl"] = values.get("lambada", {}).get("perplexity_stderr")
    return {name: error for name, error in found.items() if error is not None}


def _begun(average: Average, tasks: tuple[str, ...]) -> bool:
    return 0 < len(average.missing) < len(tasks)


def _unlike(task: str, settings: Mapping[str, Any]) -> str | None:
    """What a task was asked on, where that is not what the papers asked it on."""
    if task != NIAH:
        return f"its first {counted(settings['limit'], 'document')}" if settings.get("limit") else None
    paper = NiahSettings().model_dump()
    grid = {**paper, **settings}
    if all(grid[name] == paper[name] for name in GRID):
        return None
    lengths = f"{grid['n_lengths']} lengths from {grid['first_length']:,} to {grid['last_length']:,} tokens"
    return f"another grid than the paper's: {lengths} x {grid['n_depths']} depths"


def show_summary(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Heads and cells of the columns that any line has, and notes: what averages lack, tasks asked on less than all,
    and which of table 4's columns no line has."""
    names = [name for name in (rows[0] if rows else {}) if name not in NO_COLUMNS]
    used = [name for name in names if any(row[name] is not None for row in rows)]
    heads = ("run", "step", *used)
    cells, notes = _cells(rows, used, True), list[str]()
    if rows and sum(max(map(len, column)) + 2 for column in zip(heads, *cells, strict=True)) - 2 > MOST_COLUMNS:
        cells, notes = _cells(rows, used, False), _told("standard errors", [row["errors"] for row in rows], 2)
    notes += _told("rows evaluated", [row["rows"] for row in rows], 0)
    notes += sorted({f"* {name} without {', '.join(tasks)}" for row in rows for name, tasks in row["missing"].items()})
    notes += sorted({f"{task} on {words}" for row in rows for task, words in row["unlike"].items()})
    absent = [name for name in names if name in PAPER and name not in used]
    if absent:
        words = ["csr"] if set(TABLE4) <= set(absent) else [name for name in absent if name in TABLE4]
        words += [PAPER[name] for name in absent if name not in TABLE4 and PAPER[name]]
        notes.append(f"of table 4 not here: {', '.join(absent)} (scaling eval study STUDY --tasks {','.join(words)})")
    return heads, cells, notes


def _cells(rows: list[dict[str, Any]], used: list[str], errors: bool) -> list[tuple[str, ...]]:
    return [
        (
            row["run_id"],
            f"{row['step']:,}",
            *(_cell(row[name], name in row["missing"], row["errors"].get(name) if errors else None) for name in used),
        )
        for row in rows
    ]


def _told(what: str, found: list[dict[str, float]], digits: int) -> list[str]:
    """Each name's number over the lines, from the least to the most where they differ, in a line."""
    parts = []
    for name in dict.fromkeys(name for one in found for name in one):
        values = [one[name] for one in found if name in one]
        ends = [f"{end:,.{digits}f}" for end in (min(values), max(values))]
        parts.append(f"{name} {' to '.join(dict.fromkeys(ends))}")
    told = f"{what}: {', '.join(parts)}"
    return [told] if parts else []


def _cell(value: float | None, partial: bool, error: float | None) -> str:
    if value is None:
        return "-"
    told = (f"{value:.2f}" if value < 1e5 else f"{value:.2e}") + ("*" if partial else "")
    return told if error is None else f"{told} ± " + (f"{error:.2f}" if error < 1e5 else f"{error:.2e}")
