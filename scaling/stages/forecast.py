"""Forecast runs: which of them wait for a prediction or a learning rate, and their predictions.

A forecast run is trained only where its prediction is stored, and a prediction is never made of a run that has begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..rundir.versions import git_commit
from ..rundir.worklist import is_trained
from ..study.run import RunSpec

if TYPE_CHECKING:
    from .pipeline import Request


def waiting(request: Request) -> list[RunSpec]:
    """The chosen forecast runs that have a learning rate and no predicted loss, and are not trained. Raises InputError
    for predictions that cannot be read or are of other runs."""
    return _waiting(request)[0]


def _waiting(request: Request) -> tuple[list[RunSpec], dict[str, Any] | None]:
    """`waiting`, and the stored predictions."""
    mine = [run for run in request.runs if run.is_forecast and not run.is_pending]
    if not mine:
        return [], None
    from analysis.forecast.stored import predicted_ids, read_predictions

    stored = read_predictions(request.study)
    known = predicted_ids(stored)
    return [run for run in mine if run.run_id not in known and not is_trained(run, request.rundir(run))], stored


def without_rate(request: Request) -> list[RunSpec]:
    """The chosen forecast runs that have no learning rate (training.lr: law): the grid is trained without them."""
    return [run for run in request.runs if run.is_forecast and run.is_pending]


def trainable(request: Request) -> list[RunSpec]:
    """The chosen runs without those forecast runs that wait for a prediction or have no learning rate."""
    gone = {run.run_id for run in (*waiting(request), *without_rate(request))}
    return [run for run in request.runs if run.run_id not in gone]


def waiting_lines(request: Request) -> list[str]:
    """A line about the forecast runs that have no learning rate, and one about those that wait for a prediction; none
    without any."""
    lines = []
    if unrated := without_rate(request):
        one = min(unrated, key=lambda run: run.rate["swept"])
        remedy = "" if one.rate["swept"] else f"; `scaling sweep {request.study.path}` first"
        told = f"{len(unrated)} runs have no learning rate and are not trained"
        lines.append(f"forecast: {told} ({one.run_id}: {one.rate['pending']}){remedy}")
    runs, stored = _waiting(request)
    if not runs:
        return lines
    if stored is None:
        return [*lines, f"forecast: {len(runs)} runs wait for `scaling predict {request.study.path}`"]
    why = {row["run_id"]: row["reason"] for row in stored["runs"]}
    first = runs[0].run_id
    told = why.get(first) or "it was not among the study's runs"
    return [*lines, f"forecast: {len(runs)} runs have no prediction and are not trained ({first}: {told})"]


def has_begun(request: Request, run: RunSpec) -> bool:
    """Whether anything was trained of it."""
    rundir = request.rundir(run)
    return rundir.status()["state"] != "waiting" or rundir.last_row() is not None


def first_begun(request: Request) -> str | None:
    """A forecast run of the study that has begun, after which nothing is predicted; None where none has."""
    return next((run.run_id for run in request.study.forecast_runs() if has_begun(request, run)), None)


def predict_missing(request: Request, fits: dict[str, Any]) -> bool:
    """Predict what waits, once the whole grid is trained; whether some of it may be trained now. Called within
    `request.writing`, with the fits of the study."""
    from analysis.forecast.stored import read_predictions

    if read_predictions(request.study) is not None:
        return False
    if request.study.set_results:
        request.say("forecast: not predicted, as --set changed the fits: predictions are made from the study's own")
        return False
    if begun := first_begun(request):
        request.say(f"forecast: not predicted, as {begun} has begun, and a prediction is made before")
        return False
    if all(run.is_pending for run in request.study.forecast_runs()):
        return False  # waiting_lines has told why
    missing = [run for run in request.study.runs() if not is_trained(run, request.rundir(run))]
    if missing:
        told = f"{len(missing)} runs of the grid are not trained ({missing[0].run_id})"
        request.say(f"forecast: not predicted, as {told}")
        return False
    predict_now(request, fits)
    return bool(trainable(request))


def predict_now(request: Request, fits: dict[str, Any]) -> None:
    """Predict and store all of the study's forecast runs, from its fits. Called within `request.writing`."""
    from analysis.forecast.stage import predict
    from analysis.forecast.stored import path_of
    from analysis.stage import FIT_VERSION, read_tables

    study = request.study
    tables = read_tables(study.results)
    made = predict(study, study.forecast_runs(), fits, tables, FIT_VERSION, git_commit())
    n_told = sum(row["loss"] is not None for row in made["runs"])
    request.say(f"predict: {n_told} of {len(made['runs'])} runs predicted, {path_of(study)}")
