"""The page of a sweep: loss against rate with a panel for each architecture and length, the laws and every cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import GREY, dress, legend_line, size_scale
from analysis.pages.html import render
from arch.amounts import count
from data.files import write_bytes

from .cell import Cell, Fitted
from .fit import RatesFit
from .law import LEVEL
from .rows import cell_rows, law_rows, verdict

WIDTH, HEIGHT = 1040, 300  # pixels, of a row


def valleys(fit: RatesFit) -> go.Figure:
    """ln loss above each cell's lowest point, in percent, against the rate. A circle is a rate that the parabola is
    fitted to, a cross is a rate left out; the star is the best rate."""
    archs, groups = list(dict.fromkeys(cell.arch for cell in fit.cells)), _groups(fit.cells)
    rows = max(len(panels) for panels in groups.values())
    titles = [
        f"<b>{name_of(arch)}</b>, {groups[arch][row][0]}" if row < len(groups[arch]) else ""
        for row in range(rows)
        for arch in archs
    ]
    figure = make_subplots(rows, len(archs), subplot_titles=titles, shared_yaxes=True, vertical_spacing=0.24 / rows)
    sizes = {cell.size: cell.n_params for cell in fit.cells}
    colors = size_scale(sorted(sizes, key=lambda size: sizes[size]))
    for column, arch in enumerate(archs, start=1):
        for row, (_, cells) in enumerate(groups[arch], start=1):
            for cell in cells:
                for trace in _traces(cell, colors[cell.size]):
                    figure.add_trace(trace, row=row, col=column)
    rates = [rate for cell in fit.cells for rate in cell.rates]
    figure.update_xaxes(**log_axis(min(rates) / 1.15, max(rates) * 1.15, ""))
    for column in range(1, len(archs) + 1):
        figure.update_xaxes(title_text="learning rate", row=rows, col=column)
    figure.update_yaxes(range=[-0.5, 10], ticksuffix=" %")
    figure.update_yaxes(title_text="loss above the lowest", col=1)
    for size, color in colors.items():
        figure.add_trace(legend_line(f"{size} ({count(sizes[size])})", color, "legend"))
    dress(figure, WIDTH, HEIGHT * rows + 80)
    return figure


def _groups(cells: Sequence[Cell]) -> dict[str, list[tuple[str, list[Cell]]]]:
    """{arch: [(what its cells share, cells)]}: a group for each batch and rank of the length among those of a size."""
    panels: dict[str, list[tuple[str, list[Cell]]]] = {}
    for arch in dict.fromkeys(cell.arch for cell in cells):
        of_arch = [cell for cell in cells if cell.arch == arch]
        batches = sorted({cell.batch_tokens for cell in of_arch})
        groups: dict[tuple[int, int], list[Cell]] = {}
        for size in dict.fromkeys(cell.size for cell in of_arch):
            for batch in batches:
                alike = [cell for cell in of_arch if cell.size == size and cell.batch_tokens == batch]
                for place, cell in enumerate(sorted(alike, key=lambda cell: cell.n_tokens)):
                    groups.setdefault((batch, place), []).append(cell)
        panels[arch] = [(_shared(alike, len(batches) > 1), alike) for _, alike in sorted(groups.items())]
    return panels


def _shared(cells: Sequence[Cell], with_batch: bool) -> str:
    ratios = sorted(cell.n_tokens / cell.n_params for cell in cells)
    text = f"{ratios[0]:.3g}" if ratios[-1] < 1.05 * ratios[0] else f"{ratios[0]:.3g} to {ratios[-1]:.3g}"
    return f"{text} tokens a parameter" + (f", batch {cells[0].batch_tokens:,}" if with_batch else "")


def _traces(cell: Cell, color: str) -> list[go.Scatter]:
    tried = [
        (rate, loss, used) for rate, loss, used in zip(cell.rates, cell.losses, cell.used, strict=True) if loss == loss
    ]
    if not tried:
        return []
    fitted, bottom = cell.fitted, min(math.log(loss) for _, loss, _ in tried)
    if fitted is not None:
        bottom = _level(cell, fitted)
    name = f"{cell.size}, {count(cell.n_tokens)} tokens"
    points = go.Scatter(
        x=[rate for rate, _, _ in tried],
        y=[100 * math.expm1(math.log(loss) - bottom) for _, loss, _ in tried],
        mode="markers",
        marker={"color": color, "size": 7, "symbol": ["circle" if used else "x" for _, _, used in tried]},
        name=name,
        showlegend=False,
    )
    if fitted is None:
        return [points]
    used = [rate for rate, _, taken in tried if taken]
    x = np.linspace(math.log(min(used)), math.log(max(used)), 60)
    off = x - fitted.log_rate
    curve = 100 * np.expm1(fitted.curvature * off**2 + fitted.cubic * off**3)
    line = {"color": color, "width": 1.6}
    drawn = go.Scatter(x=np.exp(x), y=curve, mode="lines", line=line, name=name, showlegend=False, hoverinfo="skip")
    star = go.Scatter(
        x=[math.exp(fitted.log_rate)],
        y=[0],
        mode="markers",
        marker={"color": color, "size": 12, "symbol": "star", "line": {"color": "white", "width": 1}},
        name=f"{name}: best",
        showlegend=False,
    )
    return [points, drawn, star]


def _level(cell: Cell, fitted: Fitted) -> float:
    """ln loss at the lowest point of the curve: the mean over the rates that it is fitted to, less the curve."""
    levels = []
    for rate, loss, used in zip(cell.rates, cell.losses, cell.used, strict=True):
        if used:
            off = math.log(rate) - fitted.log_rate
            levels.append(math.log(loss) - fitted.curvature * off**2 - fitted.cubic * off**3)
    return float(np.mean(levels))


def laws(fit: RatesFit) -> go.Figure:
    """Best rates against N at each cell's own tokens and batch, with a standard error; the lines are the laws at the
    fewest and the most tokens a parameter that were swept."""
    colors = arch_colors(list(fit.laws))
    figure = go.Figure()
    for arch, law in fit.laws.items():
        cells = [cell for cell in fit.cells if cell.arch == arch and cell.fitted is not None]
        assert fit.noise is not None
        best = [cell.fitted for cell in cells if cell.fitted is not None]
        rates = [math.exp(fitted.log_rate) for fitted in best]
        factor = [math.exp(fit.noise.sd * fitted.unit_se) for fitted in best]
        figure.add_trace(
            go.Scatter(
                x=[cell.n_params for cell in cells],
                y=rates,
                error_y={
                    "array": [rate * (times - 1) for rate, times in zip(rates, factor, strict=True)],
                    "arrayminus": [rate * (1 - 1 / times) for rate, times in zip(rates, factor, strict=True)],
                    "thickness": 1,
                },
                mode="markers",
                marker={"color": colors[arch], "size": 7},
                name=name_of(arch),
                text=[f"{cell.size}, {count(cell.n_tokens)} tokens" for cell in cells],
            )
        )
        ratios = sorted({cell.n_tokens / cell.n_params for cell in cells})
        batch = law.ranges["batch_tokens"][0]
        low, high = law.ranges["n_params"]
        n = np.geomspace(low / 1.3, high * 1.3, 40)
        for ratio, dash in ((ratios[0], "solid"), (ratios[-1], "dot")):
            line = {"color": colors[arch], "width": 1.8, "dash": dash}
            y = [law.at(n_params, ratio * n_params, batch).rate for n_params in n]
            figure.add_trace(go.Scatter(x=n, y=y, mode="lines", line=line, showlegend=False, hoverinfo="skip"))
    figure.add_trace(legend_line("fewest tokens a parameter", GREY, "legend", 1.8))
    figure.add_trace(legend_line("most", GREY, "legend", 1.8).update(line_dash="dot"))
    dress(figure, 760, 420)
    figure.update_xaxes(type="log", title_text="parameters without embeddings N")
    figure.update_yaxes(type="log", title_text="best learning rate")
    return figure


TEMPLATE = Path(__file__).with_name("rates.html.j2")


def write_page(fit: RatesFit, name: str, directory: Path) -> Path:
    """Write <directory>/index.html. Returns its path."""
    page = render(
        TEMPLATE,
        figures=True,
        name=name,
        verdict=verdict(fit),
        valleys=valleys(fit),
        laws=law_rows(fit),
        level=LEVEL,
        lines=laws(fit) if fit.laws else None,
        cells=cell_rows(fit),
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "index.html"
    write_bytes(path, page.encode(), kind="results")
    return path
