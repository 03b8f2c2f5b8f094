"""A fitted surface beside those of papers: its draws, and by how much each surface misses the points."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis
from analysis.figures.palette import SPARE_COLORS
from analysis.figures.style import GREY, dress
from analysis.fits.parametric import ParametricFit
from analysis.fits.points import Points
from analysis.fits.published_surfaces import PRINTED, misses
from analysis.fits.surface import Surface

COLOR = "#0072b2"  # of the fit
SYMBOLS = ("diamond", "square", "triangle-up", "x")
PANELS = (("alpha", "beta"), ("E", "a"))
LABELS = {"alpha": "alpha", "beta": "beta", "E": "E", "a": "a = beta / (alpha + beta)"}
MOST_DRAWS = 2000


def draws_figure(fit: ParametricFit, printed: Mapping[str, Surface] | None = None) -> go.Figure:
    """The draws of a fit (without them: the fit alone), beta over alpha and a over E, and the surfaces of papers."""
    printed = _printed(printed)
    figure = make_subplots(1, 2, horizontal_spacing=0.11)
    for column, (x, y) in enumerate(PANELS, 1):
        first = column == 1
        if fit.draws is not None:
            drawn = fit.draws.surface
            cloud = {"x": np.asarray(getattr(drawn, x))[:MOST_DRAWS], "y": np.asarray(getattr(drawn, y))[:MOST_DRAWS]}
            marker = {"color": COLOR, "size": 3, "opacity": 0.3}
            figure.add_trace(
                go.Scatter(**cloud, mode="markers", marker=marker, name="draws of this fit", showlegend=first),
                1,
                column,
            )
        marks = {"this fit": fit.surface} | dict(printed)
        for i, (name, surface) in enumerate(marks.items()):
            color = COLOR if i == 0 else SPARE_COLORS[(i - 1) % len(SPARE_COLORS)]
            symbol = "circle" if i == 0 else SYMBOLS[(i - 1) % len(SYMBOLS)]
            marker = {"color": color, "symbol": symbol, "size": 12, "line": {"color": "white", "width": 1.5}}
            at = {"x": [getattr(surface, x)], "y": [getattr(surface, y)]}
            figure.add_trace(go.Scatter(**at, mode="markers", marker=marker, name=name, showlegend=first), 1, column)
        figure.update_xaxes(title={"text": LABELS[x]}, row=1, col=column)
        figure.update_yaxes(title={"text": LABELS[y]}, row=1, col=column)
    dress(figure, 1100, 440, r=240)
    return figure


def misses_figure(fit: ParametricFit, printed: Mapping[str, Surface] | None = None) -> go.Figure:
    """By how much the points lie above each surface, in percent of the loss, over compute: a panel a surface, with the
    mean of the points as a line."""
    surfaces = {"this fit": fit.surface} | dict(_printed(printed))
    points = fit.points
    off = {name: 100 * np.expm1(misses(points, surface)) for name, surface in surfaces.items()}
    titles = [f"<b>{name}</b><br>mean {float(one.mean()):+.2f}%" for name, one in off.items()]
    figure = make_subplots(1, len(surfaces), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.02)
    figure.update_annotations(font_size=12)
    for column, one in enumerate(off.values(), 1):
        _panel(figure, column, points, one)
    ends = float(points.flops.min()) / 1.3, float(points.flops.max()) * 1.3
    figure.update_xaxes(**log_axis(*ends, f"C (FLOP, {points.convention})", "flop"))
    figure.update_yaxes(title={"text": "loss above the surface (%)"}, row=1, col=1)
    dress(figure, 1200, 360, r=20)
    return figure


def _panel(figure: go.Figure, column: int, points: Points, off: np.ndarray) -> None:
    marker = {"color": GREY, "size": 4, "opacity": 0.6}
    hover = "C %{x:.3g}<br>%{y:.2f}%<extra></extra>"
    dots = go.Scatter(x=points.flops, y=off, mode="markers", marker=marker, hovertemplate=hover, showlegend=False)
    figure.add_trace(dots, 1, column)
    figure.add_hline(0.0, line={"color": GREY, "width": 1.3, "dash": "dash"}, row=1, col=column)
    figure.add_hline(float(off.mean()), line={"color": COLOR, "width": 2}, row=1, col=column)


def _printed(printed: Mapping[str, Surface] | None) -> Mapping[str, Surface]:
    return {name: one.surface for name, one in PRINTED.items()} if printed is None else printed
