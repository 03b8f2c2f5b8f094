"""Contexts longer than those of the training: perplexity by context length, as a figure and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from analysis.figures.axes import kibi, log_axis
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import GREY, dress
from analysis.pages.cells import number
from analysis.report.figures import WIDTH

HEIGHT = 380
RING, RING_STEP = 5, 3  # diameters: architectures that agree lie on each other, as rings in rings
NOTE = (
    "Every length is evaluated on the very same tokens, cut into windows of that length; *: longer than the run was "
    "trained at. A longer window has fewer tokens near its start, which alone lowers the mean a little."
)


def lengths_figure(rows: Sequence[dict[str, Any]]) -> go.Figure | None:
    """Perplexity over that at the training length, a line a run; None where no run has one."""
    kept = [row for row in rows if row["perplexity"].get(str(row["trained_at"]))]
    if not kept:
        return None
    archs = list(dict.fromkeys(row["arch"] for row in kept))
    colors, dash, figure = arch_colors(archs), dashes(archs), go.Figure()
    lengths = sorted({int(n) for row in kept for n in row["perplexity"]})
    seen: set[str] = set()
    rings = {arch: RING + RING_STEP * (len(archs) - 1 - i) for i, arch in enumerate(archs)}
    for row in kept:
        own = row["perplexity"][str(row["trained_at"])]
        name = name_of(row["arch"])
        figure.add_trace(
            go.Scatter(
                x=[int(n) for n in row["perplexity"]],
                y=[value / own for value in row["perplexity"].values()],
                mode="lines+markers",
                line={"color": colors[row["arch"]], "dash": dash[row["arch"]], "width": 1.8},
                marker={"symbol": "circle-open", "size": rings[row["arch"]], "line": {"width": 1.6}},
                name=name,
                legendgroup=row["arch"],
                showlegend=row["arch"] not in seen,
                hovertemplate=f"{name} {row['size']}<br>%{{x:,}} tokens<br>%{{y:.3f}} times<extra></extra>",
            )
        )
        seen.add(row["arch"])
    for trained_at in sorted({row["trained_at"] for row in kept}):
        figure.add_vline(trained_at, line={"color": GREY, "dash": "dash", "width": 1.2})
    figure.update_xaxes(
        **log_axis(lengths[0] / 1.1, lengths[-1] * 1.1, "context length (tokens); dashed: of the training", "count")
    )
    figure.update_xaxes(tickvals=lengths, ticktext=[kibi(n) for n in lengths])
    values = [value / row["perplexity"][str(row["trained_at"])] for row in kept for value in row["perplexity"].values()]
    figure.update_yaxes(
        **log_axis(min(values) / 1.05, max(values) * 1.05, "perplexity over that at the training length")
    )
    figure.update_layout(legend={"x": 1.01, "y": 1, "title": {"text": "architecture"}})
    dress(figure, WIDTH, HEIGHT)
    return figure


def length_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row a run, a column a context length: perplexity."""
    lengths = sorted({int(n) for row in rows for n in row["perplexity"]})
    return [
        {"architecture": name_of(row["arch"]), "run": row["run_id"]}
        | {
            f"{n:,}": "not finite"
            if (value := row["perplexity"].get(str(n))) is None
            else number(f"{value:.3f}{'*' * (n > row['trained_at'])}", value)
            for n in lengths
        }
        for row in rows
    ]
