"""Predictions of runs that are not trained: by the surface of the fitted runs, with the interval that was rehearsed.

The surface and its rehearsals are those of analysis/fits/rehearsal.py, of the points that the study's parametric fit
reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from analysis.fits import rehearsal
from analysis.fits.approaches import STUDY_OBJECTIVE
from analysis.fits.baselines import baselines
from analysis.fits.fit import ISOFLOP, PARAMETRIC, Fit
from analysis.fits.forms import FORMS, PLAIN
from analysis.fits.parametric import rows_of
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import grouped, prepare
from analysis.fits.settings import FitSettings
from analysis.fits.smooth import smooth
from analysis.fits.study_fits import StudyFits
from analysis.fits.verdicts import judge_loss
from analysis.forecast.stored import (
    Conventions,
    Fitted,
    Group,
    HeldOutText,
    Largest,
    PredictedRun,
    Predictions,
    Program,
    write_round,
)
from analysis.grid_points import named, point_of_run
from analysis.labels import group_of
from analysis.run_table import RunTable
from arch.errors import InputError
from data.files import read_manifest
from flops import count_params, train_flops_per_token

if TYPE_CHECKING:
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

SAME = 1e-6  # of the end of an exponent's range: a value so near has reached it
NO_RATE = "it had no learning rate when the others were predicted"
IF_MISSED = ("the learning rate times 1/2 and 2", "another seed", "the losses that other forms of the surface predict")
NOT_FITTED = "none of its runs is fitted"


def predict(
    study: StudySpec, runs: Sequence[RunSpec], fits: StudyFits, tables: RunTable, program: Program, place: int = 0
) -> Predictions:
    """Predict `runs`, those of one round of the forecast, from the tables that `fits` were made from, and store it.
    Raises InputError where no run can be fitted."""
    table = grouped(replace(tables, name=study.name, settings=fits.settings))
    points, level = prepare(table, points=CURVES).groups, study.rounds[place].level
    done = table.runs[(table.runs["state"] == "done") & (table.runs["left_out"] == "")]
    text = float((done["n_tokens"] / done["epochs"]).min())  # of the training split
    groups, form = list(dict.fromkeys(map(_group, runs))), fits.settings.form
    forecasts = {group: forecast_of(points.get(group), form) for group in groups}
    others = {
        group: {name: forecast_of(points.get(group), name) for name in FORMS if name != form}
        for group in groups
        if not isinstance(forecasts[group], str)
    }
    laws, isoflop = (
        {law.group: law for law in fits.laws if law.approach == approach} for approach in (PARAMETRIC, ISOFLOP)
    )
    predictions = Predictions(
        study=study.name,
        round=place + 1,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        program=program,
        inputs_hash=str(fits.inputs_hash),
        fitted=Fitted(
            n_runs=len(done),
            of=int((tables.runs["variant"] == "").sum()),
            spec_hashes=dict(zip(done["run_id"], done["spec_hash"], strict=True)),
        ),
        conventions=Conventions.model_validate(fits.conventions),
        settings=fits.settings,
        level=level,
        validation_tokens=study.evaluation.validation_tokens,
        held_out=_held_out(study),
        if_missed=IF_MISSED,
        groups={name: _about(known, points.get(name)) for name, known in forecasts.items()},
        runs=tuple(
            _predicted(run, forecasts[_group(run)], fits.settings, text, level, laws.get(_group(run))) for run in runs
        ),
    )
    beside = tuple(
        row.model_copy(
            update={
                "other_forms": _by_forms(others[row.group], row, text),
                "baselines": baselines(points[row.group], isoflop.get(row.group), row.c),
            }
        )
        if row.loss is not None
        else row
        for row in predictions.runs
    )
    predictions = predictions.model_copy(update={"runs": beside})
    write_round(study, predictions)
    return predictions


def _held_out(study: StudySpec) -> HeldOutText | None:
    """None where the study's corpus is not here."""
    manifest = read_manifest(study.directory / "corpus", verify=False, partial=True)
    if manifest is None:
        return None
    split = manifest["splits"]["validation"]
    of_set = [file for name, file in manifest["files"].items() if name.startswith("validation.")]  # labelled: no shards
    hashes = tuple(str(shard["sha256"]) for shard in split.get("shards", of_set))
    return HeldOutText(tokens=split["tokens"], bytes=split["bytes"], sha256=hashes)


def _by_forms(known: Mapping[str, rehearsal.Forecast | str], row: PredictedRun, text: float) -> dict[str, float]:
    """The losses of a run by other forms, of those that its runs identify."""
    at = row.n_params, row.read_at, min(row.read_at, text)
    losses = {name: form.predict(*at).loss.value for name, form in known.items() if not isinstance(form, str)}
    return {name: loss for name, loss in losses.items() if loss is not None and np.isfinite(loss)}


def forecast_of(points: Points | None, form: str = PLAIN) -> rehearsal.Forecast | str:
    """The surface, of a form, of a group with its rehearsals; or why nothing is predicted of it."""
    if points is None:
        return NOT_FITTED
    try:
        rows = rows_of(points)
        known = rehearsal.forecast(rows.points, rows.weights, objective=STUDY_OBJECTIVE, form=form)
    except InputError as error:
        return str(error)
    values = known.form.parameters(known.surface)
    for name, (low, high) in known.form.ranges.items():
        value = values[name]
        if name != "R_star" and not low * (1 + SAME) < value < high * (1 - SAME):  # R_star may end
            return f"its runs do not identify the exponent {name}, which ends at {value:g}"
    return known


def _group(run: RunSpec) -> str:
    return group_of(run.arch, named(point_of_run(run.model_dump(mode="json")), ())["point"])


def _about(known: rehearsal.Forecast | str, points: Points | None) -> Group:
    if isinstance(known, str) or points is None:
        return Group(reason=str(known))
    return Group(reason=None, largest=Largest(c=float(points.flops.max())))


def _predicted(
    run: RunSpec,
    known: rehearsal.Forecast | str,
    settings: FitSettings,
    text: float,
    level: float,
    law: Fit | None,
) -> PredictedRun:
    read_at = end_of_curve(run, settings)
    row = PredictedRun(
        run_id=run.run_id,
        spec_hash=None if run.is_pending else run.spec_hash,
        arch=run.arch,
        group=_group(run),
        size=run.size,
        seed=run.seed,
        lr=None if run.is_pending else run.training.peak_lr,
        n_params=count_params(run.config).non_embedding,
        n_tokens=run.n_tokens,
        read_at=read_at,
        c=read_at * float(train_flops_per_token(run.config, settings.flops)),
    )
    if run.is_pending or isinstance(known, str):
        return row.model_copy(update={"reason": NO_RATE if run.is_pending else known})
    expected = known.predict(row.n_params, read_at, min(read_at, text), level, row.c)
    claim = judge_loss(known, expected, law)
    loss, ends = expected.loss.value, expected.loss.ends
    rests_on = expected.sentence if ends is None else f"{expected.sentence}; {claim.verdict}"
    return row.model_copy(update={"loss": loss, "interval": ends, "rests_on": rests_on})


def end_of_curve(run: RunSpec, settings: FitSettings) -> float:
    """Tokens at which the last loss lies that fits read of the run: its own, or those of its last smoothing window."""
    if settings.loss == "validation":
        return float(run.n_tokens)
    tokens = run.training.batch_tokens * np.arange(1.0, run.n_steps + 1)
    read, _ = smooth(tokens, np.zeros_like(tokens), settings.smoothing_tokens, settings.smoothing_fraction)
    if not len(read):
        raise InputError(f"{run.run_id}: has no more tokens than fit.smoothing_tokens: give forecast.n_tokens more")
    return float(read[-1])
