"""Heatmaps of needle-in-a-haystack results, as the paper's: length to the right, depth downwards.

Orange is a score of 1, blue 10 (colour-blind readers cannot distinguish the paper's red and green); a line stands where
the training context ends.
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
from scaling.study.run import arch_of_run

COLORS = ((0.0, "#c2410c"), (0.5, "#f3ead3"), (1.0, "#0072b2"))  # orange, pale, blue
WIDTH, HEIGHT = 760, 420


def figures(results: Sequence[Result]) -> dict[str, go.Figure]:
    """By file name: a heatmap of each run's newest checkpoint."""
    drawn = {}
    for result in newest_of_each_run(results):
        arch = arch_of_run(result.run_id)
        rest = result.run_id.removeprefix(f"{arch}-")
        title = f"{result.task}: {name_of(arch)} {rest} after {count(result.n_tokens, 4)} tokens"
        drawn[f"{result.task}-{result.run_id}"] = heatmap(result.values, title)
    return drawn


def heatmap(values: Mapping[str, Any], title: str) -> go.Figure:
    """The grid of one result's values; cells stand side by side, whatever the distance of their lengths."""
    lengths = [f"{length:,}" for length in values["lengths"]]
    depths = [f"{depth}%" for depth in values["depths_percent"]]
    figure = go.Figure(
        go.Heatmap(
            x=lengths,
            y=depths,
            z=np.array(values["scores"]).T,  # [n_depths, n_lengths]
            zmin=1,
            zmax=10,
            colorscale=COLORS,
            colorbar={"title": {"text": "score"}, "tickvals": [1, 4, 7, 10], "thickness": 14, "outlinewidth": 0},
            hovertemplate="%{x} tokens, depth %{y}<br>score %{z}<extra></extra>",
        )
    )
    means = f"accuracy {values['acc_avg']:.1f}% · weighted {values['weighted_avg_acc']:.1f}%"
    means += f" · NIAH score {values['niah_score']:.1f}%"
    if values["extrapolated"]:
        n_inside = sum(length <= values["context_length"] for length in values["lengths"])
        figure.add_vline(n_inside - 0.5, line={"color": "#222222", "dash": "dash", "width": 1.5})
        means += f"<br>right of the line: beyond the training context of {values['context_length']:,} tokens"
    figure.update_xaxes(type="category", nticks=12, showgrid=False, title_text="prompt and answer (tokens)")
    figure.update_yaxes(
        type="category", nticks=12, showgrid=False, autorange="reversed", title_text="depth of the needle"
    )
    dress(figure, WIDTH, HEIGHT, r=20, t=90)
    heading = {"text": f"<b>{title}</b><br><sup>{means}</sup>", "x": 0.02, "font": {"size": 15}}
    figure.update_layout(title=heading, showlegend=False)
    return figure
