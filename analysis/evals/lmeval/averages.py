"""Averages over tasks: table 4's common-sense columns, SuperGLUE's eight tasks and HGRN's seven of them, and SCROLLS in
the two ways it is averaged.

A task that failed, or is not there yet, is named; an average that leaves one out says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .scores import geometric_mean
from .sets import CSR, ROUGE, SCROLLS, SUPERGLUE, TASKS

Values = Mapping[str, Mapping[str, float | None]]  # of one checkpoint: task -> metric -> value

# Table 4 of "Scaling Laws for Linear Complexity Language Models": accuracies in percent, these seven in its average;
# SIQA is named in its text and is in none of its tables.
TABLE4 = tuple(name for name in CSR if name != "siqa")

# Table 5 of "HGRN": SuperGLUE without ReCoRD, and MultiRC by whole questions (its cells are multiples of 1 / 953, which
# is how many there are).
HGRN_SUPERGLUE = {task: "em" if task == "multirc" else TASKS[task].metrics[0] for task in SUPERGLUE if task != "record"}
SHARES = ("acc", "acc_norm", "f1", "em")  # from 0 to 1 in lm-eval; SCROLLS' f1 and em are in percent


@dataclass(frozen=True)
class Average:
    """value: None where there is nothing to average; n: how many scores it is the mean of; missing: tasks that have
    none."""

    value: float | None
    n: int
    missing: tuple[str, ...]


def headline(task: str, values: Mapping[str, float | None], metric: str | None = None) -> float | None:
    """A task's `metric`, or the one that stands for it; shares in percent."""
    metric = metric or TASKS[task].metrics[0]
    value = values.get(metric)
    share = metric in SHARES and (TASKS[task].scrolls is None or metric.startswith("acc"))
    return None if value is None else 100 * value if share else value


def accuracy_average(tasks: Iterable[str], values: Values) -> Average:
    """Mean in percent over `tasks`, each by the metric that stands for it, or by that which a mapping gives it."""
    metrics = tasks if isinstance(tasks, Mapping) else {}
    found = {task: headline(task, values.get(task, {}), metrics.get(task)) for task in tasks}
    scores = [score for score in found.values() if score is not None]
    return _average(scores, tuple(task for task, score in found.items() if score is None))


def scrolls_plain(values: Values) -> Average:
    """The paper's average: the plain mean of the 13 sub-scores (three ROUGE each of three summaries, two F1, two exact
    matches). It leaves out the sub-scores of failed tasks, as the paper's does, and names the tasks."""
    whole, missing = _sub_scores(values)
    return _average([score for parts in whole for score in parts], missing)


def scrolls_official(values: Values) -> Average:
    """SCROLLS' own (Shaham et al. 2022): the mean over its seven tasks, a summary counting as the geometric mean of its
    three ROUGE scores. None unless all seven are there."""
    whole, missing = _sub_scores(values)
    scores = [geometric_mean(parts) for parts in whole]
    return Average(None, len(scores), missing) if missing else _average(scores, ())


def _sub_scores(values: Values) -> tuple[list[list[float]], tuple[str, ...]]:
    """The sub-scores of each SCROLLS task that has all of its own, and the names of those that do not."""
    whole, missing = [], []
    for task in SCROLLS:
        metrics = TASKS[task].metrics
        wanted = ROUGE if metrics == ROUGE else metrics[:1]
        parts = [values.get(task, {}).get(metric) for metric in wanted]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            missing.append(task)
        else:
            whole.append(found)
    return whole, tuple(missing)


def _average(scores: list[float], missing: tuple[str, ...]) -> Average:
    return Average(sum(scores) / len(scores) if scores else None, len(scores), missing)
