"""Figures of fits: the optima of a group over compute by every approach, and isoFLOP profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis, power_of_ten
from analysis.figures.palette import APPROACH_COLORS
from analysis.figures.style import GREY, INK, SHADE, WIDTH, arch_panels, dress, size_scale
from analysis.fits.budgets import LEAST_SIZES, read_budgets
from analysis.fits.fit import D_OPT, FAR, N_OPT, Fit, Minimum
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import prepare
from analysis.fits.study_fits import StudyFits
from analysis.report.figures import DrawnLaw, add_law, rows_of
from analysis.run_table import RunTable
from arch.amounts import counted

PANELS = ((N_OPT, "N", "N<sub>opt</sub>: parameters"), (D_OPT, "D", "D<sub>opt</sub>: tokens"))
MOST_DRAWN = 1500  # points of runs; more are thinned
MARGIN = 1.4  # factor around what is drawn
LEGEND = (
    "Lines are the laws, solid inside the compute that they were fitted to, dashed beyond; bands are their intervals; "
    "diamonds are the minima of isoFLOP budgets. The shaded compute is more than any run had."
)
PROFILES = "IsoFLOP profiles: losses of each budget over size, and the curves whose minima the law goes through."
SAME = 1 + 1e-9  # of C


def optimum_figure(points: Points, results: Sequence[Fit]) -> go.Figure:
    """N_opt and D_opt over compute, with intervals, over the runs that they were fitted to; `results` with `Fit.curve`
    (Options.curve). Laws are drawn solid inside the compute that they were fitted to, dashed beyond; from FAR times on
    not at all."""
    figure = make_subplots(1, 2, subplot_titles=[f"<b>{name}</b>" for *_, name in PANELS], horizontal_spacing=0.09)
    step = max(1, len(points) // MOST_DRAWN)
    high = float(points.flops.max())
    last = max([high, *(at.flops for fit in results for at in fit.curve if fit.beyond(at.flops) <= FAR)])
    for column, (quantity, letter, _) in enumerate(PANELS, 1):
        values = (points.n_params if quantity == N_OPT else points.n_tokens)[::step]
        marker = {"color": GREY, "size": 4, "opacity": 0.5}
        dots = go.Scatter(x=points.flops[::step], y=values, mode="markers", marker=marker, name="runs")
        hover = f"C %{{x:.3g}}<br>{letter} %{{y:.3g}}<extra>run</extra>"
        figure.add_trace(dots.update(legendgroup="runs", showlegend=column == 1, hovertemplate=hover), 1, column)
        shown = [float(values.min()), float(values.max())]
        for fit in results:
            shown += _law(figure, fit, quantity, column)
        figure.update_yaxes(log_axis(min(shown) / MARGIN, max(shown) * MARGIN, "", "count"), row=1, col=column)
        if last > high * (1 + 1e-9):
            figure.add_vrect(high, last * MARGIN, fillcolor=SHADE, line_width=0, layer="below", row=1, col=column)
    title = f"training FLOP C ({points.convention})"
    figure.update_xaxes(log_axis(float(points.flops.min()) / MARGIN, last * MARGIN, title, "flop"))
    dress(figure, WIDTH, 540, r=20, b=110)
    # as wide as the window, the names below
    figure.update_layout(width=None, legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"})
    return figure


def _law(figure: go.Figure, fit: Fit, quantity: str, column: int) -> list[float]:
    """Band, line and minima of one approach in one panel; the values that axes must hold."""
    rows = [row for row in rows_of(fit.curve, quantity) if fit.range[0] <= row[0] * SAME and fit.beyond(row[0]) <= FAR]
    if not rows:
        return []
    color, law = APPROACH_COLORS[fit.approach], DrawnLaw(rows, fit.range, fit.range[1], "")
    add_law(figure, 1, column, law, color, fit.approach, named=column == 1)
    minima = fit.isoflop.used if fit.isoflop else ()
    x, y = [at.c for at in minima], [at.n_params if quantity == N_OPT else at.n_tokens for at in minima]
    marker = {"color": color, "symbol": "diamond", "size": 9, "line": {"color": "white", "width": 1}}
    hover = "minimum of a budget<br>C %{x:.3g}<br>%{y:.3g}<extra></extra>"
    trace = go.Scatter(x=x, y=y, mode="markers", marker=marker, hovertemplate=hover)
    figure.add_trace(trace.update(legendgroup=fit.approach, showlegend=False), 1, column)
    values = [number for _, value, ends in rows for number in (value, *(ends or ()))]
    middle = sorted(values)[len(values) // 2]
    return [value for value in values if middle / 1e6 < value < middle * 1e6]  # an open interval is cut by the frame


def isoflop_figure(points: Points, result: Fit) -> go.Figure:
    """The losses of each budget over size, and the curves whose minima the laws go through: of the points that `result`
    was fitted to. Grey: points at no budget of three sizes; each curve is drawn over the sizes that it was fitted to; a
    budget without a minimum has none, and its name says so."""
    readings, minima = read_budgets(points), result.isoflop.minima if result.isoflop else ()
    shown = [(j, minimum) for j, minimum in enumerate(minima) if minimum.n_sizes >= LEAST_SIZES]
    colors = size_scale([str(j) for j, _ in shown])
    kept = np.isin(readings.budget, [j for j, _ in shown])
    rest = np.setdiff1d(np.arange(len(points)), readings.rows[kept])
    figure = go.Figure()
    if len(rest):
        name = f"at no such budget ({counted(len(rest), 'point')})"
        _dots(figure, points.n_params[rest], points.loss[rest], points.loss_unit, GREY, name, size=4, opacity=0.4)
    for j, minimum in shown:
        n, loss = np.exp(readings.log_n[readings.budget == j]), readings.loss[readings.budget == j]
        name = f"{power_of_ten(minimum.c)} FLOP" + ("" if minimum.reason is None else ": no minimum")
        _dots(figure, n, loss, points.loss_unit, colors[str(j)], name)
        if minimum.reason is None:
            _profile(figure, minimum, colors[str(j)])
    key = go.Scatter(x=[None], y=[None], mode="markers", marker=_minimum_mark(INK), name="minimum of the curve")
    figure.add_trace(key)
    sizes, losses = np.exp(readings.log_n[kept]), readings.loss[kept]
    figure.update_xaxes(**log_axis(sizes.min() / 1.2, sizes.max() * 1.2, "parameters N", "count"))
    room = 0.06 * float(np.ptp(losses))
    low, high = float(losses.min()) - room, float(losses.max()) + room
    figure.update_yaxes(title={"text": f"loss ({points.loss_unit})"}, range=[low, high])
    dress(figure, 900, 460, r=230)
    return figure


def profiles_figure(fits: StudyFits, tables: RunTable) -> go.Figure | None:
    """The isoFLOP profiles of a study, a panel for each group that has minima; None without any."""
    results = {fit.group: fit for fit in fits.laws if fit.isoflop is not None and fit.isoflop.used}
    if not results:
        return None
    points = prepare(replace(tables, settings=fits.settings), points=CURVES).groups
    panels = [isoflop_figure(points[group], result) for group, result in results.items()]
    figure, places, height = arch_panels(list(results))
    named = set[str]()
    for panel, place in zip(panels, places, strict=True):
        for trace in panel.data:
            first = trace.showlegend is not False and trace.name not in named
            named |= {trace.name} if first else set()
            trace.update(legendgroup=trace.name, showlegend=first)
            figure.add_trace(trace, **place)
    log_n, loss = ([end for panel in panels for end in panel.layout[axis].range] for axis in ("xaxis", "yaxis"))
    figure.update_xaxes(log_axis(10 ** min(log_n), 10 ** max(log_n), "parameters N", "count"))
    figure.update_yaxes(range=[min(loss), max(loss)])
    figure.update_yaxes(title_text=f"loss ({fits.unit})", col=1)
    dress(figure, WIDTH, height)
    return figure


def _dots(figure: go.Figure, n: np.ndarray, loss: np.ndarray, unit: str, color: str, name: str, **style: Any) -> None:
    hover = f"N %{{x:.3g}}<br>loss %{{y:.4g}} {unit}<extra>{name}</extra>"
    marker = {"color": color, "size": 7} | style
    figure.add_trace(go.Scatter(x=n, y=loss, mode="markers", marker=marker, name=name, hovertemplate=hover))


def _profile(figure: go.Figure, budget: Minimum, color: str) -> None:
    """The minimum, and the curve about it where one was fitted."""
    bare = {"showlegend": False, "hoverinfo": "skip"}
    n_params, lowest, reach = budget.n_params or math.nan, budget.loss or math.nan, budget.reach
    if budget.bend is not None and reach is not None:
        n = np.geomspace(reach[0], reach[1], 60)
        off = np.log(n) - math.log(n_params)
        loss = lowest * np.exp(budget.bend * (off**2 + (budget.asymmetry or 0.0) * off**3))
        figure.add_trace(go.Scatter(x=n, y=loss, mode="lines", line={"color": color, "width": 2}, **bare))
    figure.add_trace(go.Scatter(x=[n_params], y=[lowest], mode="markers", marker=_minimum_mark(color), **bare))


def _minimum_mark(color: str) -> dict[str, Any]:
    return {"color": color, "symbol": "diamond-open", "size": 13, "line": {"color": color, "width": 2}}
