"""evals/index.html of a study: the newest checkpoints' numbers by task, and the tasks' own tables and pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from data.files import new_directory, read_manifest

from .registry import ENTRIES, entry_of
from .table import newest_of_each_run

if TYPE_CHECKING:
    import plotly.graph_objects as go

VERSION = 4  # of the page


class Drawn(NamedTuple):
    """The page, whether it was made now, and why there are no pictures beside it (None: there are)."""

    path: Path
    fresh: bool
    no_pictures: str | None


def write_page(directory: Path, study: str, results: Sequence[dict[str, Any]], notes: Sequence[str] = ()) -> Drawn:
    """Draw `results` (analysis.evals.standing) into `directory`, unless that is done already; `notes` stand on top."""
    wanted = hashlib.sha256(json.dumps([VERSION, results, list(notes)], sort_keys=True).encode()).hexdigest()
    manifest = read_manifest(directory, verify=False)
    if manifest is not None and manifest.get("inputs_hash") == wanted:
        return Drawn(directory / "index.html", False, manifest["no_pictures"])

    from analysis.figures.png import write_pictures

    by_task: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_task.setdefault(result["task"], []).append(result)
    figures = {task: _plots(task).figures(found) for task, found in by_task.items() if _plots(task)}
    content: dict[str, Any] = {"kind": "evals", "study": study, "inputs_hash": wanted}
    with new_directory(directory, content, kind="evals") as temporary:
        (temporary / "index.html").write_text(_html(study, by_task, figures, notes), encoding="utf-8")
        pictures = {name: figure for drawn in figures.values() for name, figure in drawn.items()}
        content["no_pictures"] = write_pictures(pictures, temporary / "figures") if pictures else None
    return Drawn(directory / "index.html", True, content["no_pictures"])


def _plots(task: str) -> Any:
    """The module with `figures(results) -> {file name: figure}`, `table(results) -> rows` and NOTE, a line below the
    table; None where there is none. `results` are all stored ones of the task."""
    entry = entry_of(task)
    return import_module(f"analysis.evals.{entry.plots}") if entry and entry.plots else None


def _html(
    study: str,
    by_task: dict[str, list[dict[str, Any]]],
    figures: dict[str, dict[str, go.Figure]],
    notes: Sequence[str],
) -> str:
    from plotly.offline import get_plotlyjs

    from analysis.report.page import STYLE

    parts = [f"<h1>{escape(study)}: evaluations</h1>", *(f"<p>{escape(note)}</p>" for note in notes)]
    order = {name: place for place, name in enumerate(ENTRIES)}
    for task in sorted(by_task, key=lambda name: (order.get(name, len(order)), name)):
        found = by_task[task]
        n_checkpoints = len({(result["run_id"], result["step"]) for result in found})
        entry = entry_of(task)
        about = entry.about if entry else ""
        parts.append(f"<h2>{escape(task)}</h2><p class=lead>{escape(about)}; {n_checkpoints} checkpoints</p>")
        plots = _plots(task)
        parts.append(_table(plots.table(found) if plots else numbers(found)))
        parts.append(f"<p>{escape(plots.NOTE)}</p>" if plots else "")
        config = {"displaylogo": False, "responsive": False}
        for figure in figures.get(task, {}).values():
            html = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
            parts.append(f"<div class=wide>{html}</div>")
    head = f"<meta charset=utf-8><title>{escape(study)}: evaluations</title><style>{STYLE}</style>"
    script = f"<script>{get_plotlyjs()}</script>" if any(figures.values()) else ""
    return f"<!doctype html><html lang=en><head>{head}{script}</head><body>{''.join(parts)}</body></html>\n"


def numbers(results: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row for each run's newest checkpoint: the numbers at the top level of its values."""
    rows = []
    for result in newest_of_each_run(results):
        row = {"run": result["run_id"], "step": f"{result['step']:,}", "tokens": f"{result['n_tokens']:,}"}
        for metric, value in result["values"].items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                row[metric] = f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
        rows.append(row)
    return rows


def _table(rows: Sequence[dict[str, str]]) -> str:
    heads = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["".join(f"<th class=n>{escape(name)}</th>" for name in heads)]
    lines += ["".join(f"<td class=n>{escape(row.get(name, '-'))}</td>" for name in heads) for row in rows]
    return f"<div class=wide><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table></div>"
