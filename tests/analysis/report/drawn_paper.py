"""What a figure for a paper must show: all that plotly's shows, and nothing over anything else."""

from collections.abc import Iterable
from itertools import pairwise

import plotly.graph_objects as go
from matplotlib.colors import to_hex

from analysis.figures.paper import WIDTHS, _color, _panels, paper_figure, style


def check_paper(figure: go.Figure, widths: Iterable[float] = WIDTHS.values()) -> None:
    """In each of `widths`: every trace's points in its panel and colour, its name in the legend, every text inside the
    figure and no two labels of an axis over each other."""
    for width in widths:
        with style():
            drawn = paper_figure(figure, width)
            drawn.draw_without_rendering()
        assert drawn.get_size_inches()[0] == width
        axes = {f"x{panel.name}": ax for panel, ax in zip(_panels(figure), drawn.axes, strict=True)}
        for trace in figure.data:
            if tuple(trace.x) == (None,):
                continue
            ax, points = axes[trace.xaxis or "x"], set(zip(trace.x, trace.y, strict=True))
            if trace.fill:
                ends = [
                    patch.get_xy() for patch in ax.patches if to_hex(patch.get_facecolor()) == _hex(trace.fillcolor)
                ]
                assert points in [set(map(tuple, band)) for band in ends]
                continue
            lines = [line for line in ax.lines if points & set(zip(*line.get_data(orig=True), strict=True))]
            assert points <= {point for line in lines for point in zip(*line.get_data(orig=True), strict=True)}
            if color := trace.line.color:
                assert _hex(color) in {to_hex(line.get_color()) for line in lines}
        names = {trace.name for trace in figure.data if trace.name and trace.showlegend is not False}
        assert sum(len(legend.texts) for legend in drawn.legends) == len(names)
        texts = [text for ax in drawn.axes for text in (ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts)]
        for text in [*texts, *(text for legend in drawn.legends for text in legend.texts)]:
            box, page = text.get_window_extent(), drawn.bbox
            inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
            assert inside or not text.get_text(), text
        for ax in drawn.axes:
            low, high = sorted(ax.get_xlim())
            labels = [label for label in ax.get_xticklabels() if label.get_text() and not label.get_rotation()]
            boxes = [label.get_window_extent() for label in labels if low <= label.get_position()[0] <= high]
            assert all(after.x0 > before.x1 for before, after in pairwise(boxes)), labels


def _hex(css: str) -> str:
    return to_hex(_color(css))
