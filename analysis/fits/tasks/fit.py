"""The scores of a study's tasks beside its losses: the part `downstream` of fits.json.

A score belongs to the loss that the laws are fitted to, read where the checkpoint was taken, so that a link can be
chained to L(C). What is left out of a task is counted by reason, and a law that is withheld says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.downstream.link import LEVEL
from analysis.fits.downstream.result import to_result
from analysis.fits.downstream.scores import Scores
from analysis.fits.downstream.shared import fit_shared
from analysis.fits.study_fits import StudyFits
from analysis.fits.tasks.laws import law_of
from analysis.fits.tasks.lengths import by_length
from analysis.fits.tasks.places import Checkpoint, Key, places_of
from analysis.fits.tasks.rankings import rankings_of
from analysis.run_table import RunTable
from analysis.scales import TREND, Scale
from arch.errors import InputError

VERSION = 1
SAME = 0.05  # p-value above which one link for all architectures is not refuted
Scales = Mapping[str, Mapping[str, Scale]]


def fit_tasks(fits: StudyFits, tables: RunTable, evals: pd.DataFrame, scales: Scales) -> dict[str, Any]:
    """evals: results/evals.parquet (run_id, step, n_tokens, task, metric, value); scales: {task: {metric: scale}}.

    Every task and metric that has a scale is there, fitted or not, with what was left out of it; `lengths`: perplexity
    by context length (analysis.fits.tasks.lengths); `unknown` names the tasks without a scale.
    """
    settings = fits.settings
    places, reasons = places_of(tables, evals, settings)
    asked = [task for task in dict.fromkeys(evals["task"]) if task in scales]
    found = [
        _task(fits, evals, places, reasons, task, metric, scale)
        for task in asked
        for metric, scale in scales[task].items()
    ]
    return {
        "version": VERSION,
        "conventions": {key: fits.conventions[key] for key in ("C", "L", "unit_L")},
        "level": LEVEL,
        "tasks": found,
        "lengths": by_length(tables, evals),
        "unknown": [task for task in dict.fromkeys(evals["task"]) if task not in scales],
    }


def _task(
    fits: StudyFits,
    evals: pd.DataFrame,
    places: Mapping[Key, Checkpoint],
    reasons: Mapping[Key, str],
    task: str,
    metric: str,
    scale: Scale,
) -> dict[str, Any]:
    rows = evals[evals["task"] == task]
    values, errors = (_by_checkpoint(rows[rows["metric"] == name]) for name in (metric, f"{metric}_stderr"))
    left: dict[str, int] = {}
    kept: dict[str, list[tuple[Checkpoint, float, float]]] = {}
    for key, value in values.items():
        if np.isnan(value):
            left["it has no score"] = left.get("it has no score", 0) + 1
        elif key not in places:
            left[reasons[key]] = left.get(reasons[key], 0) + 1
        else:
            kept.setdefault(places[key].arch, []).append((places[key], value, errors.get(key, float("nan"))))
    parts: dict[str, Scores] = {}
    archs: dict[str, Any] = {}
    for arch, found in kept.items():
        try:
            parts[arch] = _scores(arch, task, scale, found, fits.conventions["C"])
        except InputError as error:
            archs[arch] = {"withheld": str(error), "n_checkpoints": len(found)}
            continue
        archs[arch] = law_of(fits, parts[arch]) | {"points": _points(found)}
    laws = [parts[arch] for arch in parts if archs[arch]["withheld"] is None]
    ranking, accuracy = rankings_of([one for found in kept.values() for one in found], scale)
    return {
        "task": task,
        "metric": metric,
        "scale": scale.to_dict(),
        "left_out": left,
        "archs": archs,
        "shared": _shared(laws, scale, fits.conventions["L"]),
        "rankings": ranking,
        "decision_accuracy": accuracy,
    }


def _by_checkpoint(rows: pd.DataFrame) -> dict[Key, float]:
    keys = zip(rows["run_id"].tolist(), rows["n_tokens"].tolist(), strict=True)
    return {(str(run_id), int(n)): float(v) for (run_id, n), v in zip(keys, rows["value"].tolist(), strict=True)}


def _scores(
    arch: str, task: str, scale: Scale, found: Sequence[tuple[Checkpoint, float, float]], convention: str
) -> Scores:
    return Scores(
        loss=np.array([one.loss for one, _, _ in found]),
        flops=np.array([one.flops for one, _, _ in found]),
        value=np.array([value for _, value, _ in found]),
        run=np.array([one.run_id for one, _, _ in found], dtype=object),
        scale=scale,
        error=np.array([error for _, _, error in found]),
        row=np.array([f"{one.run_id} after {one.n_tokens:,.0f} tokens" for one, _, _ in found], dtype=object),
        task=task,
        group=arch,
        convention=convention,
    )


def _points(found: Sequence[tuple[Checkpoint, float, float]]) -> dict[str, list[Any]]:
    """What a figure draws."""
    return {
        "name": [f"{one.run_id} after {one.n_tokens:,.0f} tokens" for one, _, _ in found],
        "loss": [one.loss for one, _, _ in found],
        "flops": [one.flops for one, _, _ in found],
        "value": [value for _, value, _ in found],
        "error": [None if np.isnan(error) else error for _, _, error in found],
    }


def _shared(parts: Sequence[Scores], scale: Scale, loss_name: str) -> dict[str, Any]:
    """One link for all architectures that have one of their own."""
    if scale.kind == TREND or len(parts) < 2:
        return {"p": None, "same": None, "archs": [one.group for one in parts], "link": None}
    found = fit_shared(parts)
    return {
        "p": found.p,
        "same": None if found.p is None else found.p > SAME,
        "archs": list(found.groups),
        "link": to_result(found.link, loss_name).to_dict(),
    }
