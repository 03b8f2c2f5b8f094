"""Heatmaps of needle-in-a-haystack results, as the paper's figures: length to the right, depth downwards.

    python -m analysis.evals.niah.plots OUT/STUDY [--out DIR]

draws each run's newest result of each task. Red is a score of 1, green 10; lengths beyond the training context are
hatched.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.axes import si
from analysis.palette import name_of
from analysis.pictures import add_pictures
from analysis.plots import INK
from arch.errors import InputError
from data.files import read_json

COLORS = ((0.0, "#f0496e"), (0.5, "#ebb839"), (1.0, "#0cd79f"))  # red, amber, green
WIDTH, HEIGHT = 760, 420
MAX_TICKS = 12
HATCH = "rgba(34,34,34,0.55)"


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
        **_ticks([si(length) if length < 1000 else f"{length / 1000:.1f}k" for length in lengths]),
        title_text="prompt and answer (tokens)",
        range=[-0.5, len(lengths) - 0.5],
    )
    figure.update_yaxes(
        **_ticks([f"{depth}%" for depth in depths]), title_text="depth of the needle", range=[len(depths) - 0.5, -0.5]
    )
    figure.update_layout(
        title={"text": f"<b>{title}</b><br><sup>{summary(result)}</sup>", "x": 0.02, "font": {"size": 15}},
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 70, "r": 20, "t": 70, "b": 60},
        font={"color": INK, "size": 12},
        plot_bgcolor="white",
        showlegend=False,
    )
    return figure


def summary(result: Mapping[str, Any]) -> str:
    """Under the title: the three averages, and what is hatched."""
    parts = [f"accuracy {result['acc_avg']:.1f}%", f"weighted {result['weighted_avg_acc']:.1f}%"]
    parts.append(f"NIAH score {result['niah_score']:.1f}%")
    if result["extrapolated"]:
        parts.append(f"hatched: beyond the training context of {result['context_length']:,} tokens")
    return " · ".join(parts)


def newest_results(study: Path) -> dict[str, dict[str, Any]]:
    """{run-task: result file} of each run's last step that has one. Raises InputError where there is none at all."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(study.glob("runs/*/evals/*/niah-*.json")):  # by run, then step: the last one stays
        result = dict(read_json(path))
        found[f"{result['run_id']}-{result['task']}"] = result
    if not found:
        raise InputError(f"{study}: no needle-in-a-haystack results here; run `scaling eval STUDY --tasks niah` first")
    return found


def figures(study: Path) -> dict[str, go.Figure]:
    return {name: heatmap(result["values"], _title(result)) for name, result in newest_results(study).items()}


def _title(result: Mapping[str, Any]) -> str:
    arch, _, rest = result["run_id"].partition("-")
    return f"{result['task']}: {name_of(arch)} {rest} after {si(result['n_tokens'])} tokens"


def _hatching(columns: list[int], n_depths: int) -> go.Bar:
    """Transparent bars with stripes over these columns, the whole height."""
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
    """As many of them as fit, the last one among them."""
    every = -(-len(labels) // MAX_TICKS)
    shown = sorted(range(len(labels) - 1, -1, -every))
    return {"tickvals": shown, "ticktext": [labels[i] for i in shown]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Heatmaps of a study's needle-in-a-haystack results.")
    parser.add_argument("study", type=Path, help="OUT/STUDY")
    parser.add_argument("--out", type=Path, help="default: OUT/STUDY/report/niah")
    asked = parser.parse_args()
    out = asked.out or asked.study / "report" / "niah"
    try:
        drawn = figures(asked.study)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    reason = add_pictures(drawn, out)
    print(f"{len(drawn)} heatmaps in {out}" if reason is None else f"no pictures: {reason}")


if __name__ == "__main__":
    main()
