"""Scores of tasks beside the loss and beside compute: a panel for each task, from fits.json only."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import GREY, dress, fade, legend_line
from analysis.report.figures import ROW_HEIGHT, WIDTH

COLUMNS = 3
Z95 = 1.959964  # standard errors to either side of a score
LOSS, FLOPS = "loss", "flops"
CURVES = {LOSS: "curve", FLOPS: "compute_curve"}


def tasks_figure(downstream: dict[str, Any]) -> go.Figure | None:
    """Every checkpoint's score beside its loss, with its link and band; better models are on the right. None where
    every law is withheld."""
    drawn = [one for one in downstream["tasks"] if any(arch["curve"] for arch in _fitted(one).values())]
    if not drawn:
        return None
    figure = _panels(downstream, drawn, LOSS)
    figure.update_xaxes(
        autorange="reversed", title_text=f"loss ({downstream['conventions']['unit_L']}), falling", title_standoff=6
    )
    return figure


def benchmarks_figure(downstream: dict[str, Any]) -> go.Figure | None:
    """The scores of each run's last checkpoint beside its compute, with their fit where there is one (figure 2 of the
    scaling-law paper); None without scores."""
    drawn = [one for one in downstream["tasks"] if any("points" in found for found in one["archs"].values())]
    if not drawn:
        return None
    last = [{**one, "archs": {arch: _last(found) for arch, found in one["archs"].items()}} for one in drawn]
    figure = _panels(downstream, last, FLOPS)
    points = [found["points"] for one in last for found in one["archs"].values() if "points" in found]
    c = [value for one in points for value in one["flops"]]
    what = f"training compute C (FLOP, {downstream['conventions']['C']})"
    figure.update_xaxes(log_axis(min(c) / 1.3, max(c) * 1.3, what, "flop"))
    return figure


def last_checkpoints(points: dict[str, list[Any]]) -> list[int]:
    """Which of an architecture's points are the last of their runs."""
    last: dict[str, int] = {}
    for i, name in enumerate(points["name"]):
        run = name.partition(" after ")[0]
        if run not in last or points["flops"][i] > points["flops"][last[run]]:
            last[run] = i
    return sorted(last.values())


def _last(found: dict[str, Any]) -> dict[str, Any]:
    if "points" not in found:
        return found
    kept = last_checkpoints(found["points"])
    return found | {"points": {key: [values[i] for i in kept] for key, values in found["points"].items()}}


def _panels(downstream: dict[str, Any], drawn: list[dict[str, Any]], against: str) -> go.Figure:
    archs = list(dict.fromkeys(arch for one in drawn for arch in one["archs"]))
    colors = arch_colors(archs)
    rows = -(-len(drawn) // COLUMNS)
    titles = [f"<b>{title(one)}</b>" for one in drawn]
    gap = {"horizontal_spacing": 0.07, "vertical_spacing": 84 / (ROW_HEIGHT * rows)}
    figure = make_subplots(rows, min(COLUMNS, len(drawn)), subplot_titles=titles, **gap)
    figure.update_annotations(font_size=13)
    hover = f"loss %{{x:.4g}} {downstream['conventions']['unit_L']}" if against == LOSS else "C %{x:.4g} FLOP"
    for index, one in enumerate(drawn):
        place = {"row": 1 + index // COLUMNS, "col": 1 + index % COLUMNS}
        for arch, found in one["archs"].items():
            if "points" in found:
                _add(figure, place, found, colors[arch], against, hover)
        if one["scale"]["kind"] == "accuracy" and one["scale"]["full"] == 1:  # in percent, as in the tables
            figure.update_yaxes(tickformat=".3~%", **place)
        if one["scale"]["kind"] == "accuracy" and one["scale"]["full"] == 1:  # in percent, as in the tables
            figure.update_yaxes(tickformat=".3~%", **place)
        chance = one["scale"]["chance"] * one["scale"]["full"]
        if chance:
            figure.add_hline(chance, line={"color": GREY, "dash": "dash", "width": 1.2}, **place)
        kind: dict[str, Any] = {"type": "log"} if one["scale"]["kind"] == "perplexity" else {}
        scores = [value for found in one["archs"].values() for value in found.get("points", {}).get("value", ())]
        if scores and not any(scores):  # plotly would centre them in an axis from -1 to 1
            kind = {"range": [-0.03 * one["scale"]["full"], one["scale"]["full"]]}
        figure.update_yaxes(title_text=one["metric"], title_standoff=4, **kind, **place)
    for arch in archs:
        figure.add_trace(legend_line(name_of(arch), colors[arch], "legend"), row=1, col=1)
    figure.update_layout(legend={"title": {"text": "architecture"}, "x": 1.01, "y": 1})
    dress(figure, WIDTH, ROW_HEIGHT * rows + 70)
    return figure


def title(one: dict[str, Any]) -> str:
    """Of a task, with its metric where it has several."""
    return f"{one['task']} ({one['metric']})"


def _fitted(one: dict[str, Any]) -> dict[str, Any]:
    return {arch: found for arch, found in one["archs"].items() if found.get("withheld") is None}


def _add(figure: go.Figure, place: dict[str, int], found: dict[str, Any], color: str, against: str, hover: str) -> None:
    points, curve = found["points"], found.get(CURVES[against])
    if curve and curve["low"]:
        known = [
            (x, low, high)
            for x, low, high in zip(curve[against], curve["low"], curve["high"], strict=True)
            if low is not None and high is not None
        ]
        x = [one[0] for one in known]
        y = [one[1] for one in known] + [one[2] for one in reversed(known)]
        fill = {"fill": "toself", "fillcolor": fade(color, 0.14), "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(go.Scatter(x=x + x[::-1], y=y, **fill, hoverinfo="skip", showlegend=False), **place)
    if curve:
        line = {"color": color, "width": 2.2}
        figure.add_trace(
            go.Scatter(x=curve[against], y=curve["value"], mode="lines", line=line, hoverinfo="skip", showlegend=False),
            **place,
        )
    trace = go.Scatter(
        x=points[against],
        y=points["value"],
        mode="markers",
        marker={"size": 5, "color": color if curve else "white", "line": {"color": color, "width": 1.2}},
        text=points["name"],
        showlegend=False,
        hovertemplate=f"%{{text}}<br>{hover}<br>score %{{y:.4g}}<extra></extra>",
    )
    if against == FLOPS and any(points["error"]):  # a score a run; of all checkpoints the bars would hide the links
        ends = [None if error is None else Z95 * error for error in points["error"]]
        trace.error_y = {"type": "data", "array": ends, "thickness": 0.8, "width": 2, "color": fade(color, 0.5)}
    figure.add_trace(trace, **place)
