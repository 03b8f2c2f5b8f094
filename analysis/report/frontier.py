"""Figure 1 where the envelope does not lead: an architecture's law along its optimal frontier, as fits.json tells it
("curve"). It is drawn in full with its interval as far as its checks believe it, and dashed beyond."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.figures.palette import name_of
from analysis.figures.style import fade
from analysis.fits.fit import D_OPT, L_OPT, N_OPT, Fit
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import shown
from analysis.report.approaches import NAMES
from analysis.report.believed import drawn_law
from analysis.report.noise import listed

SYMBOLS = {L_OPT: "L", N_OPT: "N<sub>opt</sub>", D_OPT: "D<sub>opt</sub>"}
Row = tuple[float, float, tuple[float, float] | None]  # C [FLOP], a value there, and its interval


def add_frontier(
    figure: go.Figure, row: int, column: int, law: Fit, quantity: str, color: str, name: str, named: bool
) -> None:
    """named: it stands in the legend of architectures."""
    rows = _rows(law, quantity)
    inside = _inside(law, rows)
    last = law.range[1] * (law.verdict.reach if law.verdict else 0.0)
    solid = [at for at in rows if at[0] <= last * (1 + 1e-9)]
    known = [(c, *ends) for c, _, ends in inside if ends is not None]
    if known:
        c, low, high = (list(part) for part in zip(*known, strict=True))
        band = {"fill": "toself", "fillcolor": fade(color, 0.16), "line": {"width": 0}, "mode": "lines"}
        trace = go.Scatter(x=c + c[::-1], y=high + low[::-1], **band, hoverinfo="skip", showlegend=False)
        figure.add_trace(trace, row=row, col=column)
    beyond = [at for at in rows if not solid or at[0] >= solid[-1][0]]
    for part, dash, width, first in ((solid, "solid", 2.6, True), (beyond, "dash", 1.8, not solid)):
        line = {"color": color, "width": width, "dash": dash}
        x, y = [at[0] for at in part], [at[1] for at in part]
        trace = go.Scatter(x=x, y=y, mode="lines", line=line, name=name, legend="legend")
        trace.showlegend = named and first and bool(part)
        trace.hovertemplate = f"{name}<br>C = %{{x:.3g}} FLOP<br>%{{y:.4g}}<extra></extra>"
        figure.add_trace(trace, row=row, col=column)


def frontier_title(law: Fit, quantity: str) -> str:
    """ "N_opt ~ C^0.672 [0.615, 0.746], parametric"; of L in words, as it is no power law."""
    approach = NAMES[law.approach]
    doubt = " (not believed)" * (law.verdict is not None and law.verdict.reach == 0)
    if quantity == L_OPT:
        return f"L at N<sub>opt</sub>{doubt or f': {approach}'}"  # with both it is wider than a narrow screen
    one = law.law(quantity).exponent
    value, _, ends = shown(one.value, ".3f", one.ends).partition(" ")
    return f"{SYMBOLS[quantity]} ~ C<sup> {value}</sup> {ends}{doubt}"


def frontier_text(fits: StudyFits) -> str:
    """What a reader of figure 1 must know of it; "" where the envelope leads everywhere."""
    by_approach: dict[str, list[str]] = {}
    for group in fits.groups:
        if law := drawn_law(fits, group.name):
            by_approach.setdefault(NAMES[law.approach], []).append(name_of(group.name))
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


def values_of(laws: Sequence[Fit], quantity: str) -> list[float]:
    """What axes must hold: the laws with their intervals, inside their ranges."""
    rows = [at for law in laws for at in _inside(law, _rows(law, quantity))]
    return [number for _, value, ends in rows for number in (value, *(ends or ()))]


def _inside(law: Fit, rows: Sequence[Row]) -> list[Row]:
    low, high = law.range
    return [at for at in rows if low * (1 - 1e-9) <= at[0] <= high * (1 + 1e-9)]


def _rows(law: Fit, quantity: str) -> list[Row]:
    found = [(at.flops, at.of(quantity)) for at in law.curve]
    return [(c, one.value, one.ends if one.ends and min(one.ends) > 0 else None) for c, one in found if one.value]
