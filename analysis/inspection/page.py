"""What `scaling inspect` shows: a table, gates.json, and a page with its two figures that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import INK, dress, panel_at
from analysis.inspection.gates import LONG, SHOWN_BINS, GateStatistics, Inspection
from analysis.pages.html import render
from arch.errors import InputError
from arch.registry import ARCHITECTURES
from arch.tables import text_table
from data.files import write_bytes, write_json

TEMPLATE = Path(__file__).with_name("inspection.html.j2")
COLUMNS = 4  # panels side by side
PANEL, GAP = 250, 60  # pixels
DECADES = 4  # of the colour scale of a token-mixing matrix, below its largest weight
NO_GATE = "no forget gate: this mixer has none"
ADDITIVE = "softmax as an additive recurrence: what each step of a token's pass over its past keeps of the output"
SOFTMAX = "no forget gate: softmax attention keeps every token"
MIXING = {
    "mixing": "The magnitude of the weight with which each token's output reads the value of a token before it: the "
    "mean over heads, divided by the layer's largest, on the first tokens of the text. It leaves out the norms and "
    "gates after the mixer.",
    "magnitudes": "The same without the rotations: what the forget and input gates let through, the mean over channels "
    "(the matrix Lambda of HGRN's eq. 7).",
    "angles": "The rotations alone: the mean over channels of the cosine of the angle by which a value has turned when "
    "it is read (the real part of Theta). It falls with the distance as fast as the channels' angles differ.",
}


def gates_rows(gates: list[GateStatistics | None]) -> list[dict[str, str]]:
    """A row for each layer with gates."""
    rows = []
    for layer, gate in enumerate(gates, start=1):
        if gate is not None:
            numbers = {"mean": gate.mean, "median": gate.median, "5%": gate.q05, "95%": gate.q95}
            row = {"layer": str(layer)} | {name: f"{value:.4f}" for name, value in numbers.items()}
            rows.append(row | {f"share > {LONG}": f"{gate.above_099:.1%}"})
    return rows


def additive_rows(inspection: Inspection) -> list[dict[str, str]]:
    """A row for each softmax layer as a recurrence."""
    layers = [layer for layer in inspection.additive if layer is not None]
    rows = gates_rows([None if layer is None else layer.gates for layer in inspection.additive])
    return [row | {"off attention by": f"{a.difference:.1e}"} for row, a in zip(rows, layers, strict=True)]


def no_gate(arch: str) -> str:
    """In words why an architecture's layers have no forget gate."""
    known = ARCHITECTURES.get(arch)
    return NO_GATE if known is None or known.constant_state else SOFTMAX


def gates_table(inspection: Inspection) -> str:
    """For the terminal: what was read, and the table, or why there is none."""
    head = f"{name_of(inspection.arch)}, {inspection.run_id}, step {inspection.step}"
    head += f": {inspection.n_tokens:,} tokens of {inspection.source}"
    tables = {"forget gates": gates_rows(inspection.gates), ADDITIVE: additive_rows(inspection)}
    shown = [f"{no_gate(inspection.arch)}"] if not tables["forget gates"] else []
    for name, rows in tables.items():
        if rows:
            shown.append(f"{name}\n{text_table(tuple(rows[0]), [tuple(row.values()) for row in rows], left=())}")
    return "\n".join([head, *shown])


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
        drawn["gates"] = _gates_figure(inspection)
    for name, matrices in inspection.mixing.items():
        if any(weights is not None for weights in matrices):
            drawn[name] = _mixing_figure(matrices, signed=name == "angles")
    return drawn


def _panels(n_layers: int, x: str, y: str) -> go.Figure:
    """A square panel for each layer."""
    columns = min(n_layers, COLUMNS)
    rows = -(-n_layers // columns)
    titles = [f"<b>Layer {i}</b>" for i in range(1, n_layers + 1)]
    width, height = columns * (PANEL + GAP), rows * (PANEL + GAP)
    spacing = {"horizontal_spacing": GAP / width, "vertical_spacing": GAP / height}
    figure = make_subplots(rows, columns, subplot_titles=titles, x_title=x, y_title=y, **spacing)
    figure.update_annotations(font_size=13)
    dress(figure, width + 150, height + 80, l=80, r=110, t=50, b=70)
    return figure


def _gates_figure(inspection: Inspection) -> go.Figure:
    """The distribution of each layer's forget gate, the median marked."""
    figure = _panels(len(inspection.gates), "forget gate f", "share of values")
    centers, color = (np.arange(SHOWN_BINS) + 0.5) / SHOWN_BINS, arch_colors([inspection.arch])[inspection.arch]
    for layer, gate in enumerate(inspection.gates):
        if gate is not None:
            hover = "f = %{x:.2f}<br>share %{y:.3f}<extra></extra>"
            bars = go.Bar(x=centers, y=gate.histogram, marker_color=color, showlegend=False, hovertemplate=hover)
            figure.add_trace(bars, **panel_at(layer, COLUMNS))
            figure.add_vline(gate.median, line={"color": INK, "width": 1.2, "dash": "dot"}, **panel_at(layer, COLUMNS))
    figure.update_layout(bargap=0)
    figure.update_xaxes(range=[0, 1.01], dtick=0.25)
    figure.update_yaxes(rangemode="tozero", nticks=6)
    return figure


def _mixing_figure(matrices: list[np.ndarray | None], signed: bool) -> go.Figure:
    """Each layer's weights, magnitudes over the layer's largest, on a log colour scale; signed: from -1 to 1 as they
    are."""
    figure = _panels(len(matrices), "value of token s", "output of token t")
    for layer, weights in enumerate(matrices):
        if weights is not None and weights.max() > 0:
            past = np.tri(len(weights), dtype=bool)
            with np.errstate(divide="ignore"):
                z = weights if signed else np.log10(weights / weights.max()).clip(-DECADES)
            hover = "output %{y} reads value %{x}<br>" + ("%{z:.2f}" if signed else "10^%{z:.2f} of the largest")
            shown = np.where(past, z, np.nan).astype(np.float32)
            figure.add_trace(
                go.Heatmap(z=shown, coloraxis="coloraxis", hovertemplate=hover + "<extra></extra>"),
                **panel_at(layer, COLUMNS),
            )
    exponents = list(range(-DECADES, 1))
    texts = ["≤ " * (e == -DECADES) + power_of_ten(10.0**e) for e in exponents]
    bar = {"title": {"text": "weight / largest"}, "tickvals": exponents, "ticktext": texts, "thickness": 14}
    scale = {"colorscale": "Viridis", "cmin": -DECADES, "cmax": 0, "colorbar": bar}
    if signed:
        scale = {
            "colorscale": "RdBu",
            "cmin": -1,
            "cmax": 1,
            "colorbar": {"title": {"text": "cosine"}, "thickness": 14},
        }
    figure.update_layout(coloraxis=scale)
    figure.update_xaxes(showgrid=False, zeroline=False, nticks=5)
    figure.update_yaxes(showgrid=False, zeroline=False, nticks=5, autorange="reversed")
    return figure


def page(inspection: Inspection, drawn: dict[str, go.Figure]) -> str:
    """index.html: the table and the figures."""
    return render(
        TEMPLATE,
        figures=bool(drawn),
        name=f"{name_of(inspection.arch)}: {inspection.run_id}, step {inspection.step}",
        n_tokens=f"{inspection.n_tokens:,}",
        source=inspection.source,
        rows=gates_rows(inspection.gates),
        additive=additive_rows(inspection),
        long=LONG,
        no_gate=no_gate(inspection.arch).capitalize(),
        drawn=drawn,
        mixing=MIXING,
    )
