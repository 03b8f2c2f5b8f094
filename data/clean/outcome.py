"""The end of `scaling clean-text`: what was dropped is counted, text/ gets its name, and the record is written last."""

from __future__ import annotations

import gzip
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data.clean.filtering import NEAR, RECORD, SCHEMA, Filtering
from data.clean.near import EXAMPLES, SHOWN
from data.files import fsync_dir, read_json, write_json


def finish(filtering: Filtering) -> None:
    """Write the record of all stages, whose tasks have ended well; a second time the same. Intermediate files are
    removed."""
    if (filtering.work / "text").exists():
        shutil.rmtree(filtering.text, ignore_errors=True)
        (filtering.work / "text").rename(filtering.text)
        fsync_dir(filtering.directory)
    read, rules = _statistics(filtering.logs("rules")), [step for step in filtering.steps if step != NEAR]
    counts = {name: count for name, count in read[0].items() if name in ("documents", *LEFT_OUT)}
    steps = [_entry(filtering, step, counts_of_step) for step, counts_of_step in zip(rules, read[1:], strict=False)]
    if filtering.near:
        steps.append(_entry(filtering, NEAR, _statistics(filtering.logs("near"))[1]))
    files = (
        {path.name: path.stat().st_size for path in sorted(filtering.text.iterdir())} if filtering.text.exists() else {}
    )
    record = {
        "kind": "cleaning",
        "schema": SCHEMA,
        "asked": filtering.identity(),
        "counts": counts | {"kept": counts["documents"] - sum(step["dropped"] for step in steps)},
        "steps": steps,
        "files": files,
    }
    write_json(filtering.directory / RECORD, record)
    shutil.rmtree(filtering.work, ignore_errors=True)


LEFT_OUT = ("binary", "invalid_utf8", "invalid_records", "empty")  # by the reader


def _statistics(logs: Path) -> list[dict[str, int]]:
    """Of each step of a stage the sums of its counts over the tasks, as datatrove stored them."""
    sums: list[dict[str, int]] = []
    for path in sorted((logs / "stats").glob("[0-9]*.json")):
        for i, step in enumerate(read_json(path)):
            if i == len(sums):
                sums.append({})
            for name, value in step["stats"].items():
                number = value["total"] if isinstance(value, dict) else value
                sums[i][name] = sums[i].get(name, 0) + int(number)
    return sums


def _entry(filtering: Filtering, step: str, statistics: dict[str, int]) -> dict[str, Any]:
    reasons = {
        name.removeprefix("dropped_"): n for name, n in sorted(statistics.items()) if name.startswith("dropped_")
    }
    return {
        "step": step,
        "by": f"datatrove {version('datatrove')}",
        "documents": statistics.get("total", 0),
        "dropped": statistics.get("dropped", 0),
        **({"reasons": reasons} if reasons else {}),
        "examples": _examples(filtering.dropped(step)),
    }


def _examples(folder: Path) -> list[dict[str, str]]:
    examples: list[dict[str, str]] = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                if len(examples) == EXAMPLES:
                    return examples
                row = json.loads(line)
                example = {"document": row["id"], "text": " ".join(row["text"].split())[:SHOWN]}
                why = row.get("metadata", {}).get("filter_reason")
                examples.append(example | ({"why": why} if why else {}))
    return examples
