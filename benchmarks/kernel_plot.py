"""The picture of `python -m benchmarks.kernels --plot`: time per token, and over the floor, by sequence length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

LENGTHS = tuple(1024 * 2**k for k in range(7))
TOKENS = 32_768  # of a batch, or one longer row
COLORS = {
    "triton": "#009e73",
    "chunk": "#7f7f7f",
    "fla": "#d55e00",
    "mamba_ssm": "#cc79a7",
    "sdpa": "#0072b2",
    "sdpa-flash": "#56b4e9",
    "sdpa-cudnn": "#5e4fa2",
}
DIRECTIONS = {"both": "solid", "forward": "dot"}
PANEL = 260  # pixels
TICKS = [digit * 10.0**power for power in range(-1, 6) for digit in (1, 2, 5)]  # Plotly's leave the power out


def shapes(heads: int, width: int) -> list[tuple[int, ...]]:
    """B, T, H, D of every length."""
    return [(max(1, TOKENS // length), length, heads, width) for length in LENGTHS]


def floor_ms(row: dict[str, Any], direction: str) -> float:
    """The larger of the two floors."""
    return max(row[f"floor_{direction}_ms"], row[f"matrix_{direction}_ms"])


def figure(rows: Sequence[dict[str, Any]]) -> go.Figure:
    """A row of panels for each case, a line for each backend and direction; rows as measured, those without times left
    out."""
    timed = [row for row in rows if "both_ms" in row]
    cases = list(dict.fromkeys(row["case"] for row in timed))
    titles = [title for case in cases for title in (f"{case}: ns a token", f"{case}: times the floor")]
    drawn = make_subplots(
        rows=max(1, len(cases)), cols=2, subplot_titles=titles, vertical_spacing=0.5 / (len(cases) + 1)
    )
    shown: set[str] = set()
    for at, case in enumerate(cases, start=1):
        own = [row for row in timed if row["case"] == case]
        for backend in dict.fromkeys(row["backend"] for row in own):
            for direction in DIRECTIONS:
                points = sorted(
                    ((_sizes(row)[1], row) for row in own if row["backend"] == backend), key=lambda point: point[0]
                )
                spent = [1e6 * row[f"{direction}_ms"] / (_sizes(row)[0] * length) for length, row in points]
                times = [row[f"{direction}_ms"] / floor_ms(row, direction) for _, row in points]
                for column, values in ((1, spent), (2, times)):
                    _line(drawn, shown, backend, direction, [length for length, _ in points], values, at, column)
        drawn.add_hline(y=1, line={"color": "#bbbbbb", "width": 1}, row=at, col=2)
    drawn.update_xaxes(type="log", tickvals=LENGTHS, ticktext=[f"{length // 1024}k" for length in LENGTHS])
    drawn.update_yaxes(type="log", tickvals=TICKS, ticktext=[f"{value:g}" for value in TICKS])
    drawn.update_xaxes(title="tokens a row", row=max(1, len(cases)))
    drawn.update_layout(
        template="plotly_white",
        width=1000,
        height=120 + PANEL * max(1, len(cases)),
        legend={"groupclick": "togglegroup"},
    )
    return drawn


def _sizes(row: dict[str, Any]) -> list[int]:
    return [int(size) for size in row["shape"].split(",")]


def _line(
    drawn: go.Figure, shown: set[str], backend: str, direction: str, x: list[int], y: list[float], row: int, column: int
) -> None:
    name = backend if direction == "both" else f"{backend}, forward alone"
    drawn.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="lines+markers",
            name=name,
            legendgroup=backend,
            showlegend=name not in shown,
            line={"color": COLORS.get(backend, "#000000"), "dash": DIRECTIONS[direction]},
        ),
        row=row,
        col=column,
    )
    shown.add(name)


def write(rows: Sequence[dict[str, Any]], path: str) -> None:
    """One HTML file that needs no network."""
    page = figure(rows).to_html(include_plotlyjs=True, full_html=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
