"""Scores of tasks beside the loss: a panel for each task that any architecture has a law of, from fits.json only."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import dress, fade, legend_line
from analysis.report.figures import ROW_HEIGHT, WIDTH

COLUMNS = 3


def tasks_figure(downstream: dict[str, Any]) -> go.Figure | None:
    """Points by architecture, link with its band; None where every law is withheld. Better models are on the right."""
    drawn = [one for one in downstream["tasks"] if any(arch["curve"] for arch in _fitted(one).values())]
    if not drawn:
        return None
    archs = list(dict.fromkeys(arch for one in drawn for arch in one["archs"]))
    colors = arch_colors(archs)
    rows = -(-len(drawn) // COLUMNS)
    titles = [f"<b>{title(one)}</b>" for one in drawn]
    gap = {"horizontal_spacing": 0.07, "vertical_spacing": 84 / (ROW_HEIGHT * rows)}
    figure = make_subplots(rows, min(COLUMNS, len(drawn)), subplot_titles=titles, **gap)
    figure.update_annotations(font_size=13)
    for index, one in enumerate(drawn):
        place = {"row": 1 + index // COLUMNS, "col": 1 + index % COLUMNS}
        for arch, found in one["archs"].items():
            if "points" in found:
                _add(figure, place, arch, found, colors[arch])
        chance = one["scale"]["chance"] * one["scale"]["full"]
        if chance:
            figure.add_hline(chance, line={"color": "#8a8a8a", "dash": "dash", "width": 1.2}, **place)
        kind = {"type": "log"} if one["scale"]["kind"] == "perplexity" else {}
        figure.update_yaxes(title_text=one["metric"], title_standoff=4, **kind, **place)
    for arch in archs:
        figure.add_trace(legend_line(name_of(arch), colors[arch], "legend"), row=1, col=1)
    figure.update_xaxes(autorange="reversed", title_text="loss (nats/token), falling", title_standoff=6)
    figure.update_layout(legend={"title": {"text": "architecture"}, "x": 1.01, "y": 1})
    dress(figure, WIDTH, ROW_HEIGHT * rows + 70)
    return figure


def title(one: dict[str, Any]) -> str:
    """Of a task, with its metric where it has several."""
    return f"{one['task']} ({one['metric']})"


def _fitted(one: dict[str, Any]) -> dict[str, Any]:
    return {arch: found for arch, found in one["archs"].items() if found.get("withheld") is None}


def _add(figure: go.Figure, place: dict[str, int], arch: str, found: dict[str, Any], color: str) -> None:
    points, curve = found["points"], found["curve"]
    if curve and curve["low"]:
        known = [
            (x, low, high)
            for x, low, high in zip(curve["loss"], curve["low"], curve["high"], strict=True)
            if low is not None and high is not None
        ]
        x = [one[0] for one in known]
        y = [one[1] for one in known] + [one[2] for one in reversed(known)]
        fill = {"fill": "toself", "fillcolor": fade(color, 0.14), "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(go.Scatter(x=x + x[::-1], y=y, **fill, hoverinfo="skip", showlegend=False), **place)
    if curve:
        line = {"color": color, "width": 2.2}
        figure.add_trace(
            go.Scatter(x=curve["loss"], y=curve["value"], mode="lines", line=line, hoverinfo="skip", showlegend=False),
            **place,
        )
    trace = go.Scatter(
        x=points["loss"],
        y=points["value"],
        mode="markers",
        marker={"size": 5, "color": color if curve else "white", "line": {"color": color, "width": 1.2}},
        text=points["name"],
        showlegend=False,
        hovertemplate="%{text}<br>loss %{x:.4f}<br>score %{y:.4g}<extra></extra>",
    )
    figure.add_trace(trace, **place)
