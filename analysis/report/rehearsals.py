"""Rehearsals of a forecast: the errors of its step taken inside the grid, as a table and a line each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.figures.palette import name_of
from analysis.pages.cells import shown, signed
from arch.amounts import counted

Told = Mapping[str, Any]  # analysis.forecast.rehearsals.with_rehearsals
Row = Mapping[str, Any]
SIGN = "\N{PLUS-MINUS SIGN}"


def rehearsal_rows(told: Told | None) -> list[dict[str, str]]:
    """A row an architecture and size; beside the rehearsed errors the half-width of the fit's interval of one run, and
    the measured error of the mean of the seeds, where it is known."""
    rows = []
    of_means = {(one["group"], one["size"]): one for one in (told or {"means": []})["means"]}
    for one in (told or {}).get("rehearsals", []):
        measured = of_means[one["group"], one["size"]].get("error")
        rows.append(
            {
                "architecture": _name(told or {}, one),
                "step rehearsed": _step(one["taken"]) if one["n"] else f"none: {one['reason']}",
                "step of the forecast": _step(one["step"]),
                "times": str(one["n"]) if one["n"] else "",
                "mean error": _signed(one["mean"]),
                "rms": _share(one["rms"]),
                "half of the fit's interval": _share(one["of_fit"]),
                "half as rehearsed": _share(one["half"]),
                "measured error": _signed(None if measured is None else math.log1p(measured)),
            }
        )
    return rows


def inside(told: Told) -> str:
    """What a round's step is rehearsed inside of."""
    return "the grid" if told["round"] == 1 else "what was trained before"


def rehearsal_lines(told: Told) -> list[str]:
    """A line for each row, which warns of an interval that is too narrow."""
    why = told.get("not_rehearsed")
    lines = [_line(told, one) for one in told.get("rehearsals", [])]
    return [f"Nothing is rehearsed: {why}."] if why else lines


def _line(told: Told, one: Row) -> str:
    name = _name(told, one)
    if not one["n"]:
        return f"{name}: not rehearsed: {one['reason']}."
    when = "rehearsed afterwards" if told["afterwards"] else "rehearsed"
    far = f"at {_step(one['taken'])}"
    if _step(one["taken"]) != _step(one["step"]):
        far += f" (the forecast's step: {_step(one['step'])})"
    line = f"{name}: {when} {counted(one['n'], 'time')} inside {inside(told)} {far}: "
    line += f"errors of {_signed(one['mean'], 1)} on average, {_share(one['rms'], 1)} rms"
    if one["of_fit"] is None:
        return f"{line}."
    of_fit = f"than the fit's interval of {SIGN}{_share(one['of_fit'])}"
    line += f": more {of_fit}, which is too narrow for this step" if one["too_narrow"] else f": no more {of_fit}"
    wide = f", more than {SIGN}{one['limit']:.1%}: it tells little" if one["above_limit"] else ""
    is_or = "would be" if told["afterwards"] else "is"
    return f"{line}. The interval as rehearsed {is_or} {SIGN}{_share(one['half'])}{wide}."


def _name(told: Told, one: Row) -> str:
    several = len({row["size"] for row in told.get("rehearsals", []) if row["group"] == one["group"]}) > 1
    return name_of(one["group"]) + (f", {one['size']}" if several else "")


def _step(ratios: Sequence[float]) -> str:
    n, d = (f"{max(ratio, 1.0):.1f}" for ratio in ratios)
    return f"{n} x N and {d} x D"


def _share(value: float | None, digits: int = 2) -> str:
    return shown(value, f".{digits}%")


def _signed(value: float | None, digits: int = 2) -> str:
    return signed(None if value is None else math.expm1(value), f".{digits}%")
