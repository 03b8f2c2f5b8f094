"""What the scores of the tasks say, as rows and lines: predictions, and what is withheld with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.task_fits import ScoreLaw, TaskFit, TaskFits
from analysis.pages.cells import number, shown
from analysis.report.tasks import Z95, in_percent
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
Rows = list[dict[str, str]]


def task_tables(fits: TaskFits) -> dict[str, Rows]:
    """`benchmarks`: of each run's last checkpoint; `scores`: at the compute of the comparison."""
    return {
        "benchmarks": _benchmarks(fits.tasks),
        "scores": [_prediction_row(task) for task in fits.tasks if task.shown_laws],
    }


def downstream_notes(fits: TaskFits) -> dict[str, list[str]]:
    """Lines of notes below each table, and of `reasons` why laws are doubted or withheld, and what is left out."""
    tasks = fits.tasks
    unknown = [f"Of unknown scale, so not fitted: {', '.join(fits.unknown)}."] if fits.unknown else []
    return {
        "benchmarks": [BENCHMARKS] if tasks else [],
        "scores": [*([ABOUT] if any(task.shown_laws for task in tasks) else []), *_not_predicted(tasks), *unknown],
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


def _not_believed(tasks: Sequence[TaskFit]) -> list[str]:
    return [
        f"{task.title}, {name_of(law.arch)}: {law.verdict.believe}: {'; '.join(law.verdict.reasons)}."
        for task in tasks
        for law in task.shown_laws
        if law.verdict and law.verdict.reasons
    ]


def _withheld(tasks: Sequence[TaskFit]) -> list[str]:
    """Laws that are not shown. Tasks whose every law lacks runs take one line together."""
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
    return lines + ([f"Too few runs with scores for a law: {', '.join(few)}."] if few else [])


def _left_out(tasks: Sequence[TaskFit]) -> list[str]:
    """Checkpoints without a place in a fit, the same counts of several tasks in one line."""
    titles: dict[str, list[str]] = {}
    for task in tasks:
        for why, n in task.left_out.items():
            titles.setdefault(f"{counted(n, 'checkpoint')} left out because {why}", []).append(task.title)
    return [f"{', '.join(names)}: {what}." for what, names in titles.items()]
