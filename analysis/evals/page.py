"""evals/index.html of a study: the newest checkpoints' scores by task, and the tasks' own tables and pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.figures import png
from analysis.pages.html import render
from data.files import new_directory, read_manifest

from .niah.settings import VARIANTS
from .registry import ENTRIES, entry_of
from .results import Result, score_tables

VERSION = 11  # of the page
TEMPLATE = Path(__file__).with_name("evals.html.j2")


def write_page(directory: Path, study: str, results: Sequence[Result], notes: Sequence[str] = ()) -> png.Drawn:
    """Draw the current `results` into `directory`, unless the same page is there. `notes` stand on top."""
    made_of = json.dumps([VERSION, [result.to_dict() for result in results], list(notes)], sort_keys=True)
    wanted = hashlib.sha256(made_of.encode()).hexdigest()
    manifest = read_manifest(directory, verify=False)
    if manifest is not None and manifest.get("inputs_hash") == wanted:
        return png.Drawn(directory / "index.html", False, manifest["no_pictures"])

    names, order = dict.fromkeys(result.task for result in results), list(ENTRIES)
    tasks = [
        _shown(task, [result for result in results if result.task == task])
        for task in sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))
    ]
    pictures = {name: figure for task in tasks for name, figure in task["figures"].items()}
    content: dict[str, Any] = {"kind": "evals", "study": study, "inputs_hash": wanted}
    with new_directory(directory, content, kind="evals") as temporary:
        html = render(TEMPLATE, figures=bool(pictures), study=study, notes=list(notes), tasks=tasks)
        (temporary / "index.html").write_text(html, encoding="utf-8")
        content["no_pictures"] = png.write_pictures(pictures, temporary / "figures") if pictures else None
    return png.Drawn(directory / "index.html", True, content["no_pictures"])


def _shown(task: str, results: list[Result]) -> dict[str, Any]:
    """What the template shows of a task: its scores, and of a needle in a haystack pictures."""
    figures = {}
    if task in VARIANTS:
        from .niah.plots import figures as draw

        figures = draw(results)
    entry = entry_of(task)
    return {
        "name": task,
        "about": entry.about if entry else "",
        "n_checkpoints": len({(result.run_id, result.step) for result in results}),
        "rows": score_tables(results)[task],
        "figures": figures,
    }
