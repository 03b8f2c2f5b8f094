"""evals/index.html of a study: the newest checkpoints' numbers by task, and the tasks' own tables and pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.pages.html import render
from data.files import new_directory, read_manifest

from .registry import ENTRIES, entry_of
from .results import Result, newest_of_each_run

if TYPE_CHECKING:
    import plotly.graph_objects as go

VERSION = 9  # of the page
TEMPLATE = Path(__file__).with_name("evals.html.j2")


class Drawn(NamedTuple):
    """The page. fresh: it was made now; no_pictures: why there are no pictures beside it, None where there are."""

    path: Path
    fresh: bool
    no_pictures: str | None


def write_page(directory: Path, study: str, results: Sequence[Result], unit: str, notes: Sequence[str] = ()) -> Drawn:
    """Draw the current `results`, losses in `unit` (data.units), into `directory`, unless the same page is there.
    `notes` stand on top."""
    wanted = hashlib.sha256(
        json.dumps([VERSION, [result.to_dict() for result in results], unit, list(notes)], sort_keys=True).encode()
    ).hexdigest()
    manifest = read_manifest(directory, verify=False)
    if manifest is not None and manifest.get("inputs_hash") == wanted:
        return Drawn(directory / "index.html", False, manifest["no_pictures"])

    from analysis.figures.png import write_pictures

    by_task: dict[str, list[Result]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(result)
    figures = {task: _plots(task).figures(group, unit) for task, group in by_task.items() if _plots(task)}
    content: dict[str, Any] = {"kind": "evals", "study": study, "inputs_hash": wanted}
    with new_directory(directory, content, kind="evals") as temporary:
        (temporary / "index.html").write_text(_html(study, by_task, figures, notes), encoding="utf-8")
        pictures = {name: figure for drawn in figures.values() for name, figure in drawn.items()}
        content["no_pictures"] = write_pictures(pictures, temporary / "figures") if pictures else None
    return Drawn(directory / "index.html", True, content["no_pictures"])


def _plots(task: str) -> Any:
    """The task's module with `figures(results, unit) -> {file name: figure}`, `table(results) -> rows` and NOTE, a line
    below the table; None where it has no such module. `results` are all stored results of the task."""
    entry = entry_of(task)
    return import_module(f"analysis.evals.{entry.plots}") if entry and entry.plots else None


def _html(
    study: str,
    by_task: dict[str, list[Result]],
    figures: dict[str, dict[str, go.Figure]],
    notes: Sequence[str],
) -> str:
    order = {name: place for place, name in enumerate(ENTRIES)}
    tasks = []
    for task in sorted(by_task, key=lambda name: (order.get(name, len(order)), name)):
        group, entry, plots = by_task[task], entry_of(task), _plots(task)
        tasks.append(
            {
                "name": task,
                "about": entry.about if entry else "",
                "n_checkpoints": len({(result.run_id, result.step) for result in group}),
                "rows": plots.table(group) if plots else number_rows(group),
                "note": plots.NOTE if plots else "",
                "figures": list(figures.get(task, {}).values()),
            }
        )
    return render(TEMPLATE, figures=any(figures.values()), study=study, notes=list(notes), tasks=tasks)


def number_rows(results: Sequence[Result]) -> list[dict[str, str]]:
    """A row for each run's newest checkpoint: the numbers at the top level of its values."""
    rows = []
    for result in newest_of_each_run(results):
        row = {"run": result.run_id, "step": f"{result.step:,}", "tokens": f"{result.n_tokens:,}"}
        for metric, value in result.numbers.items():
            if value is not None:
                row[metric] = f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
        rows.append(row)
    return rows
