"""What the scores of the tasks say, as rows and lines: predictions, rankings, and what is withheld with the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.pages.cells import number, shown
from analysis.report.tasks import Z95, last_checkpoints, title
from arch.amounts import count, counted

BENCHMARKS = (
    "Of each run's last checkpoint that a fit reads. Intervals are 95%, over the questions of a task (1.96 standard "
    "errors); runs of other seeds differ by more. `scaling eval table` has the averages of the papers."
)
ABOUT = (
    "A law links the score of a task to the loss that the other laws are fitted to: for accuracies the logistic from "
    "chance to a full score, for perplexities a power law between their logarithm and the loss, for others a monotone "
    "trend without extrapolation. A band is the interval of the expected score of a run, over runs."
)
RANKED = (
    "Signal to noise: the largest difference between two architectures of a size, over the spread of a run's last five "
    "checkpoints about their line. Where it is below what is needed, chance alone makes differences as large."
)


TASK_TABLES = ("benchmarks", "scores", "rankings")


def task_tables(downstream: dict[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Rows by TASK_TABLES: of each run's last checkpoint, at the compute of the comparison, and of rankings."""
    tasks = downstream["tasks"]
    return dict(zip(TASK_TABLES, (_benchmarks(tasks), _predictions(tasks), _rankings(tasks)), strict=True))


def downstream_notes(downstream: dict[str, Any]) -> dict[str, list[str]]:
    """Lines of notes below each table, and of `reasons` why laws are doubted or withheld, and what is left out."""
    tasks = downstream["tasks"]
    unknown = [f"Of unknown scale, so not fitted: {', '.join(found)}."] if (found := downstream["unknown"]) else []
    return {
        "benchmarks": [BENCHMARKS] if tasks else [],
        "scores": ([ABOUT] if any(_laws(one) for one in tasks) else []) + _not_foretold(tasks) + unknown,
        "rankings": [RANKED] if _rankings(tasks) else [],
        "reasons": [*_not_believed(tasks), *_withheld(tasks), *_left_out(tasks)],
    }


def _benchmarks(tasks: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row a run, a column a task: the scores of its last checkpoint, as table 4 of the scaling-law paper has them."""
    rows: dict[str, dict[str, str]] = {}
    for one in tasks:
        percent = one["scale"]["kind"] == "accuracy" and one["scale"]["full"] == 1
        scale, head = (100.0, f"{title(one)}, %") if percent else (1.0, title(one))
        for arch, found in one["archs"].items():
            points = found.get("points") or {"name": [], "flops": []}
            for i in last_checkpoints(points):
                run, _, tokens = points["name"][i].partition(" after ")
                read = float(tokens.removesuffix(" tokens").replace(",", ""))
                row = rows.setdefault(
                    run, {"architecture": name_of(arch), "run": run, "tokens": number(count(read, 4), read)}
                )
                value, error = scale * points["value"][i], points["error"][i]
                ends = None if error is None else (value - Z95 * scale * error, value + Z95 * scale * error)
                row[head] = shown(value, ".4g" if value >= 1 else ".3g", ends)
    return list(rows.values())


def _laws(one: dict[str, Any]) -> dict[str, Any]:
    """The architectures whose law is not withheld."""
    return {arch: found for arch, found in one["archs"].items() if found.get("withheld") is None}


def _predictions(tasks: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row a task: each architecture's score at the compute that the study compares them at."""
    rows = []
    for one in tasks:
        if not (laws := _laws(one)):
            continue
        known = [found["predictions"][0] for found in laws.values() if found["predictions"]]
        first = [at for at in known if at["value"] is not None]
        p = one["shared"]["p"]
        rows.append(
            {
                "task": title(one),
                "C (FLOP)": number(power_of_ten(first[0]["c"]), first[0]["c"]) if first else "",
                **{name_of(arch): _told(found["predictions"]) for arch, found in laws.items()},
                "one link for all": ""
                if p is None
                else f"{'not refuted' if one['shared']['same'] else 'no'} (p = {p:.2g})",
            }
        )
    return rows


def _not_foretold(tasks: Sequence[dict[str, Any]]) -> list[str]:
    """Why the table lacks scores, a line a reason."""
    found: dict[str, dict[str, None]] = {}
    for one in tasks:
        for arch, law in _laws(one).items():
            if law["predictions"] and law["predictions"][0]["value"] is None:
                found.setdefault(str(law["predictions"][0]["reason"]), {})[name_of(arch)] = None
    return [f"{', '.join(archs)}: no score is foretold at this compute ({why})." for why, archs in found.items()]


def _told(predictions: Sequence[dict[str, Any]]) -> str:
    if not predictions or predictions[0]["value"] is None:
        return ""
    at = predictions[0]
    return shown(at["value"], ".3g", at["interval"])


def _rankings(tasks: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row a task with a ranking at its largest size that is not withheld."""
    rows = []
    for one in tasks:
        ranked = [size for size in one["rankings"] if len(size["means"]) > 1]
        if not ranked or ranked[-1]["reason"] is not None:
            continue
        large, better = ranked[-1], one["scale"]["higher_is_better"]
        order = sorted(large["means"].items(), key=lambda pair: pair[1], reverse=better)
        rows.append(
            {
                "task": title(one),
                "size": large["size"],
                "best first": ", ".join(f"{name_of(arch)} {_level(value, one):.3g}" for arch, value in order),
                "signal to noise": shown(large["ratio"], ".3g"),
                "needed": shown(large["needed"], ".3g"),
                "pairs ranked alike at smaller sizes": ", ".join(
                    f"{small['size']} {small['share']:.0%} of {small['n_pairs']}" for small in one["decision_accuracy"]
                ),
            }
        )
    return rows


def _level(value: float, one: dict[str, Any]) -> float:
    """Of perplexities the geometric mean."""
    return math.exp(value) if one["scale"]["kind"] == "perplexity" else value


def _not_believed(tasks: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for one in tasks:
        for arch, found in _laws(one).items():
            verdict = found["link"]["verdict"] if found["link"] else None
            if verdict and verdict["reach"] is not None:
                lines.append(f"{title(one)}, {name_of(arch)}: {verdict['believe']}: {'; '.join(verdict['reasons'])}.")
    return lines


def _withheld(tasks: Sequence[dict[str, Any]]) -> list[str]:
    """Laws and rankings that are not shown. Tasks whose every law lacks runs take one line together."""
    lines, few = [], []
    for one in tasks:
        reasons: dict[str, list[str]] = {}
        for arch, found in one["archs"].items():
            if found.get("withheld"):
                reasons.setdefault(found["withheld"], []).append(name_of(arch))
        if not _laws(one) and all("run(s) have scores" in why for why in reasons):
            few.append(title(one))
        else:
            lines += [f"{title(one)}, {', '.join(archs)}: withheld: {why}." for why, archs in reasons.items()]
        ranked = [size for size in one["rankings"] if len(size["means"]) > 1]
        if ranked and ranked[-1]["reason"]:
            lines.append(f"{title(one)}, ranking at {ranked[-1]['size']}: withheld: {ranked[-1]['reason']}.")
    return lines + ([f"Too few runs with scores for a law: {', '.join(few)}."] if few else [])


def _left_out(tasks: Sequence[dict[str, Any]]) -> list[str]:
    """Checkpoints without a place in a fit, the same counts of several tasks in one line."""
    found: dict[str, list[str]] = {}
    for one in tasks:
        for why, n in one["left_out"].items():
            found.setdefault(f"{counted(n, 'checkpoint')} left out because {why}", []).append(title(one))
    return [f"{', '.join(names)}: {what}." for what, names in found.items()]
