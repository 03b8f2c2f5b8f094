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

from .recipe import Sweep
from .sweep import Outcome, Unit

TEMPLATE = Path(__file__).with_name("recall.html.j2")
PANEL, HEIGHT = 300, 380  # pixels
HEADINGS = (
    *("problem", "width", "arch", "accuracy", "over seeds", "rate (expand ratio)", "steps to done"),
    "tried at the first seed",
)


def record(sweep: Sweep, outcome: Outcome) -> dict[str, Any]:
    """A settled unit as plain data."""
    first = outcome.runs[0]
    return {
        "arch": outcome.unit.arch,
        "length": outcome.unit.problem.length,
        "pairs": outcome.unit.problem.pairs,
        "width": outcome.unit.width,
        "accuracy": outcome.accuracy,
        "by_seed": {run.seed: run.accuracy for run in outcome.runs},
        "rate": first.rate,
        "expand_ratio": first.ratio,
        "steps_to_done": first.steps_to(sweep.done),
        "tried": {str(run.trial): run.accuracy for run in outcome.sweep},
    }


def table(sweep: Sweep, settled: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """A row for each settled unit, under HEADINGS."""
    rows: list[tuple[str, ...]] = []
    for outcome in settled:
        first, scores = outcome.runs[0], [run.accuracy for run in outcome.runs]
        spread = f"{min(scores):.3f}-{max(scores):.3f} ({len(scores)})" if len(scores) > 1 else "one seed"
        tried = "  ".join(f"{run.trial}: {run.accuracy:.3f}" for run in outcome.sweep)
        steps = str(first.steps_to(sweep.done) or "-")
        unit, accuracy = outcome.unit, f"{outcome.accuracy:.3f}"
        rows.append((unit.problem.name, str(unit.width), unit.arch, accuracy, spread, str(first.trial), steps, tried))
    return rows


def figure(sweep: Sweep, settled: Sequence[Outcome]) -> go.Figure:
    """Accuracy of the chosen trial, the mean over seeds, with bars from the worst to the best seed."""
    problems = sorted(sweep.problems, key=lambda problem: problem.length)
    titles = [f"{problem.length} tokens, {counted(problem.pairs, 'pair')}" for problem in problems]
    drawn = make_subplots(rows=1, cols=len(problems), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03)
    colors = arch_colors(sweep.archs)
    for column, problem in enumerate(problems, start=1):
        for arch in sweep.archs:
            points = [outcome for outcome in settled if (outcome.unit.arch, outcome.unit.problem) == (arch, problem)]
            points.sort(key=lambda outcome: outcome.unit.width)
            up = [max(run.accuracy for run in outcome.runs) - outcome.accuracy for outcome in points]
            down = [outcome.accuracy - min(run.accuracy for run in outcome.runs) for outcome in points]
            line = go.Scatter(
                x=[outcome.unit.width for outcome in points],
                y=[outcome.accuracy for outcome in points],
                error_y={"array": up, "arrayminus": down, "thickness": 1} if len(sweep.seeds) > 1 else None,
                mode="lines+markers",
                name=name_of(arch),
                legendgroup=arch,
                showlegend=column == 1,
                line={"color": colors[arch]},
            )
            drawn.add_trace(line, row=1, col=column)
    ticks = sorted(sweep.widths)
    drawn.update_xaxes(title="d_model", type="log", tickvals=ticks, ticktext=[str(width) for width in ticks])
    drawn.update_yaxes(range=[-0.03, 1.03], tickformat=".0%")
    drawn.update_yaxes(title="queries answered", row=1, col=1)
    dress(drawn, max(170 + PANEL * len(problems), 620), HEIGHT, t=60)
    return drawn


def write(sweep: Sweep, outcomes: Mapping[Unit, Outcome | None], directory: Path) -> dict[str, Any]:
    """Write recall.json, index.html and, where Chrome is installed, recall.png. Returns their paths and the records."""
    settled = [outcome for outcome in outcomes.values() if outcome is not None]
    directory.mkdir(parents=True, exist_ok=True)
    shown = {
        "summary": sweep.summary(),
        "rows": [record(sweep, outcome) for outcome in settled],
        "missing": [unit.name for unit, outcome in outcomes.items() if outcome is None],
    }
    content = {"schema": 1, "sweep": sweep.model_dump(mode="json"), **shown}
    write_json(directory / "recall.json", content, kind="results")
    drawn, rows = figure(sweep, settled), [dict(zip(HEADINGS, row, strict=True)) for row in table(sweep, settled)]
    names = {"name": sweep.name, "summary": shown["summary"], "missing": shown["missing"]}
    page = render(TEMPLATE, figures=True, drawn=drawn, rows=rows, **names)
    write_bytes(directory / "index.html", page.encode(), kind="results")
    reason = write_pictures({"recall": drawn}, directory / "figures")
    return shown | {"page": str(directory / "index.html"), "no_pictures": reason}
