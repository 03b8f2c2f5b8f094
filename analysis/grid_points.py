"""The points of a grid's axes in tables: a label, a column for every axis, and what --set changed of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from scaling.study.axes import label_of, short, value_text

SAME = ("lr", "batch_tokens", "context_length", "precision", "warmup_tokens", "reset_at_documents")
# columns of the table of runs already


def point_of_run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """By field, the point of a stored run: its axes', and what --set changed of it."""
    point = dict(spec.get("point") or {})
    for change in spec.get("sets") or ():
        section, _, field = change.partition("=")[0].strip().partition(".")
        if section in ("training", "model"):
            point[f"{section}.{field}"] = spec[section].get(field)
    return point


def named(point: Mapping[str, Any], sets: Iterable[str]) -> dict[str, str]:
    """The columns `point` and `variant` of a run."""
    return {"point": label_of(point), "variant": ", ".join(sets)}


def with_axes(frame: pd.DataFrame, points: Mapping[str, Mapping[str, Any]], same: Sequence[str] = ()) -> pd.DataFrame:
    """`frame` (with run_id) with a column for every field of the points (by run): named without its section, with it
    where the table has another column of that name. same: columns that have the field already."""
    for field in dict.fromkeys(field for point in points.values() for field in point):
        if short(field) in same:
            continue
        values = {run: _plain(point[field]) for run, point in points.items() if field in point}
        frame[field if short(field) in frame else short(field)] = frame["run_id"].map(values)
    return frame


def _plain(value: Any) -> Any:
    return value_text(value) if isinstance(value, list) else value
