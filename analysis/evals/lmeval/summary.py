"""The downstream table of a study: a line for each checkpoint, with the columns of table 4 of "Scaling Laws for Linear
Complexity Language Models" in its order, then further columns, the last with the accuracy of classifiers, and the tasks
that averages lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..niah.settings import NiahSettings
from ..results import STDERR, Result
from .sets import CSR, ROUGE, SCROLLS, SUPERGLUE, TASKS

NIAH = "niah-easy"  # table 4's mode
CLASSIFY = "classify"
SHARES = ("acc", "acc_norm", "f1", "em")  # from 0 to 1 in lm-eval; SCROLLS' f1 and em are in percent
Score = tuple[str, str]  # a task and its metric


def main_scores(tasks: Iterable[str]) -> tuple[Score, ...]:
    return tuple((task, TASKS[task].metrics[0]) for task in tasks)


# Table 4: these seven are in its average; SIQA is named in its text and is in none of its tables.
TABLE4 = tuple(name for name in CSR if name != "siqa")
# Table 5 of "HGRN": SuperGLUE without ReCoRD, and MultiRC by whole questions (its cells are multiples of 1 / 953, which
# is how many there are).
HGRN_SUPERGLUE = tuple(
    (task, "em" if task == "multirc" else m) for task, m in main_scores(SUPERGLUE) if task != "record"
)
# The paper's: three ROUGE each of three summaries, two F1, two exact matches
SCROLLS_SCORES = tuple(
    (task, metric)
    for task in SCROLLS
    for metric in (ROUGE if TASKS[task].metrics == ROUGE else TASKS[task].metrics[:1])
)
# By column the scores that it is the mean of: table 4's, then others
PAPER: dict[str, tuple[Score, ...]] = {
    **{task: (score,) for task, score in zip(TABLE4, main_scores(TABLE4), strict=True)},
    "csr_avg": main_scores(TABLE4),
    "wikitext_ppl": main_scores(["wikitext"]),
    "lambada_ppl": main_scores(["lambada"]),
    "niah_easy": ((NIAH, "weighted_avg_acc"),),
    "scrolls_plain": SCROLLS_SCORES,
}
COLUMNS = PAPER | {
    "siqa": main_scores(["siqa"]),
    # tables 9 to 11: SCROLLS by task
    **{f"{task.removeprefix('scrolls-')}_{metric}": ((task, metric),) for task, metric in SCROLLS_SCORES},
    "superglue_avg": main_scores(SUPERGLUE),
    "superglue_hgrn": HGRN_SUPERGLUE,
    CLASSIFY: ((CLASSIFY, "acc"),),
}


def in_percent(score: Score, value: float) -> float:
    """Shares in percent, other values as they are."""
    task, metric = score
    is_share = metric in SHARES and (metric.startswith("acc") or not (task in TASKS and TASKS[task].scrolls))
    return 100 * value if is_share else value


def average(scores: Sequence[Score], values: Mapping[Score, float]) -> tuple[float | None, list[str]]:
    """The mean of the scores that there are, and the tasks that lack one of theirs, which it leaves out whole."""
    missing = list(dict.fromkeys(score[0] for score in scores if score not in values))
    known = [in_percent(score, values[score]) for score in scores if score[0] not in missing]
    return (sum(known) / len(known) if known else None), missing


@dataclass(frozen=True)
class SummaryLine:
    """The line of a checkpoint. columns: table 4's, then others; accuracies, niah_easy and SCROLLS in percent,
    perplexities a word; missing: by average, the tasks that it lacks although it has others; settings: by task, those
    that are not the papers'; errors: standard errors by column, in its unit, as far as lm-eval gives them."""

    run_id: str
    step: int
    n_tokens: int
    columns: Mapping[str, float | None]
    missing: Mapping[str, list[str]]
    settings: Mapping[str, str]
    errors: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the columns at the top level."""
        content = asdict(self)
        return {name: content.pop(name) for name in ("run_id", "step", "n_tokens")} | content.pop("columns") | content

    def cell(self, name: str) -> str:
        """Of a column; a star marks an average that lacks tasks."""
        value = self.columns[name]
        if value is None:
            return "-"
        return (f"{value:.2f}" if value < 1e5 else f"{value:.2e}") + "*" * (name in self.missing)


def summary(results: Iterable[Result], all_steps: bool = False) -> list[SummaryLine]:
    """A line for each checkpoint that has a result of these tasks (the last of each run unless `all_steps`), by run.
    results: current ones."""
    checkpoints: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        if result.task in (NIAH, CLASSIFY) or result.task in TASKS:
            checkpoints.setdefault((result.run_id, result.step), []).append(result)
    last = {run_id: step for run_id, step in sorted(checkpoints)}
    return [_line(checkpoints[key]) for key in sorted(checkpoints) if all_steps or key[1] == last[key[0]]]


def _line(results: Sequence[Result]) -> SummaryLine:
    """The line of a checkpoint's results."""
    values = {(result.task, name): n for result in results for name, n in result.numbers.items() if n is not None}
    columns, missing, errors = dict[str, float | None](), dict[str, list[str]](), dict[str, float]()
    tasks = {result.task for result in results}
    for name, scores in COLUMNS.items():
        columns[name], lacking = average(scores, values)
        if name.startswith("superglue") and tasks & set(SUPERGLUE) <= set(CSR):
            columns[name] = None  # BoolQ, which is of both, makes no SuperGLUE
        if lacking and columns[name] is not None:
            missing[name] = lacking
        task, metric = scores[0]
        if len(scores) == 1 and (error := values.get((task, metric + STDERR))) is not None:
            errors[name] = in_percent((task, metric), error)
    first, settings = results[0], {result.task: _settings_of(result) for result in results}
    changed = {task: words for task, words in settings.items() if words}
    return SummaryLine(first.run_id, first.step, first.n_tokens, columns, missing, changed, errors)


def _settings_of(result: Result) -> str:
    """The settings that decide on what the task was evaluated, where they are not the papers'."""
    usual = {NIAH: NiahSettings().model_dump(), CLASSIFY: {"split": "test"}}
    paper = usual.get(result.task, {"limit": None})
    changed = {name: result.settings.get(name, value) for name, value in paper.items() if name != "haystack"}
    return ", ".join(f"{name} {value}" for name, value in changed.items() if value != paper[name])


def show_summary(lines: Sequence[SummaryLine]) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Heads and cells of the columns that have a value, and notes: standard errors, which tasks averages lack, which
    were evaluated otherwise than the papers', and which of table 4's columns have no value."""
    used = [name for name in COLUMNS if any(line.columns[name] is not None for line in lines)]
    cells = [(line.run_id, f"{line.step:,}", *map(line.cell, used)) for line in lines]
    notes = []
    errors = {name: [line.errors[name] for line in lines if name in line.errors] for name in used}
    if any(errors.values()):
        ends = {name: dict.fromkeys(f"{end:.2f}" for end in (min(of), max(of))) for name, of in errors.items() if of}
        notes.append("standard errors: " + ", ".join(f"{name} {' to '.join(of)}" for name, of in ends.items()))
    notes += sorted({f"* {name} without {', '.join(tasks)}" for line in lines for name, tasks in line.missing.items()})
    notes += sorted({f"{task} with {words}" for line in lines for task, words in line.settings.items()})
    absent = [name for name in PAPER if name not in used]
    if absent and {*used} - {CLASSIFY}:
        tasks = list(dict.fromkeys(task for name in absent for task, _ in PAPER[name]))
        words = ["scrolls"] * bool(set(SCROLLS) & set(tasks)) + ["csr"] * (set(TABLE4) <= set(tasks))
        words += [task for task in tasks if task not in SCROLLS and ("csr" not in words or task not in TABLE4)]
        notes.append(f"of table 4 not here: {', '.join(absent)} (scaling eval study STUDY --tasks {','.join(words)})")
    return ("run", "step", *used), cells, notes
