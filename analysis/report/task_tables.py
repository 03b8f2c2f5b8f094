"""What the scores of the tasks say, as rows and lines: predictions, rankings, and what is withheld with the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.task_fits import Ranking, ScoreLaw, TaskFit, TaskFits
from analysis.pages.cells import number, shown
from analysis.report.tasks import Z95, in_percent
from analysis.scales import PERPLEXITY
from arch.amounts import count, counted

BENCHMARKS = (
    "Of each run's last checkpoint that a fit reads. Intervals are 95%, over the questions of a task (1.96 standard "
    "errors); runs of other seeds differ by more. `scaling eval table` has the averages of the papers."
)
ABOUT = (
    "A law links the score of a task to the loss that the other laws are fitted to: for accuracies the logistic from "
    "chance to a full score, for perplexities a power law between their logarithm and the loss. Other scores have no "
    "law. A band is the interval of the expected score of a run, over runs."
)
RANKED = (
    "Signal to noise: the largest difference between two architectures of a size, over the spread of a run's last five "
    "checkpoints about their line. Where it is below what is needed, chance alone makes differences as large."
)
TASK_TABLES = ("benchmarks", "scores", "rankings")
Rows = list[dict[str, str]]


def task_tables(fits: TaskFits) -> dict[str, Rows]:
    """Rows by TASK_TABLES: of each run's last checkpoint, at the compute of the comparison, and of rankings."""
    return {
        "benchmarks": _benchmarks(fits.tasks),
        "scores": [_prediction_row(task) for task in fits.tasks if task.shown_laws],
        "rankings": [_ranking_row(task, at) for task in fits.tasks if (at := _largest(task)) and not at.reason],
    }


def downstream_notes(fits: TaskFits) -> dict[str, list[str]]:
    """Lines of notes below each table, and of `reasons` why laws are doubted or withheld, and what is left out."""
    tasks = fits.tasks
    unknown = [f"Of unknown scale, so not fitted: {', '.join(fits.unknown)}."] if fits.unknown else []
    return {
        "benchmarks": [BENCHMARKS] if tasks else [],
        "scores": [*([ABOUT] if any(task.shown_laws for task in tasks) else []), *_not_predicted(tasks), *unknown],
        "rankings": [RANKED] if task_tables(fits)["rankings"] else [],
        "reasons": [*_not_believed(tasks), *_withheld(tasks), *_left_out(tasks)],
    }


def _benchmarks(tasks: Sequence[TaskFit]) -> Rows:
    """A row a run, a column a task: the scores of its last checkpoint, as table 4 of the scaling-law paper has them."""
    rows: dict[str, dict[str, str]] = {}
    for task in tasks:
        scale, head = (100.0, f"{task.title}, %") if in_percent(task) else (1.0, task.title)
        for law in task.laws:
            for score in law.last_scores:
                tokens = number(count(score.n_tokens, 4), float(score.n_tokens))
                new = {"architecture": name_of(law.arch), "run": score.run_id, "tokens": tokens}
                row, value = rows.setdefault(score.run_id, new), scale * score.value
                half = None if score.error is None else Z95 * scale * score.error
                ends = None if half is None else (value - half, value + half)
                row[head] = shown(value, ".4g" if value >= 1 else ".3g", ends)
    return list(rows.values())


def _prediction_row(task: TaskFit) -> dict[str, str]:
    """Each architecture's score at the compute that the study compares them at."""
    at = next((law.predictions[0] for law in task.shown_laws if _predicted(law)), None)
    row = {"task": task.title, "C (FLOP)": number(power_of_ten(at.flops), at.flops) if at else ""}
    for law in task.shown_laws:
        score = law.predictions[0].score if _predicted(law) else None
        row[name_of(law.arch)] = shown(score.value, ".3g", score.ends) if score else ""
    return row


def _predicted(law: ScoreLaw) -> bool:
    return bool(law.predictions) and law.predictions[0].score.value is not None


def _not_predicted(tasks: Sequence[TaskFit]) -> list[str]:
    """Why the table lacks scores, a line a reason."""
    archs: dict[str, dict[str, None]] = {}
    for task in tasks:
        for law in task.shown_laws:
            if law.predictions and not _predicted(law):
                archs.setdefault(law.predictions[0].score.reason, {})[name_of(law.arch)] = None
    return [f"{', '.join(names)}: no score is predicted at this compute ({why})." for why, names in archs.items()]


def _largest(task: TaskFit) -> Ranking | None:
    """The largest size with several architectures."""
    ranked = [ranking for ranking in task.rankings if len(ranking.means) > 1]
    return ranked[-1] if ranked else None


def _ranking_row(task: TaskFit, large: Ranking) -> dict[str, str]:
    order = sorted(large.means.items(), key=lambda pair: pair[1], reverse=task.scale.higher_is_better)
    level = math.exp if task.scale.kind == PERPLEXITY else float  # of perplexities the geometric mean
    smaller = [ranking for ranking in task.rankings if ranking.same_pairs is not None]
    return {
        "task": task.title,
        "size": large.size,
        "best first": ", ".join(f"{name_of(arch)} {level(value):.3g}" for arch, value in order),
        "signal to noise": shown(large.ratio, ".3g"),
        "needed": shown(large.needed, ".3g"),
        "pairs ranked alike at smaller sizes": ", ".join(
            f"{small.size} {small.same_pairs:.0%} of {small.n_pairs}" for small in smaller
        ),
    }


def _not_believed(tasks: Sequence[TaskFit]) -> list[str]:
    return [
        f"{task.title}, {name_of(law.arch)}: {law.verdict.believe}: {'; '.join(law.verdict.reasons)}."
        for task in tasks
        for law in task.shown_laws
        if law.verdict and not math.isinf(law.verdict.reach)
    ]


def _withheld(tasks: Sequence[TaskFit]) -> list[str]:
    """Laws and rankings that are not shown. Tasks whose every law lacks runs take one line together."""
    lines, few = [], []
    for task in tasks:
        reasons: dict[str, list[str]] = {}
        for law in task.laws:
            if law.withheld:
                reasons.setdefault(law.withheld, []).append(name_of(law.arch))
        if not task.shown_laws and all("run(s) have scores" in why for why in reasons):
            few.append(task.title)
        else:
            lines += [f"{task.title}, {', '.join(archs)}: withheld: {why}." for why, archs in reasons.items()]
        if (large := _largest(task)) and large.reason:
            lines.append(f"{task.title}, ranking at {large.size}: withheld: {large.reason}.")
    return lines + ([f"Too few runs with scores for a law: {', '.join(few)}."] if few else [])


def _left_out(tasks: Sequence[TaskFit]) -> list[str]:
    """Checkpoints without a place in a fit, the same counts of several tasks in one line."""
    titles: dict[str, list[str]] = {}
    for task in tasks:
        for why, n in task.left_out.items():
            titles.setdefault(f"{counted(n, 'checkpoint')} left out because {why}", []).append(task.title)
    return [f"{', '.join(names)}: {what}." for what, names in titles.items()]
