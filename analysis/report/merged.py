"""Merged weights beside decays: the report's table, figure and notes, from fits.json only."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis.figures.axes import log_axis
from analysis.figures.palette import name_of
from analysis.figures.style import arch_panels, dress, reference_line, size_scale
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import signed
from analysis.report.figures import ROW_HEIGHT, WIDTH

COLUMNS = 4
SLOPES = (("n_params", "N"), ("n_tokens", "D"))


def merged_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture: how far merged losses lie above decayed ones after the same tokens."""
    rows = []
    for group, one in fits.merged.items():
        known = "reason" not in one
        slopes = [(name, one["slopes"][key]) for key, name in SLOPES if key in one["slopes"]] if known else []
        scatter = f"{one['scatter']:.2%}" if known else ""
        if known and one["scatter_of_trunks"] is not None:
            scatter += f", {one['scatter_of_trunks']:.2%} of trunks"
        rows.append(
            {
                "architecture": name_of(group),
                "pairs": f"{one['n_pairs']} of {one['n_trunks']} trunks" if known else str(one["n_pairs"]),
                "sizes": ", ".join(one["sizes"]) if known else "",
                "merged above decayed": signed(one["mean"], ".2%", one["interval"]) if known else one["reason"],
                "scatter": scatter,
                "for each e-fold": ", ".join(f"{signed(slope['value'], '.2%')} in {name}" for name, slope in slopes),
                "p of no trend": ", ".join(f"{slope['p']:.2g} in {name}" for name, slope in slopes),
            }
        )
    return rows


def merged_notes(fits: StudyFits) -> list[str]:
    if not fits.merged:
        return []
    used = fits.settings.points == "merged"
    return [
        "The mean of a trunk's last weights stands in for a decay that nobody trained. Each pair compares it with the "
        "branch that has decayed to the same tokens, in log held-out loss. The interval is that of the offset in the "
        "middle of the pairs, by Student's t over trunks: pairs of one trunk share its error.",
        "The fits use merged losses less this offset, and their intervals count its error, which these losses share."
        if used
        else "No fit uses merged losses unless fit.points is merged.",
    ]


def merged_figure(fits: StudyFits) -> go.Figure | None:
    """Merged loss above the decayed one at the same tokens, over tokens, a panel an architecture, marks by size; None
    without pairs."""
    pairs_of = {group: one["pairs"] for group, one in fits.merged.items() if one["pairs"]}
    if not pairs_of:
        return None
    sizes = {pair["size"]: pair["n_params"] for pairs in pairs_of.values() for pair in pairs}
    colors = size_scale(sorted(sizes, key=lambda size: sizes[size]))
    figure, n_rows, columns = arch_panels(list(pairs_of), COLUMNS, 84 / ROW_HEIGHT)
    tokens = [pair["n_tokens"] for pairs in pairs_of.values() for pair in pairs]
    for place, pairs in enumerate(pairs_of.values()):
        row, column = place // columns + 1, place % columns + 1
        for size in colors:
            mine = sorted((pair for pair in pairs if pair["size"] == size), key=lambda pair: float(pair["n_tokens"]))
            if not mine:
                continue
            figure.add_trace(
                go.Scatter(
                    x=[pair["n_tokens"] for pair in mine],
                    y=[100 * pair["offset"] for pair in mine],
                    mode="markers",
                    marker={"color": colors[size], "size": 8},
                    name=size,
                    legendgroup=size,
                    showlegend=size not in {trace.name for trace in figure.data},
                    customdata=[[pair["merged"], pair["decayed"]] for pair in mine],
                    hovertemplate="%{y:+.2f}%<br>merged %{customdata[0]:.4f}, decayed %{customdata[1]:.4f}"
                    "<br>%{x:,} tokens<extra></extra>",
                ),
                row=row,
                col=column,
            )
        reference_line(figure, row, column, 0.0)
    figure.update_xaxes(log_axis(min(tokens) / 1.3, max(tokens) * 1.3, "trained tokens", "count"))
    figure.update_yaxes(ticksuffix="%")
    figure.update_yaxes(title_text="merged above decayed loss", col=1)
    figure.update_layout(legend={"title": {"text": "size"}, "x": 1.01, "y": 1})
    dress(figure, WIDTH, n_rows * ROW_HEIGHT + 70)
    return figure
