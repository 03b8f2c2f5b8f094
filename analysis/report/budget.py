"""Architectures at one budget, for a reader who must choose, as rows of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.comparison.at_budget import AtBudget
from analysis.fits.comparison.frontiers import Frontiers
from analysis.fits.cost import SECONDS
from analysis.fits.fit import Estimate
from arch.amounts import count

SURE = 0.995  # share of draws from which on a row says "> 99%"


def budget_rows(rows: Sequence[AtBudget]) -> list[dict[str, str]]:
    """Of `analysis.fits.comparison.at_budget.at_budget`, as text."""
    return [
        {
            "architecture": name_of(row.arch),
            "loss": _value(row.loss, "{:.3f}".format),
            "lowest of all in": _share(row.p_best),
            "compute for the lowest loss": _times(row),
            "N_opt": _value(row.n_opt, count),
            "D_opt": _value(row.d_opt, count),
        }
        for row in rows
    ]


def budget_text(c: float, frontiers: Frontiers) -> str:
    """What C is, beside what all runs reached."""
    _, high = frontiers.common
    return f"C = {power_of_ten(c)} ({_unit(frontiers)}), {c / high:.3g} times what all architectures reached"


def _unit(frontiers: Frontiers) -> str:
    return frontiers.convention if frontiers.convention == SECONDS else f"FLOP, {frontiers.convention}"


def _share(value: float | None) -> str:
    return "not known" if value is None else ("> 99%" if value > SURE else f"{value:.0%}") + " of draws"


def _times(row: AtBudget) -> str:
    if row.compute.value is None:
        return "never reaches it"
    return "has it" if row.compute.value == 1 else _value(row.compute, "{:.3g}".format, " times")


def _value(estimate: Estimate, form: Callable[[float], str], unit: str = "") -> str:
    text = "not known" if estimate.value is None else form(estimate.value) + unit
    if estimate.interval is None:
        return text
    low, high = (form(end) if math.isfinite(end) else "?" for end in estimate.interval)
    return f"{text} [{low}, {high}]"
