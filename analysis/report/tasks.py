"""Scores of tasks beside the loss and beside compute: a panel for each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import GREY, dress, fade, legend_line
from analysis.fits.study_fits import StudyFits
from analysis.fits.task_fits import Curve, Score, TaskFit
from analysis.report.figures import ROW_HEIGHT, WIDTH
from analysis.scales import PERPLEXITY

COLUMNS = 3
Z95 = 1.959964  # standard errors to either side of a score


def tasks_figure(fits: StudyFits) -> go.Figure | None:
    """Every checkpoint's score beside its loss, with its law and band; better models are on the right. None where
    every law is withheld."""
    tasks = [task for task in fits.downstream.tasks if task.shown_laws] if fits.downstream else []
    if not tasks:
        return None
    figure, colors = _panels(tasks)
    for i, task in enumerate(tasks):
        for law in task.laws:
            if law.curve:
                _add_curve(figure, _place(i), law.curve, colors[law.arch])
            losses, hover = [score.loss for score in law.scores], f"loss %{{x:.4g}} {fits.unit}"
            marks = _marks(losses, law.scores, colors[law.arch], hover, filled=law.curve is not None)
            figure.add_trace(marks, **_place(i))
    figure.update_xaxes(autorange="reversed", title_text=f"loss ({fits.unit}), falling", title_standoff=6)
    return figure


def benchmarks_figure(fits: StudyFits) -> go.Figure | None:
    """The scores of each run's last checkpoint beside its compute (figure 2 of the scaling-law paper), with 95% error
    bars over questions; None without scores."""
    tasks = [task for task in fits.downstream.tasks if task.laws] if fits.downstream else []
    if not tasks:
        return None
    figure, colors = _panels(tasks)
    computes: list[float] = []
    for i, task in enumerate(tasks):
        for law in task.laws:
            last, color = law.last_scores, colors[law.arch]
            of_law = [score.flops for score in last]
            marks = _marks(of_law, last, color, "C %{x:.4g} FLOP", filled=False)
            if any(score.error for score in last):
                ends = [None if score.error is None else Z95 * score.error for score in last]
                marks.error_y = {"type": "data", "array": ends, "thickness": 0.8, "width": 2, "color": fade(color, 0.5)}
            figure.add_trace(marks, **_place(i))
            computes += of_law
    title = f"training compute C (FLOP, {fits.conventions['C']})"
    figure.update_xaxes(log_axis(min(computes) / 1.3, max(computes) * 1.3, title, "flop"))
    return figure


def in_percent(task: TaskFit) -> bool:
    """Whether tables and figures show the scores in percent: shares of right answers."""
    return task.scale.kind == "accuracy" and task.scale.full == 1


def _place(i: int) -> dict[str, int]:
    return {"row": 1 + i // COLUMNS, "col": 1 + i % COLUMNS}


def _panels(tasks: Sequence[TaskFit]) -> tuple[go.Figure, dict[str, str]]:
    """A figure with an empty panel for each task and a legend, and the colours of the architectures."""
    archs = list(dict.fromkeys(law.arch for task in tasks for law in task.laws))
    colors, rows = arch_colors(archs), -(-len(tasks) // COLUMNS)
    titles, columns = [f"<b>{task.title}</b>" for task in tasks], min(COLUMNS, len(tasks))
    gap = {"horizontal_spacing": 0.07, "vertical_spacing": 84 / (ROW_HEIGHT * rows)}
    figure = make_subplots(rows, columns, subplot_titles=titles, **gap)
    figure.update_annotations(font_size=13)
    for i, task in enumerate(tasks):
        scale, axis = task.scale, dict[str, Any]()
        if in_percent(task):
            axis["tickformat"] = ".3~%"
        if scale.kind == PERPLEXITY:
            axis["type"] = "log"
        elif not any(score.value for law in task.laws for score in law.scores):
            axis["range"] = [-0.03 * scale.full, scale.full]  # plotly would centre zeros in an axis from -1 to 1
        figure.update_yaxes(title_text=task.metric, title_standoff=4, **axis, **_place(i))
        if scale.chance:
            line = {"color": GREY, "dash": "dash", "width": 1.2}
            figure.add_hline(scale.chance * scale.full, line=line, **_place(i))
    for arch in archs:
        figure.add_trace(legend_line(name_of(arch), colors[arch], "legend"), row=1, col=1)
    figure.update_layout(legend={"title": {"text": "architecture"}, "x": 1.01, "y": 1})
    dress(figure, WIDTH, ROW_HEIGHT * rows + 70)
    return figure, colors


def _add_curve(figure: go.Figure, place: dict[str, int], curve: Curve, color: str) -> None:
    if curve.low:
        x, y = [*curve.loss, *curve.loss[::-1]], [*curve.low, *curve.high[::-1]]
        fill = {"fill": "toself", "fillcolor": fade(color, 0.14), "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(go.Scatter(x=x, y=y, **fill, hoverinfo="skip", showlegend=False), **place)
    line = {"color": color, "width": 2.2}
    drawn = go.Scatter(x=curve.loss, y=curve.value, mode="lines", line=line, hoverinfo="skip", showlegend=False)
    figure.add_trace(drawn, **place)


def _marks(x: Sequence[float], scores: Sequence[Score], color: str, hover: str, filled: bool) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=[score.value for score in scores],
        mode="markers",
        marker={"size": 5, "color": color if filled else "white", "line": {"color": color, "width": 1.2}},
        text=[score.name for score in scores],
        showlegend=False,
        hovertemplate=f"%{{text}}<br>{hover}<br>score %{{y:.4g}}<extra></extra>",
    )
