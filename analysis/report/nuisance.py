"""How nuisance axes were resolved before the fits, and which runs the fits do not use: rows and notes of fits.json."""

from __future__ import annotations

import math
from typing import Any

from scipy.special import stdtrit

from analysis.figures.axes import minus
from analysis.figures.palette import name_of
from analysis.fits.study_fits import StudyFits, StudyNoise
from analysis.pages.cells import signed
from analysis.report.laws import named
from arch.amounts import count, counted

DOUBT = 0.975  # Student's quantile of a difference that noise seldom makes


def nuisance_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row for each group, size and length: the value that was taken, and the loss of every value."""
    rows = []
    for cell in fits.nuisance.get("cells", ()):
        losses = [f"{one['value'] or 'mean'}: {_loss(one)}" for one in cell["values"]]
        rows.append(
            {
                "architecture": name_of(cell["group"]),
                "size": ", ".join(filter(None, (cell["size"], cell["length"]))),
                "taken": _taken(cell),
                "loss of each value": "; ".join(losses),
                "next best": "" if cell["margin"] is None else signed(math.expm1(cell["margin"]), ".2%"),
                "seeds compared": str(cell["n_seeds"]) if len(cell["values"]) > 1 else "",
                "at (tokens)": "" if cell["n_tokens"] is None else count(cell["n_tokens"]),
            }
        )
    return rows


def _loss(one: dict[str, Any]) -> str:
    return f"not judged ({one['why']})" if one["loss"] is None else minus(one["loss"])


def _taken(cell: dict[str, Any]) -> str:
    over = f"mean over {'; '.join(cell['mean_over'])}" if cell["mean_over"] else ""
    if cell["chosen"] is None:
        return f"none: no seed has all values of the {over}" if over else "none: no value can be judged"
    return ", ".join(filter(None, (cell["chosen"], over)))


def nuisance_notes(fits: StudyFits) -> list[str]:
    """What makes a choice doubtful, a line each with all that it is so for, and how many runs the fits do not use."""
    found: dict[str, dict[str, list[str]]] = {}
    cells = fits.nuisance.get("cells", ())
    for cell in cells:
        for text in [*_doubts(cell), *_not_apart(cell, fits.seed_noise)]:
            found.setdefault(text, {}).setdefault(name_of(cell["group"]), []).append(cell["size"])
    lines = []
    for text, groups in found.items():
        places = "; ".join(f"{group} {', '.join(dict.fromkeys(sizes))}" for group, sizes in groups.items())
        lines.append(f"{text}: {places}")
    if any(len(cell["values"]) > 1 for cell in cells):
        lines.append("The lowest of several noisy losses is a little too low, the more so the more values were tried.")
    return lines + left_out_lines(fits)


def _doubts(cell: dict[str, Any]) -> list[str]:
    lines = [f"warning: {edge}, and its optimum may lie beyond" for edge in cell["edge"]]
    if cell["tie"]:
        lines.append("two values end equally low, and the first was taken")
    lines += [
        f"without {one['value']} ({one['why']})" for one in cell["values"] if one["loss"] is None and one["value"]
    ]
    if cell["chosen"] is not None and len(cell["values"]) > 1 and not cell["n_seeds"]:
        lines.append("no seed was trained at all values, and each value is judged by seeds of its own")
    if cell["chosen"] is None and not cell["mean_over"]:
        lines.append("warning: no value can be judged, and none of its runs is in the fits")
    elif cell["chosen"] is None:
        lines.append("warning: no seed has all values of the mean, and none of its runs is in the fits")
    elif cell["incomplete"]:
        seeds = ", ".join(map(str, cell["incomplete"]))
        lines.append(f"seed {seeds} lacks a value of the mean, and is left out of the fits")
    return lines


def _not_apart(cell: dict[str, Any], noise: StudyNoise | None) -> list[str]:
    """The values whose loss differs from that taken by less than noise of independent seeds makes: sqrt(2 / seeds) s
    times Student's quantile. Seeds that share their batches are told apart a little better than that."""
    losses = {one["value"]: math.log(one["loss"]) for one in cell["values"] if one["loss"] is not None}
    if cell["chosen"] is None or len(losses) < 2:
        return []
    if noise is None:
        return ["no seeds measure the noise, so nobody knows whether the value taken is better than the others"]
    mine = noise.of(cell["group"])
    reach = float(stdtrit(mine.df, DOUBT)) * mine.s * math.sqrt(2 / max(cell["n_seeds"], 1))
    off = {value: loss - losses[cell["chosen"]] for value, loss in losses.items() if value != cell["chosen"]}
    near = [value for value, more in off.items() if abs(more) < reach]
    lower = [value for value, more in off.items() if more <= -reach and more < 0]
    lines = [f"{cell['chosen']} is not told apart from {', '.join(near)} by the noise between seeds"] if near else []
    return lines + [f"{value} ends lower here, but the longest branch takes {cell['chosen']}" for value in lower]


def left_out_lines(fits: StudyFits) -> list[str]:
    """Of runs that are in no fit, a line for each kind of reason, with how many and which."""
    found: dict[str, list[str]] = {}
    for one in fits.left_out:
        found.setdefault(_kind(one["why"]), []).append(one["run_id"])
    return [f"{counted(len(runs), 'run')} left out of the fits, {why}: {named(runs)}" for why, runs in found.items()]


def _kind(why: str) -> str:
    if why.startswith("changed by --set"):
        return "changed by --set"
    if why.startswith("averaged in"):
        return "averaged with others"
    if " ends lower than " in why:
        return "as another value of a nuisance axis ends lower"
    return why
