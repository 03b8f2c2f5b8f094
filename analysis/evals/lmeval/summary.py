"""The downstream table of a study: a line for each checkpoint, with the columns of table 4 of "Scaling Laws for Linear
Complexity Language Models" in its order, then further columns, and the tasks that averages lack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from arch.amounts import counted

from ..niah.settings import NiahSettings
from ..results import Result
from .sets import CSR, ROUGE, SCROLLS, SUPERGLUE, TASKS

Values = Mapping[str, Mapping[str, float | None]]  # of one checkpoint: task -> metric -> value

# Table 4 of "Scaling Laws for Linear Complexity Language Models": accuracies in percent, these seven in its average;
# SIQA is named in its text and is in none of its tables.
TABLE4 = tuple(name for name in CSR if name != "siqa")

# Table 5 of "HGRN": SuperGLUE without ReCoRD, and MultiRC by whole questions (its cells are multiples of 1 / 953, which
# is how many there are).
HGRN_SUPERGLUE = {task: "em" if task == "multirc" else TASKS[task].metrics[0] for task in SUPERGLUE if task != "record"}
SHARES = ("acc", "acc_norm", "f1", "em")  # from 0 to 1 in lm-eval; SCROLLS' f1 and em are in percent


class Average(NamedTuple):
    """value: None where there is nothing to average; missing: tasks without a score."""

    value: float | None
    missing: tuple[str, ...]


def in_percent(task: str, metric: str, value: float | None) -> float | None:
    """Shares in percent, other values as they are."""
    is_share = metric in SHARES and (metric.startswith("acc") or not (task in TASKS and TASKS[task].scrolls))
    return 100 * value if value is not None and is_share else value


def accuracy_average(metrics: Mapping[str, str], values: Values) -> Average:
    """Mean in percent over tasks, each by its metric."""
    by_task = {task: in_percent(task, metric, values.get(task, {}).get(metric)) for task, metric in metrics.items()}
    scores = [score for score in by_task.values() if score is not None]
    return Average(_mean(scores), tuple(task for task, score in by_task.items() if score is None))


def main_metrics(tasks: Iterable[str]) -> dict[str, str]:
    return {task: TASKS[task].metrics[0] for task in tasks}


def scrolls_plain(values: Values) -> Average:
    """The paper's average: the plain mean of the 13 sub-scores (three ROUGE each of three summaries, two F1, two exact
    matches). It leaves out the sub-scores of failed tasks, as the paper's does, and names the tasks."""
    whole, missing = _sub_scores(values)
    return Average(_mean([score for parts in whole for score in parts]), missing)


def scrolls_official(values: Values) -> Average:
    """The average of SCROLLS itself (Shaham et al. 2022): the mean over its seven tasks, where a summary counts as the
    geometric mean of its three ROUGE scores. None unless all seven tasks have scores."""
    whole, missing = _sub_scores(values)
    scores = [math.prod(parts) ** (1 / len(parts)) for parts in whole]  # geometric means
    return Average(None if missing else _mean(scores), missing)


def _sub_scores(values: Values) -> tuple[list[list[float]], tuple[str, ...]]:
    """The sub-scores of each SCROLLS task that has all of its own, and the names of those that do not."""
    whole, missing = [], []
    for task in SCROLLS:
        metrics = TASKS[task].metrics
        parts = [values.get(task, {}).get(metric) for metric in (ROUGE if metrics == ROUGE else metrics[:1])]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            missing.append(task)
        else:
            whole.append(known)
    return whole, tuple(missing)


def _mean(scores: Sequence[float]) -> float | None:
    return sum(scores) / len(scores) if scores else None


NIAH = "niah-easy"  # table 4's mode; its weighted average accuracy
# Table 4's columns, and by which words `scaling eval study --tasks` computes what they lack
PAPER = {task: task for task in TABLE4} | {
    "csr_avg": "",  # of the ones before
    "wikitext_ppl": "wikitext",
    "lambada_ppl": "lambada",
    "niah_easy": NIAH,
    "scrolls_plain": "scrolls",
}
GRID = ("first_length", "last_length", "n_lengths", "n_depths", "alpha_c", "alpha_d")
# By column its task and metric; averages are not among them.
COLUMNS = {task: (task, metric) for task, metric in main_metrics((*TABLE4, "siqa")).items()} | {
    "wikitext_ppl": ("wikitext", "word_perplexity"),
    "lambada_ppl": ("lambada", "perplexity"),
    "niah_easy": (NIAH, "weighted_avg_acc"),
}


@dataclass(frozen=True)
class SummaryLine:
    """The line of a checkpoint. columns: table 4's, then others; accuracies, niah_easy and SCROLLS in percent,
    perplexities a word; missing: by average, the tasks that it lacks although it has others; unlike: by task, on what
    it was evaluated where that is not what the papers evaluated it on; errors: standard errors by column, in its unit,
    as far as lm-eval gives them; rows: the rows evaluated by task."""

    run_id: str
    step: int
    n_tokens: int
    columns: Mapping[str, float | None]
    missing: Mapping[str, list[str]]
    unlike: Mapping[str, str]
    errors: Mapping[str, float]
    rows: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the columns at the top level."""
        content = asdict(self)
        return {name: content.pop(name) for name in ("run_id", "step", "n_tokens")} | content.pop("columns") | content

    def cell(self, name: str) -> str:
        """Of a column; a star marks an average that lacks tasks."""
        value = self.columns[name]
        return "-" if value is None else _rounded(value) + "*" * (name in self.missing)


def summary(results: Iterable[Result], all_steps: bool = False) -> list[SummaryLine]:
    """A line for each checkpoint that has a result of these tasks (the last of each run unless `all_steps`), by run.
    results: current ones; those of another version of a task do not count."""
    checkpoints: dict[tuple[str, int], dict[str, Result]] = {}
    for result in results:
        if result.task == NIAH or (result.task in TASKS and result.version == TASKS[result.task].version):
            checkpoints.setdefault((result.run_id, result.step), {})[result.task] = result
    last = {run_id: step for run_id, step in sorted(checkpoints)}
    return [
        _line(of_tasks) for (run_id, step), of_tasks in sorted(checkpoints.items()) if all_steps or step == last[run_id]
    ]


def _line(results: Mapping[str, Result]) -> SummaryLine:
    """The line of a checkpoint's results by task."""
    values = {task: result.numbers for task, result in results.items()}
    glue = {} if set(values) & set(SUPERGLUE) <= set(CSR) else values  # BoolQ, which is of both, makes no SuperGLUE
    averages = {
        "csr_avg": (accuracy_average(main_metrics(TABLE4), values), TABLE4),
        "scrolls_plain": (scrolls_plain(values), SCROLLS),
        "superglue_avg": (accuracy_average(main_metrics(SUPERGLUE), glue), SUPERGLUE),
        "superglue_hgrn": (accuracy_average(HGRN_SUPERGLUE, glue), HGRN_SUPERGLUE),
        "scrolls_official": (scrolls_official(values), SCROLLS),
    }
    columns, errors = dict[str, float | None](), dict[str, float]()
    for name, (task, metric) in COLUMNS.items():
        columns[name] = in_percent(task, metric, values.get(task, {}).get(metric))
        error = in_percent(task, metric, values.get(task, {}).get(f"{metric}_stderr"))
        errors |= {} if error is None else {name: error}
    columns |= {name: average.value for name, (average, _) in averages.items()}
    first = next(iter(results.values()))
    return SummaryLine(
        run_id=first.run_id,
        step=first.step,
        n_tokens=first.n_tokens,
        columns={name: columns[name] for name in dict.fromkeys((*PAPER, *columns))},
        missing={
            name: list(average.missing)
            for name, (average, tasks) in averages.items()
            if 0 < len(average.missing) < len(tasks)
        },
        unlike={task: words for task, result in results.items() if (words := _unlike(task, result.settings))},
        errors=errors,
        rows={task: int(n) for task, numbers in values.items() if (n := numbers.get("n_documents"))},
    )


def _unlike(task: str, settings: Mapping[str, Any]) -> str:
    """In words what a task was evaluated on, where that is not what the papers evaluated it on."""
    if task != NIAH:
        return f"its first {counted(settings['limit'], 'document')}" if settings.get("limit") else ""
    paper = NiahSettings().model_dump()
    grid = {**paper, **settings}
    if all(grid[name] == paper[name] for name in GRID):
        return ""
    lengths = f"{grid['n_lengths']} lengths from {grid['first_length']:,} to {grid['last_length']:,} tokens"
    return f"another grid than the paper's: {lengths} x {grid['n_depths']} depths"


def show_summary(lines: Sequence[SummaryLine]) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Heads and cells of the columns that have a value, and notes: standard errors, which tasks averages lack, which
    were evaluated on less than all of their data, and which of table 4's columns have no value."""
    names = list(lines[0].columns) if lines else []
    used = [name for name in names if any(line.columns[name] is not None for line in lines)]
    cells = [(line.run_id, f"{line.step:,}", *map(line.cell, used)) for line in lines]
    notes = _range_notes("standard errors", [line.errors for line in lines], 2)
    notes += _range_notes("rows evaluated", [line.rows for line in lines], 0)
    notes += sorted({f"* {name} without {', '.join(tasks)}" for line in lines for name, tasks in line.missing.items()})
    notes += sorted({f"{task} on {words}" for line in lines for task, words in line.unlike.items()})
    absent = [name for name in names if name in PAPER and name not in used]
    if absent:
        words = ["csr"] if set(TABLE4) <= set(absent) else [name for name in absent if name in TABLE4]
        words += [PAPER[name] for name in absent if name not in TABLE4 and PAPER[name]]
        notes.append(f"of table 4 not here: {', '.join(absent)} (scaling eval study STUDY --tasks {','.join(words)})")
    return ("run", "step", *used), cells, notes


def _range_notes(what: str, rows: Sequence[Mapping[str, float]], digits: int) -> list[str]:
    """At most one line: `what`, then each name's number over the rows, from the least to the most where they differ."""
    parts = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        ends = [f"{end:,.{digits}f}" for end in (min(values), max(values))]
        parts.append(f"{name} {' to '.join(dict.fromkeys(ends))}")
    return [f"{what}: {', '.join(parts)}"] if parts else []


def _rounded(value: float) -> str:
    return f"{value:.2f}" if value < 1e5 else f"{value:.2e}"
