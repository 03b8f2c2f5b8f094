"""Forecast runs: which of them wait for a prediction or a learning rate, and their predictions.

A forecast run is trained only where its prediction is stored, and a prediction is never made of a run that has begun.
Rounds are predicted one after the other, each from fits that see all before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arch.amounts import counted, counted_of

from ..rundir.directory import RunDir
from ..rundir.prepare import at_stored_rate, record_prediction
from ..rundir.versions import git_commit
from ..rundir.worklist import is_trained
from ..study.run import RunSpec
from .request import Request

if TYPE_CHECKING:
    from analysis.fits.study_fits import StudyFits
    from analysis.forecast.outcome import ForecastRound
    from analysis.forecast.stored import Predictions

VALIDATION = "validation"  # a loss of fit.loss, and the evaluation that it is from


def waiting(request: Request) -> list[RunSpec]:
    """The chosen forecast runs that have a learning rate and no predicted loss, and are not trained. Raises InputError
    for predictions that cannot be read or are of other runs."""
    return _waiting(request)[0]


def _waiting(request: Request) -> tuple[list[RunSpec], list[Predictions]]:
    """`waiting`, and the stored predictions of each round."""
    rated_runs = [run for run in request.runs if run.is_forecast and not run.is_pending]
    if not rated_runs:
        return [], []
    from analysis.forecast.stored import predicted_ids, read_rounds

    rounds = read_rounds(request.study)
    predicted = predicted_ids(rounds)
    return [
        run for run in rated_runs if run.run_id not in predicted and not is_trained(run, request.rundir(run))
    ], rounds


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
        run = min(unrated, key=lambda run: run.rate["swept"])
        remedy = "" if run.rate["swept"] else f"; `scaling sweep {request.study.path}` first"
        runs_text = counted(len(unrated), "run has no learning rate and is", "runs have no learning rate and are")
        lines.append(f"forecast: {runs_text} not trained ({run.run_id}: {run.rate['pending']}){remedy}")
    waits, rounds = _waiting(request)
    for place in sorted({run.round for run in waits}):
        runs = [run for run in waits if run.round == place]
        if place >= len(rounds):
            after = f", once round {place} is trained and evaluated" if place else ""
            lines.append(
                f"forecast: {counted(len(runs), 'run waits', 'runs wait')} for `scaling predict "
                f"{request.study.path}`{after}"
            )
            continue
        why = {row.run_id: row.reason for row in rounds[place].runs}
        first = runs[0].run_id
        reason = why.get(first) or "it was not among the study's runs"
        without = counted(len(runs), "run has no prediction and is", "runs have no prediction and are")
        lines.append(f"forecast: {without} not trained ({first}: {reason})")
    return lines


def first_begun(request: Request, place: int) -> str | None:
    """A run of the forecast's round that has begun, after which nothing of it is predicted, whether the study file or
    the stored predictions name it; None where none has."""
    from analysis.forecast.stored import path_of, read_round

    names = [run.run_id for run in request.forecast_runs(place)]
    if path_of(request.study, place).exists():  # of a study file that has changed since
        names += [row.run_id for row in read_round(request.study, place).runs]
    return next((name for name in names if RunDir(request.study.directory / "runs" / name).has_begun), None)


def next_round(request: Request) -> int | None:
    """The place of the first round that is not predicted; None where all are."""
    from analysis.forecast.stored import read_rounds

    n_predicted = len(read_rounds(request.study))
    return n_predicted if n_predicted < len(request.study.rounds) else None


def unmeasured(request: Request, place: int) -> str | None:
    """A run of the rounds before that is predicted and not measured yet, and why; None where all are or have failed, so
    that the round at `place` can be predicted."""
    from analysis.forecast.outcome import read_forecast
    from analysis.source.run_directories import RunDirectories

    if not place:
        return None
    study = request.study
    runs = {run.run_id: run for run in request.forecast_runs()}
    for forecast in read_forecast(study, RunDirectories(study, request.whole_grid), place):
        for outcome in forecast.outcomes:
            name = outcome.run.run_id
            if outcome.run.loss is None or outcome.state == "failed":
                continue
            if outcome.measured is None:
                return f"{name} is {outcome.state}"
            run = runs[name]
            rundir, read = request.rundir(run), study.fit.loss == VALIDATION
            if read and not all(rundir.evaluation(step, VALIDATION).exists() for step in run.checkpoint_steps):
                return f"{name} is not evaluated at all of its checkpoints"
    return None


def predict_missing(request: Request, fits: StudyFits) -> bool:
    """Predict the next round that waits, once the whole grid and the rounds before are trained; whether some of it may
    be trained now. Called within `request.writing`, with the fits of the study."""
    place = next_round(request)
    if place is None:
        return False
    if request.study.set_results:
        request.say("forecast: not predicted, as --set changed the fits: predictions are made from the study's own")
        return False
    if begun_run := first_begun(request, place):
        request.say(f"forecast: not predicted, as {begun_run} has begun, and a prediction comes before its runs")
        return False
    if all(run.is_pending for run in request.forecast_runs(place)):
        return False  # waiting_lines says why
    missing = [run for run in request.whole_grid if not is_trained(run, request.rundir(run))]
    if missing:
        reason = (
            f"{counted(len(missing), 'run of the grid is', 'runs of the grid are')} not trained ({missing[0].run_id})"
        )
        request.say(f"forecast: not predicted, as {reason}")
        return False
    if why := unmeasured(request, place):
        request.say(f"forecast: round {place + 1} is not predicted, as {why}")
        return False
    predict_now(request, fits, place)
    round_ids = {run.run_id for run in request.forecast_runs(place)}
    return any(run.run_id in round_ids for run in trainable(request))


def predict_now(request: Request, fits: StudyFits | None, place: int) -> None:
    """Predict and store all runs of a round: the first from `fits`, the study's own, later ones from fits of the grid
    and the rounds before. Called within `request.writing`."""
    from analysis.forecast.predict import predict
    from analysis.forecast.stored import path_of
    from analysis.source.run_directories import RunDirectories
    from analysis.stage import fits_of, read_tables

    study = request.study
    if place:
        earlier_runs = [*request.whole_grid, *(run for run in request.forecast_runs() if run.round < place)]
        runs = [at_stored_rate(request.rundir(run), run) for run in earlier_runs]
        request.say(f"predict: fits of the grid and of {count_of(place)} before")
        fits, tables = fits_of(study, runs, RunDirectories(study, runs))
    else:
        tables = read_tables(study.results)
    assert fits is not None
    predictions = predict(study, request.forecast_runs(place), fits, tables, git_commit(), place)
    for row in predictions.runs:  # of those that are prepared, or wait in a queue
        record_prediction(RunDir(study.directory / "runs" / row.run_id), predictions.digest(row))
    n_predicted = sum(row.loss is not None for row in predictions.runs)
    request.say(f"predict: {counted_of(n_predicted, len(predictions.runs), 'run')} predicted, {path_of(study, place)}")


def forecast_rounds(request: Request) -> list[ForecastRound]:
    """The rounds that are predicted, with what was measured."""
    if not request.study.rounds:
        return []
    from analysis.forecast.outcome import read_forecast
    from analysis.source.choose import source_of

    return read_forecast(request.study, source_of(request.study, request.whole_grid))


def count_of(rounds: int) -> str:
    return "the round" if rounds == 1 else f"the {rounds} rounds"
