"""Architectures at one budget, for a reader who must choose: a table, and their frontiers with what is between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis, power_of_ten
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import GREY, SHADE, dress, fade
from analysis.fits.comparison.compare import Compared, interval
from analysis.fits.cost import SECONDS
from arch.amounts import count

WIDTH, HEIGHT = 1200, 430
N_GRID = 41
MARGIN = 1.3  # factor of C beyond the budget
SURE = 0.995  # share of draws from which on a row says "> 99%"


def budget_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Of `analysis.fits.comparison.at_budget.at_budget`, as text."""
    return [
        {
            "architecture": name_of(row["arch"]),
            "loss": _value(row["loss"], row["loss_interval"], "{:.3f}".format),
            "lowest of all in": _share(row["p_best"]),
            "compute for the lowest loss": _times(row),
            "N_opt": _value(row["n_opt"], row["n_opt_interval"], count),
            "D_opt": _value(row["d_opt"], row["d_opt_interval"], count),
        }
        for row in rows
    ]


def frontier_figure(found: Compared, c: float) -> go.Figure:
    """Over compute up to a little beyond the budget `c`: the lowest loss of each architecture, and by how much it lies
    above that of the best one at `c`, each with its interval. Shaded: computes that not all runs reached."""
    low, high = found.common
    last = max(high, c) * MARGIN
    grid = np.geomspace(min(low, c), last, N_GRID)
    names = sorted(found.points.names, key=lambda name: float(found.l_opt(name, c)[0]))
    with np.errstate(all="ignore"):  # of draws that did not end well, which the bands leave out
        losses = {name: found.l_opt(name, grid) for name in names}
    colors, dash = arch_colors(names), dashes(names)
    titles = ["<b>lowest loss at C</b>", f"<b>loss above {name_of(names[0])}'s, paired</b>"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.09)
    for name in names:
        style = {"color": colors[name], "width": 2.4, "dash": dash[name]}
        _band(figure, 1, grid, losses[name], found, name, style)
        if name != names[0]:
            _band(figure, 2, grid, 100 * (losses[name] / losses[names[0]] - 1), found, name, style)
    for column in (1, 2):
        figure.add_vrect(high, last, fillcolor=SHADE, line_width=0, layer="below", row=1, col=column)
        figure.add_vline(c, line={"color": GREY, "dash": "dash", "width": 1.3}, row=1, col=column)
    figure.add_hline(0.0, line={"color": colors[names[0]], "dash": dash[names[0]], "width": 2.4}, row=1, col=2)
    figure.update_xaxes(**log_axis(grid[0], last, f"C ({_unit(found)})", "flop"))
    figure.update_yaxes(title={"text": "loss"}, row=1, col=1)
    figure.update_yaxes(title={"text": f"above {name_of(names[0])} (%)"}, row=1, col=2)
    dress(figure, WIDTH, HEIGHT, r=150)
    return figure


def budget_text(c: float, found: Compared) -> str:
    """What C is, beside what all runs reached."""
    _, high = found.common
    return f"C = {power_of_ten(c)} ({_unit(found)}), {c / high:.3g} times what all architectures reached"


def _unit(found: Compared) -> str:
    convention = next(iter(found.costs.values())).convention
    return convention if convention == SECONDS else f"FLOP, {convention}"


def _band(
    figure: go.Figure, column: int, c: np.ndarray, drawn: np.ndarray, found: Compared, name: str, line: dict[str, Any]
) -> None:
    """The line of a fit and its interval, from draws [1 + r, k]; without one where too few draws ended well."""
    ends = [interval(drawn[:, k], found) for k in range(len(c))]
    known = [(x, *one) for x, one in zip(c, ends, strict=True) if one is not None and None not in one]
    if known:
        x, low, high = (list(part) for part in zip(*known, strict=True))
        fill = {"fill": "toself", "fillcolor": fade(line["color"], 0.15), "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(
            go.Scatter(x=x + x[::-1], y=low + high[::-1], **fill, hoverinfo="skip", showlegend=False), 1, column
        )
    label = name_of(name)
    hover = label + "<br>C %{x:.3g}<br>%{y:.4g}<extra></extra>"
    trace = go.Scatter(x=c, y=drawn[0], mode="lines", line=line, name=label, hovertemplate=hover)
    figure.add_trace(trace.update(showlegend=column == 1), 1, column)


def _share(value: float | None) -> str:
    return "not known" if value is None else ("> 99%" if value > SURE else f"{value:.0%}") + " of draws"


def _times(row: Mapping[str, Any]) -> str:
    if row["compute"] is None:
        return "never reaches it"
    if row["compute"] == 1:
        return "has it"
    return _value(row["compute"], row["compute_interval"], "{:.3g}".format, " times")


def _value(value: float, ends: Sequence[float | None] | None, form: Callable[[float], str], unit: str = "") -> str:
    told = form(value) + unit
    if ends is None:
        return told
    low, high = ("?" if end is None or not math.isfinite(end) else form(end) for end in ends)
    return f"{told} [{low}, {high}]"
