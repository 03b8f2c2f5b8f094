"""Held-out loss at every evaluated checkpoint, drawn from the tables only."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from analysis.figures.axes import log_axis
from analysis.figures.style import arch_panels, dress, legend_line, legend_reference, reference_line
from analysis.fits.prepare import grouped
from analysis.fits.study_fits import StudyFits
from analysis.report.figures import ROW_HEIGHT, WIDTH, size_colors
from analysis.run_table import RunTable

VALIDATION_COLUMNS = 4


def validation_figure(fits: StudyFits, tables: RunTable, baseline: dict[str, Any] | None = None) -> go.Figure | None:
    """Held-out loss at every evaluated checkpoint over compute, a panel for each group of the fits, of the runs that
    these use; None without any."""
    tables = grouped(tables, fits.settings)
    runs = tables.runs[tables.runs["left_out"] == ""].set_index("run_id")
    evals = tables.evals[tables.evals["run_id"].isin(runs.index)]
    evals = evals.assign(group=evals["run_id"].map(runs["group"]))
    if evals.empty:
        return None
    archs, unit = list(dict.fromkeys(evals["group"])), fits.unit
    sizes = size_colors(tables)
    figure, n_rows, columns = arch_panels(archs, VALIDATION_COLUMNS, 84 / ROW_HEIGHT)
    c, loss = evals["flops_exact"], evals["loss"]
    low, high = loss.min(), loss.max()
    if baseline is not None:
        low, high = min(low, baseline["loss"]), max(high, baseline["loss"])
    figure.update_xaxes(log_axis(c.min() / 1.3, c.max() * 1.3, "training compute C (FLOP, exact)", "flop"))
    figure.update_yaxes(log_axis(low / 1.04, high * 1.04, ""))
    figure.update_yaxes(title_text=f"held-out loss ({unit})", col=1)
    for index, arch in enumerate(archs):
        place = {"row": 1 + index // columns, "col": 1 + index % columns}
        for run_id, rows in evals[evals["group"] == arch].groupby("run_id", sort=False):
            size, seed = str(rows["size"].iloc[0]), int(rows["seed"].iloc[0])
            trace = go.Scatter(
                x=rows["flops_exact"],
                y=rows["loss"],
                mode="lines+markers",
                line={"color": sizes[size], "width": 1.6 if seed == 0 else 0.8},
                marker={"size": 6 if seed == 0 else 4},
                opacity=1 if seed == 0 else 0.5,
                name=size,
                showlegend=False,
                hovertemplate=f"{run_id}<br>C = %{{x:.3g}} FLOP<br>held-out loss %{{y:.4f}} {unit}<extra></extra>",
            )
            figure.add_trace(trace, **place)
        if baseline is not None:
            reference_line(figure, place["row"], place["col"], baseline["loss"])
    for size, color in sizes.items():
        figure.add_trace(legend_line(size, color, "legend"), row=1, col=1)
    if baseline is not None:
        figure.add_trace(legend_reference(baseline["loss"], "legend"), row=1, col=1)
    figure.update_layout(legend={"title": {"text": "size"}, "x": 1.01, "y": 1})
    dress(figure, WIDTH, ROW_HEIGHT * n_rows + 70)
    return figure
