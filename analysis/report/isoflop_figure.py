"""IsoFLOP profiles: the losses of each budget over size, and the parabolas whose minima the laws go through."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.figures.axes import log_axis, power_of_ten
from analysis.figures.style import GREY, dress, size_scale
from analysis.fits.isoflop.budgets import LEAST_SIZES, read_budgets
from analysis.fits.isoflop.minimum import FLAT
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from arch.amounts import counted

WIDTH, HEIGHT = 900, 460
MARGIN, ROOM = 1.2, 0.06  # around the sizes, as a factor, and around the losses, as a share of their span


def isoflop_figure(points: Points, result: FitResult) -> go.Figure:
    """Of the points that `result` was fitted to by parabolas, under budgets that it found itself. Grey: points at no
    budget of three sizes; a budget without a minimum inside its sizes has no parabola, and its name says so."""
    readings = read_budgets(points)
    shown = [(j, one) for j, one in enumerate(result.diagnostics["budgets"]) if one["n_sizes"] >= LEAST_SIZES]
    colors = size_scale([str(j) for j, _ in shown])
    kept = np.isin(readings.budget, [j for j, _ in shown])
    rest = np.setdiff1d(np.arange(len(points)), readings.rows[kept])
    figure = go.Figure()
    told = f"at no such budget ({counted(len(rest), 'point')})"
    _dots(figure, points.n_params[rest], points.loss[rest], points.loss_unit, GREY, told, size=4, opacity=0.4)
    for j, one in shown:
        n, loss = np.exp(readings.log_n[readings.budget == j]), readings.loss[readings.budget == j]
        name = f"{power_of_ten(one['c'])} FLOP" + ("" if one["reason"] is None else ": no minimum")
        _dots(figure, n, loss, points.loss_unit, colors[str(j)], name)
        if one["reason"] is None:
            _parabola(figure, n, one, colors[str(j)])
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


def _parabola(figure: go.Figure, sizes: np.ndarray, budget: dict[str, Any], color: str) -> None:
    """Through the minimum, and at both ends of `flat` FLAT of the loss above it."""
    low, high = map(math.log, budget["flat"])
    n = np.geomspace(sizes.min(), sizes.max(), 60)
    off = (np.log(n) - math.log(budget["n_params"])) / ((high - low) / 2)
    loss = budget["loss"] * (1 + FLAT * off**2)
    bare = {"showlegend": False, "hoverinfo": "skip"}
    figure.add_trace(go.Scatter(x=n, y=loss, mode="lines", line={"color": color, "width": 2}, **bare))
    marker = {"color": color, "symbol": "diamond", "size": 13, "line": {"color": "white", "width": 1.5}}
    lowest = {"x": [budget["n_params"]], "y": [budget["loss"]]}
    figure.add_trace(go.Scatter(**lowest, mode="markers", marker=marker, **bare))
