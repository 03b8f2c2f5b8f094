"""IsoFLOP profiles: the losses of each budget over size, and the curves whose minima the laws go through."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.figures.axes import log_axis, power_of_ten
from analysis.figures.style import GREY, dress, size_scale
from analysis.fits.budgets import LEAST_SIZES, read_budgets
from analysis.fits.fit import Fit, Minimum
from analysis.fits.points import Points
from arch.amounts import counted

WIDTH, HEIGHT = 900, 460
MARGIN, ROOM = 1.2, 0.06  # around the sizes, as a factor, and around the losses, as a share of their span


def isoflop_figure(points: Points, result: Fit) -> go.Figure:
    """Of the points that `result` was fitted to, under budgets that it found itself. Grey: points at no budget of three
    sizes; each curve is drawn over the sizes that it was fitted to; a budget without a minimum has none, and its name
    says so."""
    readings, minima = read_budgets(points), result.isoflop.minima if result.isoflop else ()
    shown = [(j, one) for j, one in enumerate(minima) if one.n_sizes >= LEAST_SIZES]
    colors = size_scale([str(j) for j, _ in shown])
    kept = np.isin(readings.budget, [j for j, _ in shown])
    rest = np.setdiff1d(np.arange(len(points)), readings.rows[kept])
    figure = go.Figure()
    told = f"at no such budget ({counted(len(rest), 'point')})"
    _dots(figure, points.n_params[rest], points.loss[rest], points.loss_unit, GREY, told, size=4, opacity=0.4)
    for j, one in shown:
        n, loss = np.exp(readings.log_n[readings.budget == j]), readings.loss[readings.budget == j]
        name = f"{power_of_ten(one.c)} FLOP" + ("" if one.reason is None else ": no minimum")
        _dots(figure, n, loss, points.loss_unit, colors[str(j)], name)
        if one.reason is None:
            _curve(figure, one, colors[str(j)])
    sizes, losses = np.exp(readings.log_n[kept]), readings.loss[kept]
    figure.update_xaxes(**log_axis(sizes.min() / MARGIN, sizes.max() * MARGIN, "parameters N", "count"))
    room = ROOM * float(np.ptp(losses))
    low, high = float(losses.min()) - room, float(losses.max()) + room
    figure.update_yaxes(title={"text": f"loss ({points.loss_unit})"}, range=[low, high])
    dress(figure, WIDTH, HEIGHT, r=230)
    return figure


def _dots(figure: go.Figure, n: np.ndarray, loss: np.ndarray, unit: str, color: str, name: str, **style: Any) -> None:
    hover = f"N %{{x:.3g}}<br>loss %{{y:.4g}} {unit}<extra>{name}</extra>"
    marker = {"color": color, "size": 7} | style
    figure.add_trace(go.Scatter(x=n, y=loss, mode="markers", marker=marker, name=name, hovertemplate=hover))


def _curve(figure: go.Figure, budget: Minimum, color: str) -> None:
    """The minimum, and the curve about it where one was fitted."""
    bare = {"showlegend": False, "hoverinfo": "skip"}
    n_params, lowest, reach = budget.n_params or math.nan, budget.loss or math.nan, budget.reach
    if budget.bend is not None and reach is not None:
        n = np.geomspace(reach[0], reach[1], 60)
        off = np.log(n) - math.log(n_params)
        loss = lowest * np.exp(budget.bend * (off**2 + (budget.asymmetry or 0.0) * off**3))
        figure.add_trace(go.Scatter(x=n, y=loss, mode="lines", line={"color": color, "width": 2}, **bare))
    marker = {"color": color, "symbol": "diamond", "size": 13, "line": {"color": "white", "width": 1.5}}
    figure.add_trace(go.Scatter(x=[n_params], y=[lowest], mode="markers", marker=marker, **bare))
