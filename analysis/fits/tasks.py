"""The scores of a study's tasks beside its losses: the part `downstream` of fits.json.

A score belongs to the loss that the laws are fitted to, read where the checkpoint was taken, so that a link can be
chained to L(C). What is left out of a task is counted by reason, and a law that is withheld says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.fits.downstream.gate import gate
from analysis.fits.downstream.link import LEVEL, Link, fit_link
from analysis.fits.downstream.ranking import SizeRanking, Tail, between_seeds, decision_accuracy, rank_size, tail_of
from analysis.fits.downstream.result import to_result
from analysis.fits.downstream.scores import COMPUTE, Scores
from analysis.fits.downstream.shared import fit_shared
from analysis.fits.downstream.trend import LEAST_SIDE, Trend, fit_trend
from analysis.fits.settings import FitSettings
from analysis.fits.study_curves import smoothed
from analysis.runs import Tables
from analysis.scales import PERPLEXITY, TREND, Scale
from arch.errors import InputError

VERSION = 1
CURVE_POINTS = 40
ROUNDING = 1e-9
SAME = 0.05  # p-value above which one link for all architectures is not refuted
Scales = Mapping[str, Mapping[str, Scale]]


class Checkpoint(NamedTuple):
    """An evaluated checkpoint that can enter a fit."""

    arch: str
    size: str
    run_id: str
    n_tokens: float
    loss: float
    flops: float


def fit_tasks(fits: Mapping[str, Any], tables: Tables, evals: pd.DataFrame, scales: Scales) -> dict[str, Any]:
    """evals: results/evals.parquet (run_id, step, n_tokens, task, metric, value); scales: {task: {metric: scale}}.

    Every task and metric that has a scale is there, fitted or not, with what was left out of it; `unknown` names the
    tasks without a scale.
    """
    settings = FitSettings(**fits["settings"])
    places, reasons = _places(tables, evals, settings)
    asked = [task for task in dict.fromkeys(evals["task"]) if task in scales]
    found = [
        _task(fits, evals, places, reasons, task, metric, scale)
        for task in asked
        for metric, scale in scales[task].items()
    ]
    return {
        "version": VERSION,
        "conventions": {"C": fits["conventions"]["C"], "L": fits["conventions"]["L"]},
        "level": LEVEL,
        "tasks": found,
        "unknown": [task for task in dict.fromkeys(evals["task"]) if task not in scales],
    }


Key = tuple[str, int]  # run id, tokens


def _places(tables: Tables, evals: pd.DataFrame, settings: FitSettings) -> tuple[dict[Key, Checkpoint], dict[Key, str]]:
    """The loss and compute of each evaluated checkpoint, or why it has none."""
    runs: dict[str, Any] = {str(row.run_id): row for row in tables.runs.itertuples()}
    places: dict[Key, Checkpoint] = {}
    reasons: dict[Key, str] = {}
    for run_id, rows in evals.groupby("run_id", sort=False):
        run = runs.get(str(run_id))
        keys = [(str(run_id), int(n)) for n in dict.fromkeys(rows["n_tokens"].tolist())]
        if run is None or run.state != "done":
            reasons |= dict.fromkeys(keys, "its run is not done" if run is not None else "its run is not of the fit")
            continue
        per_token = float(getattr(run, f"flops_per_token_{settings.flops}"))
        if np.isnan(per_token):
            reasons |= dict.fromkeys(keys, f"the convention {settings.flops} has no formula for its architecture")
            continue
        losses = _losses(tables, settings, str(run_id), np.array([n for _, n in keys], dtype=float))
        settled = settings.settled_after(int(run.warmup_tokens))
        for key, loss in zip(keys, losses.tolist(), strict=True):
            n = float(key[1])
            if n < settled:
                reasons[key] = "it lies inside warm-up"
            elif np.isnan(loss):
                reasons[key] = "its run has no loss there"
            else:
                places[key] = Checkpoint(str(run.arch), str(run.size), str(run_id), n, loss, n * per_token)
    return places, reasons


def _losses(tables: Tables, settings: FitSettings, run_id: str, at: np.ndarray) -> np.ndarray:
    """[m]: the curve's loss after `at` tokens, log-linear between its points, NaN outside of it.

    A smoothed curve ends half a window before its run does. Behind it a line through the losses of the last window is
    read (local linear regression, which has no lag at an end, where a one-sided mean would).
    """
    tokens, loss = smoothed(tables, settings, run_id)
    if len(tokens) < 2:
        return np.full(len(at), np.nan)
    found = np.exp(np.interp(np.log(at), np.log(tokens), np.log(loss)))
    found[(at < tokens[0] * (1 - ROUNDING)) | (at > tokens[-1] * (1 + ROUNDING))] = np.nan
    if settings.loss == "validation":
        return found
    raw = settings.model_copy(update={"smoothing_tokens": 0, "smoothing_fraction": 0.0})
    steps, seen = smoothed(tables, raw, run_id)
    last = steps >= steps[-1] - max(settings.smoothing_tokens, settings.smoothing_fraction * steps[-1])
    behind = (at > tokens[-1]) & (at <= steps[-1])
    if last.sum() > 2 and behind.any():
        x = np.log(steps[last] / steps[-1])
        found[behind] = np.polyval(np.polyfit(x, seen[last], 1), np.log(at[behind] / steps[-1]))
    return found


def _task(
    fits: Mapping[str, Any],
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
            parts[arch] = _scores(arch, task, scale, found, fits["conventions"]["C"])
        except InputError as error:
            archs[arch] = {"withheld": str(error), "n_checkpoints": len(found)}
            continue
        archs[arch] = _arch(fits, parts[arch]) | {"points": _points(found)}
    laws = [parts[arch] for arch in parts if archs[arch]["withheld"] is None]
    ranking, accuracy = _ranking([one for found in kept.values() for one in found], scale)
    return {
        "task": task,
        "metric": metric,
        "scale": scale.to_dict(),
        "left_out": left,
        "archs": archs,
        "shared": _shared(laws, scale, fits["conventions"]["L"]),
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


def _arch(fits: Mapping[str, Any], scores: Scores) -> dict[str, Any]:
    told = gate(scores)
    result: dict[str, Any] = {
        "n_checkpoints": len(scores),
        "n_runs": scores.n_runs,
        "withheld": told.reason,
        "trend": {"t": told.t if told.t is None or np.isfinite(told.t) else None, "needed": told.needed},
        "link": None,
        "against_compute": None,
        "curve": None,
        "predictions": [],
    }
    if told.reason is not None:
        return result
    name = fits["conventions"]["L"]
    losses = np.geomspace(scores.loss.min(), scores.loss.max(), CURVE_POINTS)
    if scores.scale.kind == TREND:
        trend = fit_trend(scores)
        return result | {
            "trend": result["trend"] | {"tau": trend.tau},
            "curve": _curve(trend, losses),
            "predictions": [_prediction(trend, at) for at in _asked(fits, scores.group)],
        }
    link = fit_link(scores)
    last = _last(scores)
    return result | {
        "link": to_result(link, name).to_dict(),
        "against_compute": None
        if len(last) < 3 or gate(last, COMPUTE).reason
        else to_result(fit_link(last, against=COMPUTE), name).to_dict(),
        "curve": _curve(link, losses),
        "predictions": [_prediction(link, at) for at in _asked(fits, scores.group)],
    }


def _last(scores: Scores) -> Scores:
    """Each run's last checkpoint."""
    last: dict[str, int] = {}
    for i, run in enumerate(scores.run):
        if run not in last or scores.flops[i] > scores.flops[last[run]]:
            last[run] = i
    return scores.take(np.array(sorted(last.values())))


def _curve(law: Link | Trend, losses: np.ndarray) -> dict[str, Any]:
    band = law.interval(losses)
    low, high = (None, None) if band is None else ([float(v) if np.isfinite(v) else None for v in end] for end in band)
    return {"loss": losses.tolist(), "value": law.predict(losses).tolist(), "low": low, "high": high}


def _asked(fits: Mapping[str, Any], arch: str) -> list[Mapping[str, Any]]:
    """The verdict's predictions of this architecture's loss, at its computes."""
    return list(fits["verdict"].get("archs", {}).get(arch, {}).get("predictions", []))


def _prediction(law: Link | Trend, at: Mapping[str, Any]) -> dict[str, Any]:
    """The score at a compute, of the loss that L(C) says there. A trend is read inside its own checkpoints alone."""
    told = at["loss"]
    result: dict[str, Any] = {"c": at["c"], "loss": told["value"], "value": None, "interval": None, "reason": None}
    if told["value"] is None:
        return result | {"reason": f"the loss there: {told['reason']}"}
    value = float(law.predict(told["value"])[0])
    if np.isnan(value):
        return result | {"reason": "the loss there lies outside of the checkpoints'"}
    if told["interval"] is None:
        return result | {"value": value, "reason": f"the loss there: {told['reason'] or 'no interval'}"}
    if isinstance(law, Link):
        band = law.interval(told["value"], at_interval=tuple(told["interval"]))
        if band is None:
            return result | {"value": value, "reason": "no interval: too few runs"}
        return result | {"value": value, "interval": [float(end[0]) for end in band]}
    ends = [law.interval(loss) for loss in told["interval"]]
    low, high = min(float(one[0][0]) for one in ends), max(float(one[1][0]) for one in ends)
    if not (np.isfinite(low) and np.isfinite(high)):
        return result | {"value": value, "reason": f"no interval: fewer than {LEAST_SIDE} runs on a side"}
    return result | {"value": value, "interval": [low, high]}


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


def _ranking(
    found: Sequence[tuple[Checkpoint, float, float]], scale: Scale
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each size's ranking, smallest size first; and how each size ranks the architectures beside the largest. Of
    perplexities the logarithms are compared."""
    runs: dict[str, list[tuple[Checkpoint, float]]] = {}
    for one, value, _ in found:
        runs.setdefault(one.run_id, []).append((one, np.log(value) if scale.kind == PERPLEXITY else value))
    tails: dict[str, list[Tail]] = {}
    compute: dict[str, float] = {}
    for rows in runs.values():
        one = rows[0][0]
        tail = tail_of(
            one.arch, one.size, np.array([row.n_tokens for row, _ in rows]), np.array([value for _, value in rows])
        )
        if tail is not None:
            tails.setdefault(one.size, []).append(tail)
            compute[one.size] = max(compute.get(one.size, 0.0), max(row.flops for row, _ in rows))
    between = between_seeds([one for some in tails.values() for one in some])
    ranked: list[SizeRanking] = [
        rank_size(size, tails[size], between) for size in sorted(tails, key=compute.__getitem__)
    ]
    if not ranked:
        return [], []
    large = max(ranked, key=lambda one: (len(one.means), ranked.index(one)))
    accuracy = [
        {"size": one.size, "as_at": large.size, "share": told[0], "n_pairs": told[1]}
        for one in ranked[: ranked.index(large)]
        if (told := decision_accuracy(one.means, large.means)) is not None
    ]
    return [asdict(one) | {"seeds": between is not None} for one in ranked], accuracy
