"""Of which scale the scores are that stand for the tasks: what fits of scores against loss need to know."""

from __future__ import annotations

from analysis.scales import ACCURACY, PERPLEXITY, TREND, Scale

from .lmeval.sets import CHOICES, TASKS
from .registry import PERPLEXITY as TEXTS
from .registry import entry_of

NIAH_METRIC = "weighted_avg_acc"


def scales_of(task: str) -> dict[str, Scale]:
    """{metric: its scale} of the metrics by which a task counts; none for the held-out loss, which is what scores are
    fitted against, and for tasks from outside, of whose scores nothing is known."""
    if task in TASKS:
        return _of_lm_eval(task)
    if entry_of(task) is None or task == "validation":
        return {}
    if task == TEXTS or task.startswith(f"{TEXTS}-"):
        return {"word_perplexity": Scale(PERPLEXITY, higher_is_better=False)}
    if task == "extrapolate":  # beyond the training length the loss decides nothing
        return {"perplexity_avg": Scale(TREND, higher_is_better=False)}
    return {NIAH_METRIC: Scale(TREND, full=100.0)}


def _of_lm_eval(task: str) -> dict[str, Scale]:
    one = TASKS[task]
    if one.scrolls:
        return {one.metrics[0]: Scale(TREND, full=100.0)}
    accuracy = Scale(ACCURACY, chance=1 / CHOICES[task] if task in CHOICES else 0.0)
    return {
        metric: Scale(PERPLEXITY, higher_is_better=False)
        if metric.endswith("perplexity")
        else accuracy
        if metric.startswith("acc")
        else Scale(TREND)
        for metric in (one.metrics if task == "lambada" else one.metrics[:1])
    }
