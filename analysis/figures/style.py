"""How all figures look: inks, frames, a panel for each architecture, one colour scale for sizes, lines of legends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from analysis.figures.palette import name_of

INK, GREY, SHADE = "#222222", "#8a8a8a", "rgba(120,120,120,0.09)"
FRAME, GRID = "#bbbbbb", "#eeeeee"
FONT = "Helvetica, Arial, sans-serif"
WIDTH, ROW_HEIGHT, GAP = 1320, 330, 84  # pixels of a page's figure, of a row of its panels, and between two rows
PANELS_A_ROW = 4  # of architectures
WIDE = 24  # characters of a panel's name
MARGIN = {"l": 70, "r": 190, "t": 50, "b": 60}  # pixels; the legend stands on the right


def dress(figure: go.Figure, width: int, height: int, **margin: int) -> None:
    """Font, frame and grid of all figures; width, height and margins (l, r, t, b) in pixels."""
    figure.update_layout(
        template="plotly_white",
        width=width,
        height=height,
        margin=MARGIN | margin,
        font={"family": FONT, "size": 12, "color": INK},
        hoverlabel={"font_size": 12},
    )
    for legend in [name for name in figure.layout if name.startswith("legend")]:
        figure.layout[legend].title.font.size = 12  # plotly's own is larger than the margin has room for
        figure.layout[legend].tracegroupgap = 0
    figure.update_xaxes(showline=True, linecolor=FRAME, gridcolor=GRID, ticks="outside", title_font_size=12)
    figure.update_yaxes(showline=True, linecolor=FRAME, gridcolor=GRID, ticks="outside", title_font_size=12)


def panel_at(index: int, columns: int) -> dict[str, int]:
    """Row and column of one of several panels, in the order of reading."""
    return {"row": 1 + index // columns, "col": 1 + index % columns}


def arch_panels(archs: Sequence[str]) -> tuple[go.Figure, list[dict[str, int]], int]:
    """An empty panel with its name for each architecture, their places (`panel_at`), and the figure's height."""
    columns = min(len(archs), PANELS_A_ROW)
    n_rows = -(-len(archs) // columns)
    names, gap = [name_of(arch) for arch in archs], GAP / ROW_HEIGHT  # in heights of a row
    if columns > 2 and max(map(len, names)) > WIDE:  # the point of an architecture on a line of its own
        names, gap = [name.replace(", ", "<br>", 1) for name in names], gap * 1.2
    figure = make_subplots(
        n_rows,
        columns,
        subplot_titles=[f"<b>{name}</b>" for name in names],
        shared_yaxes=True,
        vertical_spacing=gap / n_rows,
    )
    return figure, [panel_at(i, columns) for i in range(len(archs))], ROW_HEIGHT * n_rows + 70


def size_scale(sizes: Sequence[str]) -> dict[str, str]:
    """A colour for each of `sizes`, which are in ascending order."""
    if len(sizes) == 0:
        return {}
    at = np.linspace(0.08, 0.93, len(sizes)).tolist() if len(sizes) > 1 else [0.5]
    return dict(zip(sizes, sample_colorscale("Viridis_r", at), strict=True))


def reference_line(figure: go.Figure, row: int, column: int, loss: float) -> None:
    """A dashed line across a panel, named in the legend: curves would cross a label on it."""
    axis = figure.get_subplot(row, column).xaxis.plotly_name.removeprefix("xaxis")
    across = {"xref": f"x{axis} domain", "yref": f"y{axis}"}
    figure.add_shape(
        type="line", x0=0, x1=1, y0=loss, y1=loss, line={"color": GREY, "dash": "dash", "width": 1.3}, **across
    )


def legend_line(name: str, color: str, legend: str, width: float = 2.6) -> go.Scatter:
    return go.Scatter(x=[None], y=[None], mode="lines", line={"color": color, "width": width}, name=name, legend=legend)


def legend_reference(loss: float) -> go.Scatter:
    return legend_line(f"bigram, held-out {loss:.2f}", GREY, "legend", 1.3).update(line_dash="dash")


def band(rows: Iterable[tuple[float, float, float]], color: str) -> go.Scatter:
    """The area between two lines. rows: x, the lower and the upper end there."""
    x, low, high = zip(*rows, strict=True)
    style = {"fill": "toself", "fillcolor": fade(color, 0.16), "line": {"width": 0}, "mode": "lines"}
    return go.Scatter(x=[*x, *x[::-1]], y=[*low, *high[::-1]], **style, hoverinfo="skip", showlegend=False)


def fade(color: str, alpha: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
