"""N_opt and D_opt over compute by every approach, with intervals, over the runs that they were fitted to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis
from analysis.figures.palette import APPROACH_COLORS
from analysis.figures.style import GREY, SHADE, dress, fade
from analysis.fits.fit import D_OPT, FAR, N_OPT, Fit, Optimum
from analysis.fits.points import Points

WIDTH, HEIGHT = 1320, 540
PANELS = ((N_OPT, "N", "N<sub>opt</sub>: parameters"), (D_OPT, "D", "D<sub>opt</sub>: tokens"))
MOST_DRAWN = 1500  # points of runs; more are thinned
MARGIN = 1.4  # factor around what is drawn


def optimum_figure(points: Points, results: Sequence[Fit]) -> go.Figure:
    """Of one group; `results` with `Fit.curve` (Options.curve). Laws are drawn solid inside the compute that
    they were fitted to, dotted beyond; from FAR times on not at all."""
    figure = make_subplots(1, 2, subplot_titles=[f"<b>{name}</b>" for *_, name in PANELS], horizontal_spacing=0.09)
    step = max(1, len(points) // MOST_DRAWN)
    for column, (quantity, letter, _) in enumerate(PANELS, 1):
        values = (points.n_params if quantity == N_OPT else points.n_tokens)[::step]
        hover = "C %{x:.3g}<br>" + letter + " %{y:.3g}<extra>run</extra>"
        marker = {"color": GREY, "size": 4, "opacity": 0.5}
        figure.add_trace(
            go.Scatter(
                x=points.flops[::step], y=values, mode="markers", marker=marker, hovertemplate=hover,
                name="runs", legendgroup="runs", showlegend=column == 1,
            ), 1, column,
        )  # fmt: skip
        seen = [float(values.min()), float(values.max())]
        for one in results:
            seen += _law(figure, one, quantity, letter, column)
        figure.update_yaxes(log_axis(min(seen) / MARGIN, max(seen) * MARGIN, "", "count"), row=1, col=column)
    last = max([float(points.flops.max()), *(at.flops for one in results for at in _near(one))])
    low, high = float(points.flops.min()) / MARGIN, float(points.flops.max())
    axis = log_axis(low, last * MARGIN, f"training FLOP C ({points.convention})", "flop")
    figure.update_xaxes(axis)
    if last > high * (1 + 1e-9):
        for column in (1, 2):
            figure.add_vrect(high, last * MARGIN, fillcolor=SHADE, line_width=0, layer="below", row=1, col=column)
    dress(figure, WIDTH, HEIGHT, r=20, b=110)
    # as wide as the window, the names below
    figure.update_layout(width=None, legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"})
    return figure


def _near(result: Fit) -> list[Optimum]:
    return [at for at in result.curve if result.beyond(at.flops) <= FAR]


def _law(figure: go.Figure, result: Fit, quantity: str, letter: str, column: int) -> list[float]:
    """Band, line and minima of one approach in one panel; the values that axes must hold."""
    rows = [(at.flops, value, at.of(quantity).interval) for at in _near(result) if (value := at.of(quantity).value)]
    if not rows:
        return []
    color, name = APPROACH_COLORS[result.approach], result.approach
    known = [(c, *pair) for c, _, pair in rows if pair is not None and min(pair) > 0 and all(map(math.isfinite, pair))]
    if known:
        c, low, high = (list(part) for part in zip(*known, strict=True))
        band = {"fill": "toself", "fillcolor": fade(color, 0.16), "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(
            go.Scatter(x=c + c[::-1], y=low + high[::-1], **band, hoverinfo="skip", showlegend=False, legendgroup=name),
            1, column,
        )  # fmt: skip
    inside = [row for row in rows if result.beyond(row[0]) <= 1.0]
    below = [row for row in rows if row[0] <= (inside[0][0] if inside else result.range[0])]
    above = [row for row in rows if row[0] >= (inside[-1][0] if inside else result.range[1])]
    hover = f"{name}<br>C %{{x:.3g}}<br>{letter} %{{y:.3g}}<extra></extra>"
    for part, dash, shown in ((inside or rows, "solid", True), (below, "dot", False), (above, "dot", False)):
        line = {"color": color, "width": 2.4, "dash": dash}
        x, y = [row[0] for row in part], [row[1] for row in part]
        trace = go.Scatter(x=x, y=y, mode="lines", line=line, name=name, legendgroup=name, hovertemplate=hover)
        figure.add_trace(trace.update(showlegend=shown and column == 1), 1, column)
    used = result.isoflop.used if result.isoflop else ()
    minima = [(one.c, one.n_params if quantity == N_OPT else one.n_tokens) for one in used]
    if minima:
        x, y = (list(part) for part in zip(*minima, strict=True))
        marker = {"color": color, "symbol": "diamond", "size": 9, "line": {"color": "white", "width": 1}}
        trace = go.Scatter(x=x, y=y, mode="markers", marker=marker, name="minima of budgets", hovertemplate=hover)
        figure.add_trace(trace.update(legendgroup=name, showlegend=column == 1), 1, column)
    values = [row[1] for row in rows] + [end for _, low, high in known for end in (low, high)]
    middle = sorted(values)[len(values) // 2]
    return [value for value in values if middle / 1e6 < value < middle * 1e6]  # an open interval is cut by the frame
