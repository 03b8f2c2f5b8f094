"""Pictures of `extrapolate`: perplexity against context length and loss by position, hatched beyond the training."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from analysis.figures.axes import kibi, log_axis
from analysis.figures.palette import DASHES
from analysis.figures.style import arch_panels, dress, size_scale
from analysis.labels import SEPARATOR, group_of
from analysis.runs import RUN_ID
from scaling.study.model_section import model_changes
from scaling.study.training import Training

from .results import Result, newest_of_each_run

NOTE = "Perplexity by context length; every length is evaluated on the same tokens. *: longer than the training length."
COLUMNS, PANEL, MAX_TICKS = 4, 310, 6
FAINT = 0.4  # opacity of further seeds
LENGTH = re.compile(r"d\d[^-]*|n_tokens[^-]*")  # endings of runs that differ in how long they trained
HATCH = {"shape": "/", "fgcolor": "rgba(120,120,120,0.28)", "bgcolor": "rgba(0,0,0,0)", "size": 9, "solidity": 0.12}


def table(results: Sequence[Result]) -> list[dict[str, str]]:
    """Rows as in HGRN's table 14, with a column for the perplexities of each run's newest checkpoint: a row for each
    context length, then the mean over lengths and the number of tokens that every length scored. A star marks contexts
    beyond the run's training length."""
    newest = newest_of_each_run(results)
    cells: dict[int, dict[str, str]] = {}
    for result in newest:
        for row in result.values["by_length"]:
            mark = "*" if row["extrapolated"] else ""
            cells.setdefault(row["length"], {})[result.run_id] = _number(row["perplexity"]) + mark
    runs = [result.run_id for result in newest]
    rows = [
        {"context length": f"{length:,}", **{run: cells[length].get(run, "-") for run in runs}}
        for length in sorted(cells)
    ]
    means = {result.run_id: _number(result.values["perplexity_avg"]) for result in newest}
    counts = {result.run_id: f"{result.values['by_length'][0]['n_tokens_scored']:,}" for result in newest}
    return [*rows, {"context length": "avg", **means}, {"context length": "tokens scored", **counts}]


def _number(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.2f}" if value < 1e5 else f"{value:.2e}"


def figures(results: Sequence[Result], unit: str) -> dict[str, go.Figure]:
    """The figures by file name, losses in `unit`: a panel for each architecture at each point of the grid's axes, a
    line for each run's newest checkpoint, coloured by size."""
    newest = newest_of_each_run(results)
    figures = {
        "extrapolate": _figure(
            newest,
            lambda values: [(row["length"], row["perplexity"]) for row in values["by_length"] if row["perplexity"]],
            "context length (tokens)",
            "perplexity",
        ),
        "extrapolate_positions": _figure(
            newest,
            lambda values: [
                (math.sqrt(row["first"] * row["last"]), row["loss"]) for row in values["by_position"] if row["loss"]
            ],
            "tokens read before",
            f"loss ({unit})",
            log_y=False,
        ),
    }
    lengths = sorted({row["length"] for result in newest for row in result.values["by_length"]})
    shown = lengths[:: -(-len(lengths) // MAX_TICKS)]
    figures["extrapolate"].update_xaxes(tickvals=shown, ticktext=[kibi(length) for length in shown])
    return figures


def _figure(
    newest: Sequence[Result],
    points: Callable[[Mapping[str, Any]], list[tuple[float, float]]],
    x_title: str,
    y_title: str,
    log_y: bool = True,
) -> go.Figure:
    named = [(RUN_ID.match(result.run_id), result) for result in newest]
    trained_on = {(_arch(match, result), result.values["context_length"]) for match, result in named}
    several = len(trained_on) > len({arch for arch, _ in trained_on})  # a study that varies it: a panel for each

    def panel(match: Any, result: Result) -> str:
        point = [f"context_length={result.values['context_length']}"] if several else []
        return group_of(_arch(match, result), SEPARATOR.join([*point, *_endings(match, result)[0]]))

    archs = list(dict.fromkeys(panel(match, result) for match, result in named))
    styles = _styles(newest)
    figure, rows, columns = arch_panels(archs, COLUMNS, 90 / PANEL)
    lines = [(match, result, points(result.values)) for match, result in named]
    xs = [x for _, _, line in lines for x, _ in line] or [1, 2]
    ys = [y for _, _, line in lines for _, y in line] or [1, 2]
    low, high = min(ys) / 1.05, max(ys) * 1.05
    figure.update_xaxes(log_axis(min(xs) / 1.2, max(xs) * 1.2, x_title, "count"))
    figure.update_yaxes(log_axis(low, high, "") if log_y else {"range": [low, high]})
    figure.update_yaxes(title_text=y_title, col=1)
    for match, result, line in lines:
        index = archs.index(panel(match, result))
        place = {"row": 1 + index // columns, "col": 1 + index % columns}
        trained = result.values["context_length"]
        if result is next(r for m, r in named if panel(m, r) == archs[index]):
            figure.add_trace(_hatched(trained, max(xs) * 1.2, low, high), **place)
            figure.add_vline(trained, line={"dash": "dash", "width": 1.2, "color": "#666666"}, **place)
        trace = go.Scatter(
            x=[x for x, _ in line],
            y=[y for _, y in line],
            mode="lines+markers",
            name=result.run_id,
            **styles[result.run_id],
            marker={"size": 5},
            hovertemplate=f"{result.run_id}, step {result.step}<br>%{{x:.0f}} tokens: %{{y:.4g}}<extra></extra>",
        )
        figure.add_trace(trace, **place)
    dress(figure, max(560, 330 * columns + 240), PANEL * rows + 90, r=210)
    legend = "hatched: longer than the training length"
    if any(style["opacity"] < 1 for style in styles.values()):
        legend += "<br>fainter: further seeds"
    figure.update_layout(legend={"title": {"text": legend}, "x": 1.01, "y": 1, "font": {"size": 11}})
    figure.update_annotations(font_size=13)
    return figure


def _hatched(start: float, end: float, low: float, high: float) -> go.Scatter:
    return go.Scatter(
        x=[start, end, end, start, start],
        y=[low, low, high, high, low],
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillpattern=HATCH,
        hoverinfo="skip",
        showlegend=False,
    )


def _arch(match: Any, result: Result) -> str:
    return str(match[1]) if match else str(result.run_id)


def _endings(match: Any, result: Result) -> tuple[list[str], list[str]]:
    """From the end of a run's name, after its seed: its point of the axes, -lr0.001 as lr=0.001, and its length."""
    name = result.run_id[match.end() :] if match else ""
    endings = [ending for ending in name.split("-") if ending]
    length = [ending for ending in endings if LENGTH.fullmatch(ending)]
    return [_written_out(ending) for ending in endings if ending not in length], length


def _written_out(ending: str) -> str:
    fields = [name for name in (*Training.model_fields, *model_changes().model_fields) if ending.startswith(name)]
    field = max(fields, key=len, default="")
    return f"{field}={ending.removeprefix(field)}" if field else ending


def _styles(newest: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """By run: a colour for each size in all panels, in the study's order; a dash for each length; further seeds
    fainter."""
    known = {}
    for result in newest:
        match = RUN_ID.match(result.run_id)
        length = "-".join(_endings(match, result)[1])
        known[result.run_id] = (match[2], int(match[3]), length) if match else ("", 0, "")
    colors = size_scale(list(dict.fromkeys(size for size, _, _ in known.values())))
    lengths = list(dict.fromkeys(length for _, _, length in known.values()))
    first = min((seed for _, seed, _ in known.values()), default=0)
    return {
        run: {
            "line": {"color": colors[size], "dash": DASHES[lengths.index(length) % len(DASHES)], "width": 1.7},
            "opacity": 1.0 if seed == first else FAINT,
        }
        for run, (size, seed, length) in known.items()
    }
