"""HGRN2's figure 3 of a sweep: accuracy against width, a panel for each length, a line for each architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.palette import arch_colors, name_of
from analysis.figures.png import write_pictures
from analysis.figures.style import dress
from analysis.pages.html import render
from arch.amounts import counted
from data.files import write_bytes, write_json

from .recipe import Sweep, Trial
from .sweep import Outcome, Unit

TEMPLATE = Path(__file__).with_name("recall.html.j2")
PANEL, HEIGHT = 300, 380  # pixels
HEADINGS = (
    "problem",
    "width",
    "arch",
    "accuracy",
    "over seeds",
    "rate (expand ratio)",
    "steps to done",
    "tried at the first seed",
)


def records(sweep: Sweep, outcomes: Mapping[Unit, Outcome | None]) -> list[dict[str, Any]]:
    """A record for each settled unit."""
    return [
        {
            "arch": unit.arch,
            "length": unit.problem.length,
            "pairs": unit.problem.pairs,
            "width": unit.width,
            "accuracy": outcome.accuracy,
            "by_seed": {run.seed: run.accuracy for run in outcome.runs},
            "rate": outcome.runs[0].rate,
            "expand_ratio": outcome.runs[0].ratio,
            "steps_to_done": outcome.runs[0].steps_to(sweep.done),
            "tried": {str(run.trial): run.accuracy for run in outcome.sweep},
        }
        for unit, outcome in outcomes.items()
        if outcome is not None
    ]


def table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows' cells, under HEADINGS."""
    cells: list[tuple[str, ...]] = []
    for row in rows:
        scores = list(row["by_seed"].values())
        spread = f"{min(scores):.3f}-{max(scores):.3f} ({len(scores)})" if len(scores) > 1 else "one seed"
        tried = "  ".join(f"{trial}: {accuracy:.3f}" for trial, accuracy in row["tried"].items())
        problem = f"{row['length']}x{row['pairs']}"
        steps = str(row["steps_to_done"] or "-")
        cells.append(
            (
                problem,
                str(row["width"]),
                row["arch"],
                f"{row['accuracy']:.3f}",
                spread,
                str(Trial(row["rate"], row["expand_ratio"])),
                steps,
                tried,
            )
        )
    return cells


def figure(sweep: Sweep, rows: Sequence[dict[str, Any]]) -> go.Figure:
    """Accuracy of the chosen trial, the mean over seeds, with bars from the worst to the best seed."""
    problems = sorted(sweep.problems, key=lambda problem: problem.length)
    titles = [f"{problem.length} tokens, {counted(problem.pairs, 'pair')}" for problem in problems]
    drawn = make_subplots(rows=1, cols=len(problems), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03)
    colors = arch_colors(sweep.archs)
    for column, problem in enumerate(problems, start=1):
        for arch in sweep.archs:
            line = [row for row in rows if (row["arch"], row["length"]) == (arch, problem.length)]
            line = sorted((row for row in line if row["pairs"] == problem.pairs), key=lambda row: row["width"])
            up = [max(row["by_seed"].values()) - row["accuracy"] for row in line]
            down = [row["accuracy"] - min(row["by_seed"].values()) for row in line]
            drawn.add_trace(
                go.Scatter(
                    x=[row["width"] for row in line],
                    y=[row["accuracy"] for row in line],
                    error_y={"array": up, "arrayminus": down, "thickness": 1} if len(sweep.seeds) > 1 else None,
                    mode="lines+markers",
                    name=name_of(arch),
                    legendgroup=arch,
                    showlegend=column == 1,
                    line={"color": colors[arch]},
                ),
                row=1,
                col=column,
            )
    ticks = sorted(sweep.widths)
    drawn.update_xaxes(title="d_model", type="log", tickvals=ticks, ticktext=[str(width) for width in ticks])
    drawn.update_yaxes(range=[-0.03, 1.03], tickformat=".0%")
    drawn.update_yaxes(title="queries answered", row=1, col=1)
    width = 170 + PANEL * len(problems)
    dress(drawn, max(width, 620), HEIGHT, t=60)
    return drawn


def write(sweep: Sweep, outcomes: Mapping[Unit, Outcome | None], directory: Path) -> dict[str, Any]:
    """Write recall.json, index.html and, where Chrome is installed, recall.png. Returns their paths and the records."""
    rows = records(sweep, outcomes)
    directory.mkdir(parents=True, exist_ok=True)
    missing = [unit.name for unit, outcome in outcomes.items() if outcome is None]
    content = {"schema": 1, "sweep": sweep.model_dump(mode="json"), "summary": sweep.summary(), "rows": rows}
    content["missing"] = missing
    write_json(directory / "recall.json", content, kind="results")
    drawn = figure(sweep, rows)
    page = render(
        TEMPLATE,
        figures=True,
        name=sweep.name,
        summary=sweep.summary(),
        drawn=drawn,
        rows=[dict(zip(HEADINGS, cells, strict=True)) for cells in table(rows)],
        missing=missing,
    )
    write_bytes(directory / "index.html", page.encode(), kind="results")
    reason = write_pictures({"recall": drawn}, directory / "figures")
    return {
        "summary": sweep.summary(),
        "rows": rows,
        "missing": missing,
        "page": str(directory / "index.html"),
        "no_pictures": reason,
    }
