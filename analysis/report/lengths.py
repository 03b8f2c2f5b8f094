"""Contexts longer than those of the training: perplexity by context length, as a figure and a table."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.figures.axes import kibi, log_axis
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import GREY, dress
from analysis.fits.task_fits import LengthScores
from analysis.pages.cells import number
from analysis.report.figures import WIDTH

HEIGHT = 380
RING, RING_STEP = 5, 3  # diameters: architectures that agree lie on each other, as rings in rings
NOTE = (
    "Every length is evaluated on the very same tokens, cut into windows of that length; *: longer than the run was "
    "trained at. A longer window has fewer tokens near its start, which alone lowers the mean a little."
)


def lengths_figure(rows: Sequence[LengthScores]) -> go.Figure | None:
    """Perplexity over that at the training length, a line a run; None where no run has one."""
    ratios = {row.run_id: ratio for row in rows if (ratio := _over_own(row))}
    rows = [row for row in rows if row.run_id in ratios]
    if not rows:
        return None
    archs = list(dict.fromkeys(row.arch for row in rows))
    colors, dash, figure = arch_colors(archs), dashes(archs), go.Figure()
    shown: set[str] = set()
    for row in rows:
        ring = RING + RING_STEP * (len(archs) - 1 - archs.index(row.arch))
        trace = go.Scatter(
            x=list(ratios[row.run_id]),
            y=list(ratios[row.run_id].values()),
            mode="lines+markers",
            line={"color": colors[row.arch], "dash": dash[row.arch], "width": 1.8},
            marker={"symbol": "circle-open", "size": ring, "line": {"width": 1.6}},
            name=name_of(row.arch),
            legendgroup=row.arch,
            showlegend=row.arch not in shown,
            hovertemplate=f"{name_of(row.arch)} {row.size}<br>%{{x:,}} tokens<br>%{{y:.3f}} times<extra></extra>",
        )
        figure.add_trace(trace)
        shown.add(row.arch)
    for context_length in sorted({row.context_length for row in rows}):
        figure.add_vline(context_length, line={"color": GREY, "dash": "dash", "width": 1.2})
    lengths = sorted({n for ratio in ratios.values() for n in ratio})
    values = [value for ratio in ratios.values() for value in ratio.values()]
    x_title = "context length (tokens); dashed: of the training"
    y_title = "perplexity over that at the training length"
    figure.update_xaxes(**log_axis(lengths[0] / 1.1, lengths[-1] * 1.1, x_title, "count"))
    figure.update_xaxes(tickvals=lengths, ticktext=[kibi(n) for n in lengths])
    figure.update_yaxes(**log_axis(min(values) / 1.05, max(values) * 1.05, y_title))
    figure.update_layout(legend={"x": 1.01, "y": 1, "title": {"text": "architecture"}})
    dress(figure, WIDTH, HEIGHT)
    return figure


def _over_own(row: LengthScores) -> dict[int, float]:
    """By length, the finite perplexities over that at the training length; none where that is not finite."""
    own = row.perplexity.get(str(row.context_length))
    return {int(n): value / own for n, value in row.perplexity.items() if value} if own else {}


def length_rows(rows: Sequence[LengthScores]) -> list[dict[str, str]]:
    """A row a run, a column a context length: perplexity."""
    lengths = sorted({int(n) for row in rows for n in row.perplexity})
    table = []
    for row in rows:
        cells = {"architecture": name_of(row.arch), "run": row.run_id}
        for n in lengths:
            value, mark = row.perplexity.get(str(n)), "*" * (n > row.context_length)
            cells[f"{n:,}"] = "not finite" if value is None else number(f"{value:.3f}{mark}", value)
        table.append(cells)
    return table
