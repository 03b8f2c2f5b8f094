"""HGRN2's figure 3 of a sweep: accuracy against width, a panel for each length, a line for each architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

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


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The records for people."""
    return [
        {
            "problem": f"{row['length']}x{row['pairs']}",
            "width": str(row["width"]),
            "arch": row["arch"],
            "accuracy": f"{row['accuracy']:.3f}",
            "by seed": "  ".join(f"{seed}: {accuracy:.3f}" for seed, accuracy in row["by_seed"].items()),
            "steps to done": str(row["steps_to_done"] or "-"),
            "tried at the first seed": "  ".join(
                f"{trial}: {accuracy:.3f}" for trial, accuracy in row["tried"].items()
            ),
        }
        for row in rows
    ]


def figure(sweep: Sweep, rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Accuracy of the chosen trial, the mean over seeds, with bars from the worst to the best seed."""
    frame = pd.DataFrame(rows, columns=["arch", "length", "pairs", "width", "accuracy", "by_seed"])
    frame = frame.sort_values(["length", "width"])
    frame["problem"] = [
        f"{n} tokens, {counted(k, 'pair')}" for n, k in zip(frame["length"], frame["pairs"], strict=True)
    ]
    frame["architecture"] = frame["arch"].map(name_of)
    colors = arch_colors(sweep.archs)
    drawn = px.line(
        frame.assign(
            up=[max(seeds.values()) for seeds in frame["by_seed"]] - frame["accuracy"],
            down=frame["accuracy"] - [min(seeds.values()) for seeds in frame["by_seed"]],
        ),
        x="width",
        y="accuracy",
        color="architecture",
        facet_col="problem",
        error_y="up" if len(sweep.seeds) > 1 else None,
        error_y_minus="down" if len(sweep.seeds) > 1 else None,
        log_x=True,
        markers=True,
        color_discrete_map={name_of(arch): color for arch, color in colors.items()},
        category_orders={"architecture": [name_of(arch) for arch in sweep.archs]},
        labels={"width": "d_model", "accuracy": "queries answered"},
    )
    drawn.for_each_annotation(lambda note: note.update(text=note.text.removeprefix("problem=")))
    ticks = sorted(sweep.widths)
    drawn.update_xaxes(tickvals=ticks, ticktext=[str(width) for width in ticks])
    drawn.update_yaxes(range=[-0.03, 1.03], tickformat=".0%")
    dress(drawn, max(170 + PANEL * len(sweep.problems), 620), HEIGHT, t=60)
    return drawn


def write(sweep: Sweep, outcomes: Mapping[Unit, Outcome | None], directory: Path) -> dict[str, Any]:
    """Write recall.json, index.html and, where Chrome is installed, recall.png. Returns their paths and the records."""
    shown: dict[str, Any] = {
        "summary": sweep.summary(),
        "rows": [record(sweep, outcome) for outcome in outcomes.values() if outcome is not None],
        "missing": [unit.name for unit, outcome in outcomes.items() if outcome is None],
    }
    content = {"schema": 1, "sweep": sweep.model_dump(mode="json"), **shown}
    write_json(directory / "recall.json", content, kind="results")
    drawn, names = figure(sweep, shown["rows"]), {"name": sweep.name, "summary": shown["summary"]}
    page = render(TEMPLATE, figures=True, drawn=drawn, rows=table(shown["rows"]), missing=shown["missing"], **names)
    write_bytes(directory / "index.html", page.encode(), kind="results")
    reason = write_pictures({"recall": drawn}, directory / "figures")
    return shown | {"page": str(directory / "index.html"), "no_pictures": reason}
