"""Published laws of N_opt and D_opt over compute: the share of C that the two of them spend by 6 N D."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from analysis.figures.axes import log_axis
from analysis.figures.palette import arch_colors
from analysis.figures.style import GREY, dress

WIDTH, HEIGHT = 820, 420
MARGIN = 1.2  # factor around what is drawn


def stated_figure(found: dict[str, Any], budget: float | None = None) -> go.Figure:
    """Of what `analysis.fits.published.check_stated` says at many C: 6 N_opt D_opt / C, dotted beyond the largest
    budget that a law was fitted to, where that is known. budget: marked, in FLOP."""
    figure, seen = go.Figure(), [1.0]
    colors = arch_colors([law["name"].lower() for law in found["laws"]])
    for law in found["laws"]:
        rows = list(zip(found["at"], law["six_nd_over_c"], strict=True))
        inside = [row for row in rows if law["largest"] is None or row[0] <= law["largest"]]
        beyond = [row for row in rows if law["largest"] is not None and row[0] >= (inside[-1][0] if inside else 0.0)]
        hover = law["name"] + "<br>C %{x:.3g}<br>6ND/C %{y:.3f}<extra></extra>"
        for part, dash in ((inside, "solid"), (beyond, "dot")):
            if len(part) > 1:
                line = {"color": colors[law["name"].lower()], "width": 2.4, "dash": dash}
                c, ratio = zip(*part, strict=True)
                figure.add_trace(
                    go.Scatter(x=c, y=ratio, mode="lines", line=line, name=law["name"], hovertemplate=hover).update(
                        showlegend=dash == "solid" or not inside
                    )
                )
        seen += law["six_nd_over_c"]
    figure.add_hline(1.0, line={"color": GREY, "dash": "dash", "width": 1.3})
    if budget is not None:
        figure.add_vline(budget, line={"color": GREY, "dash": "dash", "width": 1.3})
        at = {"x": math.log10(budget), "y": 0.02, "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
        figure.add_annotation(text="budget", showarrow=False, font={"color": GREY}, **at)
    figure.update_xaxes(
        **log_axis(min(found["at"]), max(found["at"]), f"C (FLOP; in the laws: {found['unit']})", "flop")
    )
    figure.update_yaxes(**log_axis(min(seen) / MARGIN, max(seen) * MARGIN, "6 N<sub>opt</sub> D<sub>opt</sub> / C"))
    dress(figure, WIDTH, HEIGHT)
    return figure
