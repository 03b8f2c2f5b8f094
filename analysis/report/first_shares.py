"""How much of each run's beginning the fits leave out, and what other shares would have foretold: table and note."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.figures.palette import name_of
from analysis.fits.study_shares import better_share
from analysis.pages.cells import number, shown

ABOUT = (
    "Surfaces were fitted, from this share of each run on, to what lies below a half, a quarter and an eighth of the "
    "largest compute; the error is the root mean square over the ends of the runs above. In parentheses: a of the "
    "surface of all runs."
)


def first_share_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row a share, a column an architecture: the error of what it foretold, and a. rows: of
    analysis.fits.study_shares."""
    return [
        {
            "from": number(f"{one['share']:.0%} of each run" + (" (the fits')" if one["own"] else ""), one["share"]),
            **{name_of(group): _cell(told) for group, told in one["groups"].items()},
            "all": shown(one["error"], ".2%"),
            "runs foretold": number(str(one["n"]), one["n"]),
        }
        for one in rows
    ]


def first_share_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """That another share would have foretold the study's own largest runs clearly better; none where none would."""
    best, own = better_share(rows), next((one for one in rows if one["own"]), None)
    if best is None or own is None:
        return []
    return [
        f"Read from {best['share']:.0%} of each run, surfaces would have foretold the study's own largest runs to "
        f"{best['error']:.2%} of the loss, from {own['share']:.0%} to {own['error']:.2%}: the beginning of the curves "
        f"is not on the surface. Set fit.first_share: {best['share']:g}."
    ]


def _cell(told: dict[str, Any]) -> str:
    error = "none" if told["error"] is None else f"{told['error']:.2%}"
    a = "not identified" if told["a"] is None else f"{told['a']:.2f}"
    text = f"{error} ({a})"
    return text if told["error"] is None else number(text, told["error"], note=f"a = {a}")
