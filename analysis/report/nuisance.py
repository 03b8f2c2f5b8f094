"""How nuisance axes were resolved before the fits, and which runs the fits do not use: rows and notes of fits.json."""

from __future__ import annotations

import math
from typing import Any

from scipy.special import stdtrit

from analysis.figures.axes import minus
from analysis.figures.palette import name_of
from analysis.fits.pairwise import BETTER, LOSS, UNDECIDED, compared
from analysis.fits.study_fits import StudyFits, StudyNoise
from analysis.pages.cells import signed
from analysis.report.laws import named
from arch.amounts import count, counted

DOUBT = 0.975  # Student's quantile of a difference that noise seldom makes


def nuisance_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row for each group, size and length: the value that was taken, and the loss of every value."""
    return [
        {
            "architecture": name_of(cell["group"]),
            "size": ", ".join(filter(None, (cell["size"], cell["length"]))),
            "taken": _taken(cell),
            "loss of each value": "; ".join(f"{value['value'] or 'mean'}: {_loss(value)}" for value in cell["values"]),
            "next best": "" if cell["margin"] is None else signed(math.expm1(cell["margin"]), ".2%"),
            "seeds compared": str(cell["n_seeds"]) if len(cell["values"]) > 1 else "",
            "at (tokens)": "" if cell["n_tokens"] is None else count(cell["n_tokens"]),
        }
        for cell in fits.nuisance.get("cells", ())
    ]


def _loss(value: dict[str, Any]) -> str:
    return f"not judged ({value['why']})" if value["loss"] is None else minus(value["loss"])


def _taken(cell: dict[str, Any]) -> str:
    over = f"mean over {'; '.join(cell['mean_over'])}" if cell["mean_over"] else ""
    if cell["chosen"] is None:
        return f"none: no seed has all values of the {over}" if over else "none: no value can be judged"
    return ", ".join(filter(None, (cell["chosen"], over)))


def nuisance_notes(fits: StudyFits) -> list[str]:
    """What makes a choice doubtful, a line each with all that it is so for, and how many runs the fits do not use."""
    cells, places = fits.nuisance.get("cells", ()), dict[str, dict[str, dict[str, None]]]()
    for cell in cells:
        for text in [*_doubts(cell), *_of_noise(cell, fits.seed_noise)]:
            places.setdefault(text, {}).setdefault(name_of(cell["group"]), {})[cell["size"]] = None
    lines = [
        f"{text}: " + "; ".join(f"{group} {', '.join(sizes)}" for group, sizes in groups.items())
        for text, groups in places.items()
    ]
    if any(len(cell["values"]) > 1 for cell in cells):
        lines.append("The lowest of several noisy losses is a little too low, the more so the more values were tried.")
    return lines + left_out_lines(fits)


def _doubts(cell: dict[str, Any]) -> list[str]:
    lines = [f"warning: {edge}, and its optimum may lie beyond" for edge in cell["edge"]]
    if cell["tie"]:
        lines.append("two values end equally low, and the first was taken")
    lines += [
        f"without {value['value']} ({value['why']})"
        for value in cell["values"]
        if value["loss"] is None and value["value"]
    ]
    if cell["chosen"] is not None and len(cell["values"]) > 1 and not cell["n_seeds"]:
        lines.append("no seed was trained at all values, and each value is judged by seeds of its own")
    if cell["chosen"] is None:
        why = "no seed has all values of the mean" if cell["mean_over"] else "no value can be judged"
        lines.append(f"warning: {why}, and none of its runs is in the fits")
    elif cell["incomplete"]:
        seeds = ", ".join(map(str, cell["incomplete"]))
        lines.append(f"seed {seeds} lacks a value of the mean, and is left out of the fits")
    return lines


def _of_noise(cell: dict[str, Any], noise: StudyNoise | None) -> list[str]:
    """How the other values compare with the one taken, by the noise of independent seeds: sqrt(2 / seeds) s times
    Student's quantile. Of seeds that share their batches a little more is known than that."""
    losses = {row["value"]: math.log(row["loss"]) for row in cell["values"] if row["loss"] is not None}
    chosen = cell["chosen"]
    if chosen is None or len(losses) < 2:
        return []
    if noise is None:
        return ["no seeds measure the noise, so nobody knows whether the value taken is better than the others"]
    own = noise.of(cell["group"])
    half = float(stdtrit(own.df, DOUBT)) * own.s * math.sqrt(2 / max(cell["n_seeds"], 1))
    verdicts = {}
    for value, loss in losses.items():
        more = loss - losses[chosen]
        if value != chosen:
            verdicts[value] = compared(value, chosen, LOSS, 0.0, more, (more - half, more + half)).verdict
    near = [value for value, verdict in verdicts.items() if verdict == UNDECIDED]
    lower = [value for value, verdict in verdicts.items() if verdict == BETTER]
    lines = [f"{chosen} is not distinguishable from {', '.join(near)} by the noise between seeds"] if near else []
    return lines + [f"{value} ends lower here, but the longest branch takes {chosen}" for value in lower]


def left_out_lines(fits: StudyFits) -> list[str]:
    """Of runs that are in no fit, a line for each kind of reason, with how many and which."""
    kinds: dict[str, list[str]] = {}
    for run in fits.left_out:
        kinds.setdefault(_kind(run["why"]), []).append(run["run_id"])
    return [f"{counted(len(runs), 'run')} left out of the fits, {why}: {named(runs)}" for why, runs in kinds.items()]


def _kind(why: str) -> str:
    if why.startswith("changed by --set"):
        return "changed by --set"
    if why.startswith("averaged in"):
        return "averaged with others"
    return "as another value of a nuisance axis ends lower" if " ends lower than " in why else why
