"""What the scores of the tasks say, as rows and lines: predictions, rankings, and what is withheld with the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.report.tasks import title

BELIEVE = "believe"
ABOUT = (
    "A law links the score of a task to the loss that the other laws are fitted to: for accuracies the logistic from "
    "chance to a full score, for perplexities a power law between their logarithm and the loss, for others a monotone "
    "trend without extrapolation. A band is the interval of the expected score of a run, over runs."
)
RANKED = (
    "Signal to noise: the largest difference between two architectures of a size, over the spread of a run's last five "
    "checkpoints about their line. Where it is below what is needed, chance alone makes differences as large."
)


def downstream_part(downstream: dict[str, Any]) -> dict[str, Any]:
    """predictions and rankings as rows, notes as lines."""
    tasks = downstream["tasks"]
    return {
        "predictions": _predictions(tasks),
        "rankings": _rankings(tasks),
        "notes": [
            *([ABOUT] if any(_laws(one) for one in tasks) else []),
            *_not_believed(tasks),
            *_withheld(tasks),
            *_left_out(tasks),
            *([RANKED] if any(one["rankings"] for one in tasks) else []),
            *(
                [f"Of unknown scale, so not fitted: {', '.join(unknown)}."]
                if (unknown := downstream["unknown"])
                else []
            ),
        ],
    }


def _laws(one: dict[str, Any]) -> dict[str, Any]:
    """The architectures whose law is not withheld."""
    return {arch: found for arch, found in one["archs"].items() if found.get("withheld") is None}


def _predictions(tasks: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row a task: each architecture's score at the compute that the study compares them at."""
    rows = []
    for one in tasks:
        if not (laws := _laws(one)):
            continue
        first = [found["predictions"][0] for found in laws.values() if found["predictions"]]
        p = one["shared"]["p"]
        rows.append(
            {
                "task": title(one),
                "C (FLOP)": power_of_ten(first[0]["c"]) if first else "",
                **{name_of(arch): _told(found["predictions"]) for arch, found in laws.items()},
                "one link for all": ""
                if p is None
                else f"{'not refuted' if one['shared']['same'] else 'no'} (p = {p:.2g})",
            }
        )
    return rows


def _told(predictions: Sequence[dict[str, Any]]) -> str:
    if not predictions or predictions[0]["value"] is None:
        return "-"
    at = predictions[0]
    return f"{at['value']:.3g}" + (f" [{at['interval'][0]:.3g}, {at['interval'][1]:.3g}]" if at["interval"] else "")


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
                "signal to noise": f"{large['ratio']:.3g}",
                "needed": f"{large['needed']:.3g}",
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
            if verdict and verdict["believe"] != BELIEVE:
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
    counted: dict[str, list[str]] = {}
    for one in tasks:
        for why, n in one["left_out"].items():
            counted.setdefault(f"{n} checkpoint(s) left out because {why}", []).append(title(one))
    return [f"{', '.join(names)}: {what}." for what, names in counted.items()]
