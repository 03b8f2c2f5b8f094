"""The report's figures for a paper: PDF and SVG with their fonts inside, as wide as one column and as two.

matplotlib, which needs no browser, draws a plotly figure once more, in its colours, dashes and marks, with panels
arranged for the width and the legend below. It draws what the report's figures are made of: lines, marks, bands and
error bars (Scatter), straight lines and boxes (shapes), titles of panels and notes in them (annotations).
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis.figures.axes import SUPERSCRIPT, ticks
from analysis.figures.style import FRAME, GRID, INK
from arch.errors import InputError
from data.files import write_bytes

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTHS = {"one-column": 3.25, "two-columns": 6.75}  # inches, as ICML and the ACL have them
PIXELS = 135.0  # of plotly's figure, an inch
HIGHEST, LOWEST_PANEL, AROUND, TITLE = 8.4, 1.1, 0.55, 0.2  # inches: of a figure; of a panel; of its title and axis
LEGEND_LINE, LEGEND_MARK, LETTER = 0.14, 0.45, 0.056  # inches; of a letter the mean width
GAP = 2  # pixels at least between two labels of ticks
MOST_BELOW = 4  # panels below each other in one column; more stand in pairs
STYLE: Any = {  # matplotlib's names
    "pdf.fonttype": 42,  # TrueType, embedded
    "svg.fonttype": "path",  # letters as shapes
    "svg.hashsalt": "report",  # the same file each time
    "mathtext.default": "regular",
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.edgecolor": FRAME,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": FRAME,
    "ytick.color": FRAME,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
}
FONTS = ("Helvetica", "Arial", "Liberation Sans", "DejaVu Sans", "Noto Sans CJK JP", "WenQuanYi Zen Hei")
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 3)),
    "dot": (0, (1, 2)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 3)),
    "longdashdot": (0, (9, 2, 1, 2)),
}
MARKERS = {"circle": "o", "diamond": "D", "line-ew": "_"}
SCRIPT = re.compile(r"<(sub|sup)>\s*(.*?)\s*</\1>")
TAG = re.compile(r"<[^>]*>")
RAISED = re.compile("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
LOWERED = {raised: plain for plain, raised in SUPERSCRIPT.items()}


def check_paper(directory: Path) -> None:
    """Raise InputError where matplotlib is not installed or nothing can be written at `directory`."""
    if find_spec("matplotlib") is None:
        raise InputError("--figures needs matplotlib: pip install 'linear-scaling[paper]'")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--figures {directory}: cannot be written ({error.strerror}): name another folder") from None


def write_paper(figures: Mapping[str, go.Figure], directory: Path) -> None:
    """<directory>/one-column/NAME.pdf and NAME.svg of each figure, and two-columns/. Raises InputError for a letter
    that no font has."""
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph")
        for folder, width in WIDTHS.items():
            (directory / folder).mkdir(parents=True, exist_ok=True)
            for name, figure in figures.items():
                try:
                    _write(paper_figure(figure, width), directory / folder / name)
                except UserWarning as missing:
                    raise InputError(
                        f"--figures: {str(missing).rstrip('.')}: install a font that has it ({', '.join(FONTS)})"
                    ) from None


def style() -> AbstractContextManager[None]:
    """In it figures have the sizes, inks and fonts of a paper."""
    import matplotlib
    from matplotlib.font_manager import get_font_names

    fonts = set(get_font_names())
    return matplotlib.rc_context(STYLE | {"font.family": [font for font in FONTS if font in fonts]})


def _write(drawn: Figure, path: Path) -> None:
    """PDF and SVG: laid out once for both, and drawn once each (`savefig` does both twice)."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    pdf, svg = io.BytesIO(), io.BytesIO()
    FigureCanvasPdf(drawn).print_pdf(pdf, metadata={"CreationDate": None})
    drawn.set_layout_engine("none")
    FigureCanvasSVG(drawn).print_svg(svg, metadata={"Date": None})
    for form, buffer in (("pdf", pdf), ("svg", svg)):
        write_bytes(path.with_name(f"{path.name}.{form}"), buffer.getvalue(), kind="figures")


class Panel(NamedTuple):
    """A subplot of plotly's: its axes are x`name` and y`name`; left, top, height: as shares of the figure."""

    name: str
    x_axis: Any
    y_axis: Any
    left: float
    top: float
    height: float


def _panels(figure: go.Figure) -> list[Panel]:
    """Those with traces, in the order of reading."""
    panels = []
    for y_axis in figure.select_yaxes():
        name = y_axis.plotly_name.removeprefix("yaxis")
        x_axis, (low, high) = figure.layout[f"xaxis{name}"], y_axis.domain or (0.0, 1.0)
        if any((trace.xaxis or "x") == f"x{name}" for trace in figure.data):
            panels.append(Panel(name, x_axis, y_axis, (x_axis.domain or (0.0,))[0], high, high - low))
    return sorted(panels, key=lambda panel: (-panel.top, panel.left))


def paper_figure(figure: go.Figure, width: float) -> Figure:
    """`figure` by matplotlib, `width` inches wide; to be called, and saved, in `style`."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels, entries = _panels(figure), _legend_entries(figure)
    n_columns = len({panel.left for panel in panels})
    if width == WIDTHS["one-column"]:
        n_columns = 1 if len(panels) <= MOST_BELOW else 2
    inside = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    heights = [max(LOWEST_PANEL, panel.height * inside / PIXELS) for panel in panels]
    rows = [max(heights[i : i + n_columns]) for i in range(0, len(panels), n_columns)]
    legend_columns = _legend_columns(list(entries), width)
    around = AROUND * len(rows) + LEGEND_LINE * math.ceil(len(entries) / legend_columns)
    drawn = Figure((width, min(sum(rows) + around, HIGHEST)), layout=(layout := ConstrainedLayoutEngine()))
    grid = drawn.add_gridspec(len(rows), n_columns, height_ratios=rows)
    axes = {panel.name: drawn.add_subplot(grid[divmod(i, n_columns)]) for i, panel in enumerate(panels)}
    for trace in figure.data:
        _add_trace(axes[(trace.xaxis or "x")[1:]], trace)
    for i, panel in enumerate(panels):
        ax = axes[panel.name]
        letters, high = int(width / n_columns / LETTER) - 8, int((rows[i // n_columns] - TITLE) / LETTER)
        _add_axis(ax, ax.xaxis, panel.x_axis, letters)
        _add_axis(ax, ax.yaxis, panel.y_axis, high)
        if panel.y_axis.matches and i % n_columns:
            ax.tick_params(labelleft=panel.y_axis.showticklabels is not False)
        elif panel.y_axis.matches:
            shared = figure.layout[f"yaxis{panel.y_axis.matches[1:]}"]
            ax.set_ylabel(_wrapped(shared.title.text or "", high))
        _add_shapes(ax, panel, figure)
        _add_texts(ax, panel, figure, letters)
    if entries:
        style = {"frameon": False, "columnspacing": 1.2, "handlelength": 2.2, "labelspacing": 0.3}
        drawn.legend(entries.values(), entries, loc="outside lower center", ncols=legend_columns, **style)
    layout.execute(drawn)
    for panel in panels:
        ax = axes[panel.name]
        if ax.xaxis.label.get_window_extent().x1 > drawn.bbox.x1:  # below what long names on the left have left of it
            ax.set_xlabel(_wrapped(panel.x_axis.title.text, int(ax.bbox.width / drawn.dpi / LETTER)))
        _part_ticks(ax.xaxis, True, ax.get_xscale())
        _part_ticks(ax.yaxis, False, ax.get_yscale())
    return drawn


def _add_trace(ax: Axes, trace: go.Scatter) -> None:
    """Its band; or its line, error bars and marks."""
    x, y = list(trace.x), list(trace.y)
    if x == [None]:  # stands in the legend alone
        return
    if trace.fill == "toself":
        ax.fill(x, y, color=_color(trace.fillcolor), linewidth=0)
        return
    line = _line(trace)
    ax.plot(x, y, **line)
    for bars, is_x in ((trace.error_x, True), (trace.error_y, False)):
        if bars.array is not None:
            less = bars.array if bars.arrayminus is None else bars.arrayminus
            ends = [[end or 0.0 for end in side] for side in (less, bars.array)]
            color, width = _color(bars.color) if bars.color else line["color"], _points(bars.thickness or 2)
            x_ends, y_ends = (ends, None) if is_x else (None, ends)
            ax.errorbar(x, y, y_ends, x_ends, fmt="none", ecolor=color, elinewidth=width, capsize=1.5)
    if "markers" in trace.mode:
        alike = defaultdict(list)
        for i in range(len(x)):
            alike[tuple(_mark(trace, i).items())].append(i)
        for mark, rows in alike.items():
            ax.plot([x[i] for i in rows], [y[i] for i in rows], linestyle="", **dict(mark))


def _line(trace: go.Scatter) -> dict[str, Any]:
    """Style of a trace's line; of marks alone, and of their error bars, the colour."""
    return {
        "color": _color(trace.line.color or _ith(trace.marker.color, 0) or _ith(trace.marker.line.color, 0)),
        "linestyle": DASHES[trace.line.dash or "solid"] if "lines" in trace.mode else "",
        "linewidth": _points(trace.line.width or 2),
        "alpha": trace.opacity,
    }


def _mark(trace: go.Scatter, i: int) -> dict[str, Any]:
    """Style of a trace's i-th mark."""
    marker = trace.marker
    fill, edge = _ith(marker.color, i) or trace.line.color, _ith(marker.line.color, i)
    symbol = marker.symbol if isinstance(marker.symbol, str) else _ith(marker.symbol, i) or "circle"
    return {
        "marker": MARKERS[symbol.removesuffix("-open")],
        "markersize": _points(marker.size or 6),
        "markerfacecolor": "none" if symbol.endswith("-open") else _color(fill or edge),
        "markeredgecolor": _color(edge or fill),
        "markeredgewidth": _points(marker.line.width or 0),
        "alpha": marker.opacity if trace.opacity is None else trace.opacity,
    }


def _ith(value: Any, i: int) -> Any:
    """Of a list its i-th value; anything else itself."""
    return value[i] if isinstance(value, (list, tuple)) else value


def _points(pixels: float) -> float:
    return pixels * 72 / PIXELS


def _color(css: str) -> Any:
    """matplotlib's for #rrggbb, a name, rgb(..) or rgba(..)."""
    if not css.startswith("rgb"):
        return css
    red, green, blue, *alpha = map(float, css.partition("(")[2].rstrip(")").split(","))
    return (red / 255, green / 255, blue / 255, *alpha)


def _add_axis(ax: Axes, drawn: Axis, axis: Any, letters: int) -> None:
    """Scale, ticks, range and name of one axis, in lines of at most so many letters."""
    set_scale, limits, set_limits = (
        (ax.set_xscale, ax.get_xlim, ax.set_xlim) if drawn is ax.xaxis else (ax.set_yscale, ax.get_ylim, ax.set_ylim)
    )
    if axis.type == "log":
        set_scale("log")
        ax.minorticks_off()
    low, high = limits() if axis.range is None else [10.0**end if axis.type == "log" else end for end in axis.range]
    if axis.tickvals is not None:
        at = [(v, text) for v, text in zip(axis.tickvals, axis.ticktext, strict=True) if low <= v <= high]
        drawn.set_ticks([value for value, _ in at], [_text(text) for _, text in at])
    elif axis.type == "log":
        drawn.set_ticks(ticks(low, high), [f"{value:,.5g}" for value in ticks(low, high)])
    elif "%" in (axis.tickformat or ""):
        drawn.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    elif axis.ticksuffix:
        drawn.set_major_formatter(lambda value, _: f"{value:.3g}{axis.ticksuffix}")
    set_limits((high, low) if axis.autorange == "reversed" else (low, high))
    drawn.set_label_text(_wrapped(axis.title.text or "", letters))


def _add_shapes(ax: Axes, panel: Panel, figure: go.Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import blended_transform_factory

    for shape in figure.layout.shapes:
        (x_ref, *x_domain), (y_ref, *y_domain) = shape.xref.split(), shape.yref.split()
        if (x_ref, y_ref) != (f"x{panel.name}", f"y{panel.name}"):
            continue
        place = blended_transform_factory(
            ax.transAxes if x_domain else ax.transData, ax.transAxes if y_domain else ax.transData
        )
        if shape.type == "line":
            style = {"color": _color(shape.line.color), "linewidth": _points(shape.line.width)}
            dashed = DASHES[shape.line.dash or "solid"]
            line = Line2D([shape.x0, shape.x1], [shape.y0, shape.y1], transform=place, linestyle=dashed, **style)
            ax.add_artist(line)
        else:
            size, color = (shape.x1 - shape.x0, shape.y1 - shape.y0), _color(shape.fillcolor)
            ax.add_artist(Rectangle((shape.x0, shape.y0), *size, transform=place, color=color, linewidth=0, zorder=0))


def _add_texts(ax: Axes, panel: Panel, figure: go.Figure, letters: int) -> None:
    """The panel's title and its notes, lines of at most so many letters."""
    right = (panel.x_axis.domain or (0.0, 1.0))[1]
    for note in figure.layout.annotations:
        if note.xref == f"x{panel.name} domain":
            place = {"ha": note.xanchor, "va": note.yanchor, "transform": ax.transAxes}
            text = _wrapped(note.text.replace("<br>", " "), letters)
            ax.text(note.x, note.y, text, **place, color="#555555", backgroundcolor=(1, 1, 1, 0.7), fontsize=6)
        elif note.xref == "paper" and abs(note.y - panel.top) < 1e-6 and panel.left < note.x < right:
            ax.set_title(_wrapped(note.text, letters))


def _legend_entries(figure: go.Figure) -> dict[str, Any]:
    """By name, in the order of the legends, what stands beside it."""
    from matplotlib.lines import Line2D

    entries = {}
    for trace in sorted(figure.data, key=lambda trace: trace.legend or "legend"):
        if trace.name and trace.showlegend is not False:
            marks = _mark(trace, 0) if "markers" in trace.mode else {}
            entries[_text(trace.name)] = Line2D([], [], **_line(trace) | marks)
    return entries


def _legend_columns(names: Sequence[str], width: float) -> int:
    """The most columns, which matplotlib fills one after the other, that `width` inches have room for."""
    for columns in range(len(names), 1, -1):
        longest = [max(map(len, part)) for part in np.array_split(names, columns)]
        if sum(LEGEND_MARK + LETTER * length for length in longest) <= width:
            return columns
    return 1


def _wrapped(text: str, letters: int) -> str:
    """Plotly's text in lines of at most so many letters, where words allow."""
    lines = []
    for paragraph in SCRIPT.sub(r"<\1>\2</\1>", text).split("<br>"):
        lines.append("")
        for word in paragraph.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and len(TAG.sub("", longer)) > letters:
                lines.append(word)
            else:
                lines[-1] = longer
    return "\n".join(map(_text, lines))


def _text(html: str) -> str:
    """Plotly's text as matplotlib's, whose mathematics stands between dollar signs."""
    text = html.replace("$", r"\$").replace("<br>", "\n")
    text = SCRIPT.sub(lambda part: f"${'_' if part[1] == 'sub' else '^'}{{{part[2]}}}$", text)
    return TAG.sub("", RAISED.sub(lambda part: f"$^{{{part[0].translate(LOWERED)}}}$", text))


def _part_ticks(drawn: Axis, is_x: bool, scale: str) -> None:
    """Where labels would lie over each other: those of numbers are thinned, powers of ten staying, names are turned."""
    labels = [label for label in drawn.get_ticklabels() if label.get_text()]
    at = [label.get_position()[0 if is_x else 1] for label in labels]
    boxes = [label.get_window_extent() for label in labels]
    along = [(box.x0, box.x1) if is_x else (box.y0, box.y1) for box in boxes]
    powers = [i for i, value in enumerate(at) if f"{value:e}".startswith("1.000000e")]

    def apart(kept: range) -> bool:
        return all(along[j][0] > along[i][1] + GAP for i, j in pairwise(kept))

    every = range(len(at))
    if scale == "log":
        while not apart(every):
            step = every.step + 1
            every = range((powers or [0])[0] % step, len(at), step)
        drawn.set_ticks([at[i] for i in every], [labels[i].get_text() for i in every])
    elif is_x and not apart(every):
        drawn.set_tick_params(rotation=30)
        for label in drawn.get_ticklabels():
            label.set_horizontalalignment("right")
