"""Figure 1 where the envelope does not lead: an architecture's law along its optimal frontier, as fits.json tells it
("curve"). It is drawn in full with its interval as far as its checks believe it, and dashed beyond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from analysis.figures.palette import name_of
from analysis.figures.style import fade
from analysis.fits.result import BELIEVE, DO_NOT
from analysis.pages.cells import shown
from analysis.report.approaches import NAMES
from analysis.report.believed import drawn_law
from analysis.report.noise import listed

LETTERS = {"loss": "L", "n_opt": "N", "d_opt": "D"}
EXPONENTS = {"n_opt": "a", "d_opt": "b"}
SYMBOLS = {"loss": "L", "n_opt": "N<sub>opt</sub>", "d_opt": "D<sub>opt</sub>"}


def add_frontier(
    figure: go.Figure, row: int, column: int, law: dict[str, Any], what: str, color: str, name: str, named: bool
) -> None:
    """what: a key of LETTERS; named: it stands in the legend of architectures."""
    letter, rows = LETTERS[what], _rows(law, what)
    inside = _inside(law, rows)
    believed = {BELIEVE: rows, DO_NOT: []}.get(law["verdict"]["believe"], inside)
    known = [(at["C"], *at["intervals"][letter]) for at in inside if _ends(at, letter)]
    if known:
        c, low, high = (list(part) for part in zip(*known, strict=True))
        band = {"fill": "toself", "fillcolor": fade(color, 0.16), "line": {"width": 0}, "mode": "lines"}
        trace = go.Scatter(x=c + c[::-1], y=high + low[::-1], **band, hoverinfo="skip", showlegend=False)
        figure.add_trace(trace, row=row, col=column)
    beyond = [at for at in rows if not believed or at["C"] >= believed[-1]["C"]]
    for part, dash, width, first in ((believed, "solid", 2.6, True), (beyond, "dash", 1.8, not believed)):
        line = {"color": color, "width": width, "dash": dash}
        x, y = [at["C"] for at in part], [at[letter] for at in part]
        trace = go.Scatter(x=x, y=y, mode="lines", line=line, name=name, legend="legend")
        trace.showlegend = named and first and bool(part)
        trace.hovertemplate = f"{name}<br>C = %{{x:.3g}} FLOP<br>%{{y:.4g}}<extra></extra>"
        figure.add_trace(trace, row=row, col=column)


def frontier_title(law: dict[str, Any], what: str) -> str:
    """ "N_opt ~ C^0.672 [0.615, 0.746], parametric"; of L in words, as it is no power law."""
    approach = NAMES[law["approach"]]
    doubt = " (not believed)" * (law["verdict"]["believe"] == DO_NOT)
    if what == "loss":
        return f"L at N<sub>opt</sub>{doubt or f': {approach}'}"  # with both it is wider than a narrow screen
    name = EXPONENTS[what]
    value, _, ends = shown(law["params"].get(name), ".3f", law["intervals"].get(name)).partition(" ")
    return f"{SYMBOLS[what]} ~ C<sup> {value}</sup> {ends}{doubt}"


def frontier_text(fits: dict[str, Any]) -> str:
    """What a reader of figure 1 must know of it; "" where the envelope leads everywhere."""
    by_approach: dict[str, list[str]] = {}
    for arch in fits["archs"]:
        if law := drawn_law(fits, arch):
            by_approach.setdefault(NAMES[law["approach"]], []).append(name_of(arch))
    if not by_approach:
        return ""
    told = "; ".join(f"the {approach} one of {listed(archs)}" for approach, archs in by_approach.items())
    return (
        "Where another approach is believed more than the envelope, or the envelope knows no optimal size, the law of "
        f"that approach is drawn ({told}), and what the envelope says is faint. L is then the loss of the optimal size "
        "at each compute; curves may end above it where no run was trained on as many tokens as that size would take. "
        "Of such laws L is dashed too where their checks do not believe them; their steps are those of the cost of a "
        "token, which does not grow evenly from size to size."
    )


def values_of(laws: Sequence[dict[str, Any]], what: str) -> list[float]:
    """What axes must hold: the laws with their intervals, inside their ranges."""
    letter = LETTERS[what]
    rows = [at for law in laws for at in _inside(law, _rows(law, what))]
    return [v for at in rows for v in (at[letter], *(at["intervals"][letter] if _ends(at, letter) else ()))]


def _inside(law: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    low, high = law["range"]
    return [at for at in rows if low * (1 - 1e-9) <= at["C"] <= high * (1 + 1e-9)]


def _rows(law: dict[str, Any], what: str) -> list[dict[str, Any]]:
    return [at for at in law["diagnostics"].get("curve") or () if at.get(LETTERS[what])]


def _ends(at: dict[str, Any], letter: str) -> bool:
    ends: Sequence[float | None] = (at.get("intervals") or {}).get(letter) or (None,)
    return all(end is not None and end > 0 for end in ends)
