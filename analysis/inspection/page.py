"""What `scaling inspect` shows: a table, gates.json, and a page with its two figures that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import INK, dress
from analysis.inspection.gates import LONG, SHOWN_BINS, Inspection
from analysis.pages.html import render
from arch.errors import InputError
from arch.registry import ARCHITECTURES
from arch.tables import text_table
from data.files import write_bytes, write_json

if TYPE_CHECKING:
    from analysis.inspection.gates import GateStatistics

TEMPLATE = Path(__file__).with_name("inspection.html.j2")
COLUMNS = 4  # panels side by side
PANEL, GAP, LEFT, RIGHT, TOP, BOTTOM = 250, 56, 70, 110, 60, 60  # pixels
DECADES = 4  # of the colour scale of a token-mixing matrix, below its largest weight
COLORS = "Viridis"
NO_GATE = "no forget gate: this mixer has none"
SOFTMAX = "no forget gate: softmax attention keeps every token"
MIXING = (
    "The magnitude of the weight with which each token's output reads the value of a token before it: the mean over "
    "heads, divided by the layer's largest, on the first tokens of the text. It leaves out the norms and gates after "
    "the mixer."
)
HEADINGS = ("layer", "mean", "median", "5%", "95%", f"share > {LONG}")


def gates_rows(gates: list[GateStatistics | None]) -> list[list[str]]:
    """A row for each layer with gates, under HEADINGS."""
    rows = []
    for layer, gate in enumerate(gates, start=1):
        if gate is not None:
            shown = [f"{value:.4f}" for value in (gate.mean, gate.median, gate.q05, gate.q95)]
            rows.append([str(layer), *shown, f"{gate.above_099:.1%}"])
    return rows


def no_gate(arch: str) -> str:
    """In words why an architecture's layers have no forget gate."""
    known = ARCHITECTURES.get(arch)
    return NO_GATE if known is None or known.constant_state else SOFTMAX


def gates_table(inspection: Inspection) -> str:
    """For the terminal: what was read, and the table, or why there is none."""
    head = f"{name_of(inspection.arch)}, {inspection.run_id}, step {inspection.step}"
    head += f": {inspection.n_tokens:,} tokens of {inspection.source}"
    rows = gates_rows(inspection.gates)
    if not rows:
        return f"{head}\n{no_gate(inspection.arch)}"
    return f"{head}\nforget gates\n{text_table(HEADINGS, rows, left=())}"


def write_inspection(inspection: Inspection, directory: Path) -> dict[str, Any]:
    """gates.json, index.html and, where Chrome is installed, the figures as PNG into `directory`; files of these names
    are replaced, others left alone. Returns {"page", "no_pictures": why there are none, or None}.

    Raises InputError where the directory cannot be written.
    """
    from analysis.figures.png import add_pictures

    drawn = figures(inspection)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "gates.json", inspection.to_dict())
        reason = add_pictures(drawn, directory)
        write_bytes(directory / "index.html", page(inspection, drawn).encode())  # last: it stands for the whole
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror}); give another --out") from None
    return {"page": str(directory / "index.html"), "no_pictures": reason}


def figures(inspection: Inspection) -> dict[str, go.Figure]:
    """The figures by file name: `gates` where there are any, `mixing` where the mixers have token-mixing weights."""
    drawn = {}
    if any(gate is not None for gate in inspection.gates):
        drawn["gates"] = gates_figure(inspection)
    if any(weights is not None for weights in inspection.mixing):
        drawn["mixing"] = mixing_figure(inspection)
    return drawn


def gates_figure(inspection: Inspection) -> go.Figure:
    """The distribution of each layer's forget gate, the median marked."""
    color = arch_colors([inspection.arch])[inspection.arch]
    centers = (np.arange(SHOWN_BINS) + 0.5) / SHOWN_BINS
    medians = ["" if gate is None else f"   median {gate.median:.3f}" for gate in inspection.gates]
    figure, places = _panels(medians)
    for gate, (row, column) in zip(inspection.gates, places, strict=True):
        if gate is None:
            continue
        bars = go.Bar(
            x=centers,
            y=gate.histogram,
            width=1 / SHOWN_BINS,
            marker={"color": color, "line": {"width": 0}},
            showlegend=False,
            hovertemplate="f = %{x:.2f}<br>share %{y:.3f}<extra></extra>",
        )
        figure.add_trace(bars, row=row, col=column)
        figure.add_vline(x=gate.median, line={"color": INK, "width": 1.2, "dash": "dot"}, row=row, col=column)
    figure.update_xaxes(range=[0, 1.01], dtick=0.25)
    figure.update_yaxes(rangemode="tozero", nticks=6)
    _label(figure, places, "forget gate f", "share of values")
    return figure


def mixing_figure(inspection: Inspection) -> go.Figure:
    """Each layer's token-mixing weights, magnitudes over the layer's largest, on a log colour scale."""
    figure, places = _panels([""] * len(inspection.mixing))
    for weights, (row, column) in zip(inspection.mixing, places, strict=True):
        if weights is None or not weights.max() > 0:
            continue
        share = np.where(np.tri(len(weights), dtype=bool), weights / weights.max(), np.nan)
        with np.errstate(divide="ignore"):
            heat = go.Heatmap(
                z=np.log10(share).clip(-DECADES).astype(np.float32),
                coloraxis="coloraxis",
                hovertemplate="output %{y} reads value %{x}<br>10^%{z:.2f} of the largest<extra></extra>",
            )
        figure.add_trace(heat, row=row, col=column)
        figure.update_yaxes(autorange="reversed", row=row, col=column)
    exponents = list(range(-DECADES, 1))
    bar = {
        "title": {"text": "weight / largest", "side": "right", "font": {"size": 12}},
        "tickvals": exponents,
        "ticktext": ["≤ " * (e == -DECADES) + power_of_ten(10.0**e) for e in exponents],
        "len": PANEL,
        "lenmode": "pixels",
        "y": 1,
        "yanchor": "top",
        "thickness": 14,
    }
    figure.update_layout(coloraxis={"colorscale": COLORS, "cmin": -DECADES, "cmax": 0, "colorbar": bar})
    figure.update_xaxes(showgrid=False, zeroline=False, nticks=5)
    figure.update_yaxes(showgrid=False, zeroline=False, nticks=5)
    _label(figure, places, "value of token s", "output of token t")
    return figure


def _panels(notes: list[str]) -> tuple[go.Figure, list[tuple[int, int]]]:
    """A grid with a square panel for each layer, a note behind each layer's name, and each layer's (row, column)."""
    n = len(notes)
    columns = min(n, COLUMNS)
    rows = -(-n // columns)
    width, height = columns * PANEL + (columns - 1) * GAP, rows * PANEL + (rows - 1) * GAP
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=[f"<b>Layer {i}</b>{note}" for i, note in enumerate(notes, start=1)],
        horizontal_spacing=GAP / width,
        vertical_spacing=GAP / height,
    )
    figure.update_annotations(font_size=13)
    dress(figure, width + LEFT + RIGHT, height + TOP + BOTTOM, l=LEFT, r=RIGHT, t=TOP, b=BOTTOM)
    figure.update_layout(bargap=0)
    return figure, [(1 + i // columns, 1 + i % columns) for i in range(n)]


def _label(figure: go.Figure, places: list[tuple[int, int]], x: str, y: str) -> None:
    """Axis titles at the left column and below the last panel of each column."""
    for row, column in places:
        if (row + 1, column) not in places:
            figure.update_xaxes(title={"text": x, "standoff": 6}, row=row, col=column)
        if column == 1:
            figure.update_yaxes(title={"text": y, "standoff": 6}, row=row, col=column)


def page(inspection: Inspection, drawn: dict[str, go.Figure]) -> str:
    """index.html: the table and the figures."""
    return render(
        TEMPLATE,
        figures=bool(drawn),
        name=f"{name_of(inspection.arch)}: {inspection.run_id}, step {inspection.step}",
        n_tokens=f"{inspection.n_tokens:,}",
        source=inspection.source,
        rows=[dict(zip(HEADINGS, row, strict=True)) for row in gates_rows(inspection.gates)],
        long=LONG,
        no_gate=no_gate(inspection.arch).capitalize(),
        drawn=drawn,
        mixing=MIXING,
    )
