"""Tables and heatmaps of needle-in-a-haystack results, as the paper's: length to the right, depth downwards.

Orange is a score of 1, blue 10 (colour-blind readers cannot distinguish the paper's red and green); lengths beyond the
training context are hatched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.evals.results import Result, newest_of_each_run
from analysis.figures.palette import name_of
from analysis.figures.style import dress
from arch.amounts import count

from .scores import COLUMNS, CUTS

NOTE = (
    "In per cent, for each run's newest checkpoint. @: at that length; <=: up to that length (as in tables 12 to 14 of "
    "the scaling-law paper). trained, beyond: means over lengths inside and beyond the training context. shuffled: a "
    "control that scores the same answers against the number of another cell."
)
HEADINGS = {
    **{f"acc_at_{name}": f"acc@{name}" for name in COLUMNS},
    **{f"acc_le_{name}": f"acc<={name}" for name in CUTS},
    **{"acc_avg": "avg", "weighted_avg_acc": "weighted", "niah_score": "NIAH score"},
    **{"acc_trained": "trained", "acc_extrapolated": "beyond", "acc_shuffled": "shuffled"},
}
COLORS = ((0.0, "#c2410c"), (0.5, "#f3ead3"), (1.0, "#0072b2"))  # orange, pale, blue
WIDTH, HEIGHT = 760, 420
MAX_TICKS = 12
HATCH = "rgba(34,34,34,0.55)"


def table(results: Sequence[Result]) -> list[dict[str, str]]:
    """A row for each run's newest checkpoint, with the paper's columns and ours; "-" where the grid does not reach."""
    rows = []
    for result in newest_of_each_run(results):
        values, row = result.values, {"run": result.run_id, "tokens": count(result.n_tokens, 4)}
        for name, heading in HEADINGS.items():
            if name in values:
                row[heading] = "-" if values[name] is None else f"{values[name]:.1f}"
        rows.append(row)
    return rows


def figures(results: Sequence[Result], unit: str) -> dict[str, go.Figure]:
    """By file name: a heatmap of each run's newest checkpoint."""
    newest = newest_of_each_run(results)
    return {f"{result.task}-{result.run_id}": heatmap(result.values, _title(result)) for result in newest}


def heatmap(result: Mapping[str, Any], title: str) -> go.Figure:
    """The grid of one result file's `values`; cells stand side by side, whatever the distance of their lengths."""
    lengths, depths = result["lengths"], result["depths_percent"]
    scores = np.array(result["scores"]).T  # [n_depths, n_lengths]
    figure = go.Figure(
        go.Heatmap(
            z=scores,
            customdata=np.broadcast_to(np.array(lengths), scores.shape),
            text=np.broadcast_to(np.array(depths)[:, None], scores.shape),
            zmin=1,
            zmax=10,
            colorscale=COLORS,
            colorbar={"title": {"text": "score"}, "tickvals": [1, 4, 7, 10], "thickness": 14, "outlinewidth": 0},
            hovertemplate="%{customdata:,} tokens, depth %{text}%<br>score %{z}<extra></extra>",
        )
    )
    beyond = [i for i, length in enumerate(lengths) if length > result["context_length"]]
    if beyond:
        figure.add_trace(_hatching(beyond, len(depths)))
    figure.update_xaxes(
        **_ticks([count(length, 4) if length < 1000 else f"{length / 1000:.1f}k" for length in lengths]),
        title_text="prompt and answer (tokens)",
        range=[-0.5, len(lengths) - 0.5],
    )
    figure.update_yaxes(
        **_ticks([f"{depth}%" for depth in depths]), title_text="depth of the needle", range=[len(depths) - 0.5, -0.5]
    )
    dress(figure, WIDTH, HEIGHT, r=20, t=90)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(showgrid=False, zeroline=False)
    figure.update_layout(
        title={"text": f"<b>{title}</b><br><sup>{summary(result)}</sup>", "x": 0.02, "font": {"size": 15}},
        showlegend=False,
    )
    return figure


def summary(result: Mapping[str, Any]) -> str:
    """The line below the title: the three averages, and what is hatched."""
    parts = [f"accuracy {result['acc_avg']:.1f}%", f"weighted {result['weighted_avg_acc']:.1f}%"]
    hatched = ""
    parts.append(f"NIAH score {result['niah_score']:.1f}%")
    if result["extrapolated"]:
        hatched = f"<br>hatched: beyond the training context of {result['context_length']:,} tokens"
    return " · ".join(parts) + hatched


def _title(result: Result) -> str:
    arch, _, rest = result.run_id.partition("-")
    return f"{result.task}: {name_of(arch)} {rest} after {count(result.n_tokens, 4)} tokens"


def _hatching(columns: list[int], n_depths: int) -> go.Bar:
    """Transparent striped bars over these columns, as high as the grid."""
    pattern = {"shape": "/", "size": 7, "solidity": 0.12, "fgcolor": HATCH, "bgcolor": "rgba(0,0,0,0)"}
    return go.Bar(
        x=columns,
        y=[n_depths] * len(columns),
        base=-0.5,
        width=1,
        marker={"color": "rgba(0,0,0,0)", "pattern": pattern, "line": {"width": 0}},
        hoverinfo="skip",
    )


def _ticks(labels: list[str]) -> dict[str, Any]:
    """As many of the labels as fit, among them the last."""
    every = -(-len(labels) // MAX_TICKS)
    shown = sorted(range(len(labels) - 1, -1, -every))
    return {"tickvals": shown, "ticktext": [labels[i] for i in shown]}
