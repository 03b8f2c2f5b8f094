"""How nuisance axes were resolved before the fits, and which runs the fits do not use: rows and notes of fits.json."""

from __future__ import annotations

import math

from scipy.special import stdtrit

from analysis.figures.axes import minus
from analysis.figures.palette import name_of
from analysis.fits.fit import NuisanceCell, NuisanceValue
from analysis.fits.noise import SeedNoise
from analysis.fits.pairwise import BETTER, LOSS, UNDECIDED, compared
from analysis.fits.study_fits import StudyFits
from analysis.labels import parts
from analysis.pages.cells import signed
from analysis.report.laws import named
from arch.amounts import count, counted

TIE = 1e-9  # of log loss
DOUBT = 0.975  # Student's quantile of a difference that noise seldom makes


def nuisance_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row for each group, size and length: the value that was taken, and the loss of every value."""
    return [
        {
            "architecture": name_of(cell.group),
            "size": ", ".join(filter(None, (cell.size, cell.length))),
            "taken": cell.chosen or "none: no value can be judged",
            "loss of each value": "; ".join(f"{tried.value}: {_loss(tried)}" for tried in cell.values),
            "next best": "" if cell.margin is None else signed(math.expm1(cell.margin), ".2%"),
            "seeds compared": str(cell.n_seeds),
            "at (tokens)": "" if cell.n_tokens is None else count(cell.n_tokens),
        }
        for cell in fits.nuisance
    ]


def _loss(tried: NuisanceValue) -> str:
    return f"not judged ({tried.why})" if tried.loss is None else minus(tried.loss)


def nuisance_notes(fits: StudyFits) -> list[str]:
    """What makes a choice doubtful, a line each with all that it is so for, and how many runs the fits do not use."""
    found: dict[str, dict[str, list[str]]] = {}
    for cell in fits.nuisance:
        for text in [*_doubts(cell), *_of_noise(cell, fits.seed_noise)]:
            found.setdefault(text, {}).setdefault(name_of(cell.group), []).append(cell.size)
    lines = []
    for text, groups in found.items():
        places = "; ".join(f"{group} {', '.join(dict.fromkeys(sizes))}" for group, sizes in groups.items())
        lines.append(f"{text}: {places}")
    if fits.nuisance:
        lines.append("The lowest of several noisy losses is a little too low, the more so the more values were tried.")
    return lines + left_out_lines(fits)


def _doubts(cell: NuisanceCell) -> list[str]:
    if cell.chosen is None:
        return ["warning: no value can be judged, and none of its runs is in the fits", *_without(cell)]
    lines = [f"warning: {edge}, and its optimum may lie beyond" for edge in _edges(cell)]
    if cell.margin is not None and abs(cell.margin) < TIE:
        lines.append("two values end equally low, and the first was taken")
    lines += _without(cell)
    if not cell.n_seeds:
        lines.append("no seed was trained at all values, and each value is judged by seeds of its own")
    return lines


def _without(cell: NuisanceCell) -> list[str]:
    return [f"without {tried.value} ({tried.why})" for tried in cell.values if tried.loss is None]


def _edges(cell: NuisanceCell) -> list[str]:
    """Of the fields of the chosen value those where it is the smallest or the largest number tried, in words."""
    edges = []
    for field, text in parts(cell.chosen or "").items():
        try:
            tried = sorted({float(parts(value.value)[field]) for value in cell.values if value.loss is not None})
            own = float(text)
        except ValueError:
            continue
        if len(tried) > 1 and own in (tried[0], tried[-1]):
            edges.append(f"{field}={text} is the {'smallest' if own == tried[0] else 'largest'} tried")
    return edges


def _of_noise(cell: NuisanceCell, noise: SeedNoise | None) -> list[str]:
    """How the other values compare with the one taken, by the noise of independent seeds: sqrt(2 / seeds) s times
    Student's quantile. Of seeds that share their batches a little more is known than that."""
    losses = {tried.value: math.log(tried.loss) for tried in cell.values if tried.loss is not None}
    chosen = cell.chosen
    if chosen is None or len(losses) < 2:
        return []
    if noise is None:
        return ["no seeds measure the noise, so nobody knows whether the value taken is better than the others"]
    own = noise.of(cell.group)
    half = float(stdtrit(own.df, DOUBT)) * own.s * math.sqrt(2 / max(cell.n_seeds, 1))
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
    if " ends lower than " in why:
        return "as another value of a nuisance axis ends lower"
    return why
