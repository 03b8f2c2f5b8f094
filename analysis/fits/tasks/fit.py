"""The scores of a study's tasks beside its losses: the part `downstream` of fits.json.

A score belongs to the loss that the study's laws are fitted to, read where the checkpoint was taken, so that its law
can be chained to L(C). What is left out of a task is counted by reason, and a law that is withheld says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.fit import Estimate, Optimum
from analysis.fits.losses import RunCurves
from analysis.fits.prepare import grouped
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import StudyFits
from analysis.fits.task_fits import Curve, LengthScores, Score, ScoreAt, ScoreLaw, TaskFit, TaskFits
from analysis.fits.tasks.law import FORMS, Law, Scores, fit_law, trend_of
from analysis.run_table import RunTable
from analysis.scales import Scale
from arch.errors import InputError

CURVE_POINTS = 40
ROUNDING = 1e-9
EXTRAPOLATE, BY_LENGTH = "extrapolate", "perplexity@"
Key = tuple[str, int]  # run id, tokens


def fit_tasks(
    fits: StudyFits, runs: RunTable, evals: pd.DataFrame, scales: Mapping[str, Mapping[str, Scale]]
) -> TaskFits:
    """evals: results/evals.parquet (run_id, step, n_tokens, task, metric, value); scales: {task: {metric: scale}}."""
    places = Places(runs, evals, fits.settings)
    named = list(dict.fromkeys(evals["task"]))
    return TaskFits(
        tuple(
            _fit_task(fits, evals[evals["task"] == task], places, task, metric, scale)
            for task in named
            for metric, scale in scales.get(task, {}).items()
        ),
        tuple(by_length(runs, evals)),
        tuple(task for task in named if task not in scales),
    )


class Places:
    """The loss and compute of each evaluated checkpoint; reasons: why others have none."""

    def __init__(self, runs: RunTable, evals: pd.DataFrame, settings: FitSettings) -> None:
        runs = grouped(runs, settings)
        self._settings = settings
        self._rows: dict[str, Any] = {str(row.run_id): row for row in runs.runs.itertuples()}
        self._curves = RunCurves(runs, settings)
        unsmoothed = settings.model_copy(update={"smoothing_tokens": 0, "smoothing_fraction": 0.0})
        self._unsmoothed = RunCurves(runs, unsmoothed)
        self.losses: dict[Key, float] = {}
        self.reasons: dict[Key, str] = {}
        for run_id, tokens in evals.groupby("run_id", sort=False)["n_tokens"]:
            at = np.unique(tokens.to_numpy())
            keys = [(str(run_id), int(n)) for n in at]
            if why := self._left_out(str(run_id)):
                self.reasons |= dict.fromkeys(keys, why)
                continue
            settled = settings.settled_after(int(self._rows[str(run_id)].warmup_tokens))
            for key, loss in zip(keys, self._losses(str(run_id), at.astype(float)).tolist(), strict=True):
                if key[1] < settled:
                    self.reasons[key] = "it lies inside warm-up"
                elif np.isnan(loss):
                    self.reasons[key] = "its run has no loss there"
                else:
                    self.losses[key] = loss

    def arch(self, run_id: str) -> str:
        return str(self._rows[run_id].group)

    def score(self, key: Key, value: float, error: float | None) -> Score:
        """Of a checkpoint that has a loss."""
        run_id, n_tokens = key
        flops = n_tokens * self._per_token(run_id)
        return Score(run_id, str(self._rows[run_id].size), n_tokens, self.losses[key], flops, value, error)

    def _per_token(self, run_id: str) -> float:
        return float(getattr(self._rows[run_id], f"flops_per_token_{self._settings.flops}"))

    def _left_out(self, run_id: str) -> str:
        """Why no checkpoint of the run has a place."""
        run = self._rows.get(run_id)
        if run is None:
            return "its run is not of the fit"
        if run.left_out:
            return f"its run is left out of the fits ({run.left_out})"
        if run.state != "done":
            return "its run is not done"
        if np.isnan(self._per_token(run_id)):
            return f"the convention {self._settings.flops} has no formula for its architecture"
        return ""

    def _losses(self, run_id: str, at: np.ndarray) -> np.ndarray:
        """[m]: the curve's loss after `at` tokens, log-linear between its points, NaN outside of it.

        A smoothed curve ends half a window before its run does. Behind it a line through the losses of the last window
        is read (local linear regression, which has no lag at an end, where a one-sided mean would).
        """
        curve = self._curves.of(run_id)
        tokens, loss = curve.n_tokens, curve.loss
        if not len(tokens):
            return np.full(len(at), np.nan)
        losses = np.exp(np.interp(np.log(at), np.log(tokens), np.log(loss)))
        losses[(at < tokens[0] * (1 - ROUNDING)) | (at > tokens[-1] * (1 + ROUNDING))] = np.nan
        if self._settings.loss == "validation":
            return losses
        curve = self._unsmoothed.of(run_id)
        steps, unsmoothed = curve.n_tokens, curve.loss
        window = max(self._settings.smoothing_tokens, self._settings.smoothing_fraction * steps[-1])
        last, behind = steps >= steps[-1] - window, (at > tokens[-1]) & (at <= steps[-1])
        if last.sum() > 2 and behind.any():
            line = np.polyfit(np.log(steps[last] / steps[-1]), unsmoothed[last], 1)
            losses[behind] = np.polyval(line, np.log(at[behind] / steps[-1]))
        return losses


def _fit_task(fits: StudyFits, rows: pd.DataFrame, places: Places, task: str, metric: str, scale: Scale) -> TaskFit:
    values, errors = (_by_checkpoint(rows[rows["metric"] == name]) for name in (metric, f"{metric}_stderr"))
    left_out: Counter[str] = Counter()
    scores: dict[str, list[Score]] = {}
    for key, value in values.items():
        if value is None:
            left_out["it has no score"] += 1
        elif key not in places.losses:
            left_out[places.reasons[key]] += 1
        else:
            scores.setdefault(places.arch(key[0]), []).append(places.score(key, value, errors.get(key)))
    laws = tuple(law_of(arch, of_arch, scale, _optima(fits, arch)) for arch, of_arch in scores.items())
    return TaskFit(task, metric, scale, laws, dict(left_out))


def _by_checkpoint(rows: pd.DataFrame) -> dict[Key, float | None]:
    keys = zip(rows["run_id"].astype(str).tolist(), rows["n_tokens"].astype(int).tolist(), strict=True)
    return {key: None if np.isnan(value) else value for key, value in zip(keys, rows["value"].tolist(), strict=True)}


def _optima(fits: StudyFits, arch: str) -> Sequence[Optimum]:
    """What L(C) predicts of this architecture, at the computes of its verdict."""
    return next((lowest.archs[arch].predictions for lowest in fits.verdicts if arch in lowest.archs), ())


def law_of(arch: str, scores: Sequence[Score], scale: Scale, optima: Sequence[Optimum]) -> ScoreLaw:
    """One architecture's law of one task's scores, with predictions at `optima`; or why there is none."""
    n_runs = len({score.run_id for score in scores})
    try:
        table = Scores.of(scale, scores)
        trend = trend_of(table)
        withheld = trend.reason
        if not withheld and scale.kind not in FORMS:
            withheld = "its scores follow the loss, by no known form"
        law = None if withheld else fit_law(table)
    except InputError as error:
        return ScoreLaw(arch, tuple(scores), n_runs, withheld=str(error))
    t = None if trend.t is None or np.isinf(trend.t) else trend.t
    if law is None:
        return ScoreLaw(arch, tuple(scores), n_runs, t, trend.needed, withheld)
    losses = np.geomspace(table.loss.min(), table.loss.max(), CURVE_POINTS)
    low, high = (tuple(end.tolist()) for end in law.interval(losses) or (np.array(()), np.array(())))
    curve = Curve(tuple(losses.tolist()), tuple(law.predict(losses).tolist()), low, high)
    return ScoreLaw(
        *(arch, tuple(scores), n_runs, t, trend.needed, "", law.form.name, law.parameters(), law.verdict(), curve),
        tuple(_score_at(law, at) for at in optima),
    )


def _score_at(law: Law, at: Optimum) -> ScoreAt:
    loss = at.loss
    if loss.value is None:
        return ScoreAt(at.flops, None, Estimate(reason=f"the loss there: {loss.reason}"))
    ends, why = None, f"the loss there: {loss.reason or 'no interval'}"
    if loss.interval is not None:
        ends, why = law.interval(loss.value, loss.interval), "no interval: too few runs"
    low_high = ends and (float(ends[0][0]), float(ends[1][0]))
    value = float(law.predict(loss.value)[0])
    return ScoreAt(at.flops, loss.value, Estimate.of(value, low_high, "" if ends else why))


def by_length(runs: RunTable, evals: pd.DataFrame) -> list[LengthScores]:
    """What the task `extrapolate` measured of each run's last evaluated checkpoint, group by group, small sizes
    first."""
    rows = evals[(evals["task"] == EXTRAPOLATE) & evals["metric"].str.startswith(BY_LENGTH)]
    rows = rows[rows["step"] == rows.groupby("run_id")["step"].transform("max")]
    rows = rows.assign(length=rows["metric"].str.removeprefix(BY_LENGTH).astype(int)).sort_values("length")
    kept = runs.runs[runs.runs["run_id"].isin(rows["run_id"].unique())]
    lengths = []
    for run in kept.to_dict("records"):
        if not run.get("left_out"):
            of_run = rows[rows["run_id"] == run["run_id"]]
            lengths.append(
                LengthScores(
                    run_id=str(run["run_id"]),
                    arch=str(run.get("group") or run["arch"]),
                    size=str(run["size"]),
                    n_params=int(run["n_params_non_embedding"]),
                    context_length=int(run["context_length"]),
                    perplexity={
                        str(n): None if np.isnan(value) else value
                        for n, value in zip(of_run["length"].tolist(), of_run["value"].tolist(), strict=True)
                    },
                )
            )
    groups = list(dict.fromkeys(str(run.get("group") or run["arch"]) for run in runs.runs.to_dict("records")))
    return sorted(lengths, key=lambda row: (groups.index(row.arch), row.n_params, row.run_id))
