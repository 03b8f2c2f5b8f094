"""The page of runs that were trained twice: the table, and both held-out curves of every run with their difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis
from analysis.figures.palette import name_of
from analysis.figures.style import SHADE, dress, legend_line, size_scale
from analysis.pages.html import render
from analysis.repeats.compare import WITHIN, Repeat, run_rows, short, sum_lines, unit_of_repeats

TEMPLATE = Path(__file__).with_name("repeats.html.j2")
WIDTH, HEIGHT = 1040, 300  # pixels, of a row
LOSS, DIFFERENCE = 1, 2  # columns


def comparison_page(repeats: Sequence[Repeat], study: str, sides: Sequence[str], noise_of: str | None) -> str:
    """HTML of at least one run; sides: lines about A and B."""
    return render(
        TEMPLATE,
        figures=True,
        study=study,
        lines=[*sides, *sum_lines(repeats, noise_of)],
        rows=run_rows(repeats),
        curves=curves(repeats),
        within=f"{WITHIN:g}",
        unit=unit_of_repeats(repeats),
    )


def curves(repeats: Sequence[Repeat]) -> go.Figure:
    """A row for each architecture: held-out losses of A (solid) and B (dashed), a colour for each size, and how far B's
    lie above A's in percent, with a band of WITHIN standard deviations between seeds at the end where it is known."""
    archs = list(dict.fromkeys(repeat.run.arch for repeat in repeats))
    titles = [title for arch in archs for title in (f"<b>{name_of(arch)}</b>", "B above A")]
    figure = make_subplots(len(archs), 2, subplot_titles=titles, vertical_spacing=0.24 / len(archs))
    sizes = {repeat.run.size: repeat.n_params for repeat in repeats}
    colors = size_scale(sorted(sizes, key=lambda size: sizes[size]))
    for row, arch in enumerate(archs, start=1):
        of_arch = [repeat for repeat in repeats if repeat.run.arch == arch]
        for repeat in of_arch:
            for trace, column in _traces(repeat, colors[repeat.run.size]):
                figure.add_trace(trace, row=row, col=column)
        if spread := max((repeat.noise.s for repeat in of_arch if repeat.noise), default=0.0):
            high = 100 * WITHIN * spread
            figure.add_hrect(-high, high, row=row, col=DIFFERENCE, fillcolor=SHADE, line_width=0, layer="below")
    tokens = [pair.at for repeat in repeats for pair in repeat.held_out]
    figure.update_xaxes(**log_axis(min(tokens) / 1.1, max(tokens) * 1.1, "", "count"))
    for column in (LOSS, DIFFERENCE):
        figure.update_xaxes(title_text="tokens", row=len(archs), col=column)
    figure.update_yaxes(title_text=f"held-out loss ({unit_of_repeats(repeats)})", col=LOSS)
    figure.update_yaxes(ticksuffix=" %", col=DIFFERENCE)
    for size, color in colors.items():
        figure.add_trace(legend_line(size, color, "legend"))
    dress(figure, WIDTH, HEIGHT * len(archs) + 80)
    return figure


def _traces(repeat: Repeat, color: str) -> list[tuple[go.Scatter, int]]:
    tokens, name = [pair.at for pair in repeat.held_out], short(repeat.name)
    above = [100 * pair.difference / pair.a for pair in repeat.held_out]
    kinds = [
        ([pair.a for pair in repeat.held_out], "solid", f"{name}, A", LOSS),
        ([pair.b for pair in repeat.held_out], "dash", f"{name}, B", LOSS),
        (above, "solid", name, DIFFERENCE),
    ]
    drawn = {"mode": "lines+markers", "showlegend": False, "marker": {"size": 5}}
    return [
        (go.Scatter(x=tokens, y=y, name=label, line={"color": color, "dash": dash, "width": 1.6}, **drawn), at)
        for y, dash, label, at in kinds
    ]
