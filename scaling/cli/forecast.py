"""Forecast runs: which of them wait for a prediction or a learning rate, their predictions, and `scaling predict`.

A forecast run is trained only where its prediction is stored, and a prediction is never made of a run that has begun.
Rounds are predicted one after the other, each from fits that see all before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from arch.amounts import counted, counted_of
from arch.errors import InputError

from ..rundir.directory import VALIDATION, RunDir
from ..rundir.prepare import at_stored_rate, record_prediction
from ..rundir.versions import git_commit, program_digest
from ..rundir.worklist import is_trained
from ..study.run import RunSpec
from .fitting import check_results, fit_stage
from .options import FittedOptions, print_json
from .request import Request

if TYPE_CHECKING:
    from analysis.fits.study_fits import StudyFits
    from analysis.forecast.outcome import ForecastRound
    from analysis.forecast.stored import Predictions


@dataclass(frozen=True)
class Waiting:
    """The chosen forecast runs that are not trained, by what they wait for: a learning rate (the grid is trained
    without them), a prediction; and the predictions of each round that are stored."""

    for_rate: list[RunSpec]
    for_prediction: list[RunSpec]
    rounds: list[Predictions]

    @classmethod
    def of(cls, request: Request) -> Waiting:
        """Raises InputError for predictions that cannot be read or are of other runs."""
        runs = [run for run in request.runs if run.is_forecast]
        rated = [run for run in runs if not run.is_pending]
        pending = [run for run in runs if run.is_pending]
        if not rated:
            return cls(pending, [], [])
        from analysis.forecast.stored import predicted_ids, read_rounds

        rounds = read_rounds(request.study)
        predicted = predicted_ids(rounds)
        open_runs = [run for run in rated if run.run_id not in predicted]
        return cls(pending, [run for run in open_runs if not is_trained(run, request.rundir(run))], rounds)

    def lines(self, request: Request) -> list[str]:
        """A line about the runs that have no learning rate, and one a round about those without a prediction."""
        lines, study = [], request.study.path
        if self.for_rate:
            run = min(self.for_rate, key=lambda run: run.rate is not None and run.rate.swept)
            pending, swept = (run.rate.pending, run.rate.swept) if run.rate else ("", False)
            remedy = "" if swept else f"; `scaling sweep {study}` first"
            have = counted(len(self.for_rate), "run has no learning rate and is", "runs have no learning rate and are")
            lines.append(f"forecast: {have} not trained ({run.run_id}: {pending}){remedy}")
        for place in sorted({run.round for run in self.for_prediction}):
            runs = [run for run in self.for_prediction if run.round == place]
            if place >= len(self.rounds):
                after = f", once round {place} is trained and evaluated" if place else ""
                wait = counted(len(runs), "run waits", "runs wait")
                lines.append(f"forecast: {wait} for `scaling predict {study}`{after}")
            else:
                reasons = {row.run_id: row.reason for row in self.rounds[place].runs}
                reason = reasons.get(runs[0].run_id) or "it was not among the study's runs"
                have = counted(len(runs), "run has no prediction and is", "runs have no prediction and are")
                lines.append(f"forecast: {have} not trained ({runs[0].run_id}: {reason})")
        return lines


def trainable(request: Request, waiting: Waiting | None = None) -> list[RunSpec]:
    """The chosen runs without those forecast runs that wait for a prediction or have no learning rate."""
    waiting = waiting or Waiting.of(request)
    gone = {run.run_id for run in (*waiting.for_rate, *waiting.for_prediction)}
    return [run for run in request.runs if run.run_id not in gone]


def _first_begun(request: Request, place: int) -> str | None:
    """A run of the round that has begun, after which nothing of it is predicted, whether the study file or the stored
    predictions name it; None where none has."""
    from analysis.forecast.stored import path_of, read_round

    names = [run.run_id for run in request.forecast_runs(place)]
    if path_of(request.study, place).exists():  # of a study file that has changed since
        names += [row.run_id for row in read_round(request.study, place).runs]
    return next((name for name in names if RunDir(request.study.directory / "runs" / name).has_begun), None)


def _next_round(request: Request) -> int | None:
    """The place of the first round that is not predicted; None where all are."""
    from analysis.forecast.stored import read_rounds

    n_predicted = len(read_rounds(request.study))
    return n_predicted if n_predicted < len(request.study.rounds) else None


def _why_not_yet(request: Request, place: int) -> str | None:
    """Why a round cannot be predicted yet: a run of the rounds before is predicted and not measured, and has not
    failed, or no run of it has a learning rate; None where it can."""
    from analysis.forecast.outcome import read_forecast
    from analysis.source.run_directories import RunDirectories

    study, runs = request.study, {run.run_id: run for run in request.forecast_runs()}
    for forecast in read_forecast(study, RunDirectories(study, request.whole_grid), place) if place else ():
        for outcome in forecast.outcomes:
            name = outcome.run.run_id
            if outcome.run.loss is None or outcome.state == "failed":
                continue
            if outcome.measured is None:
                return f"{name} is {outcome.state}"
            run = runs[name]
            missing = (step for step in run.checkpoint_steps if not request.rundir(run).evaluation(step).exists())
            if study.fit.loss == VALIDATION and any(missing):
                return f"{name} is not evaluated at all of its checkpoints"
    of_round = request.forecast_runs(place)
    if all(run.is_pending for run in of_round):
        return f"none of its forecast runs has a learning rate: {of_round[0].rate.pending if of_round[0].rate else ''}"
    return None


def predict_missing(request: Request, fits: StudyFits) -> bool:
    """Predict the next round that waits, once the whole grid and the rounds before are trained; whether some of it may
    be trained now. Called within `request.writing`, with the fits of the study."""
    place = _next_round(request)
    if place is None or not Waiting.of(request).for_prediction:
        return False
    missing = [run for run in request.whole_grid if not is_trained(run, request.rundir(run))]
    why = None
    if request.study.set_results:
        why = "--set changed the fits: predictions are made from the study's own"
    elif begun := _first_begun(request, place):
        why = f"{begun} has begun, and a prediction comes before its runs"
    elif missing:
        are = counted(len(missing), "run of the grid is", "runs of the grid are")
        why = f"{are} not trained ({missing[0].run_id})"
    elif why := _why_not_yet(request, place):
        request.say(f"forecast: round {place + 1} is not predicted, as {why}")
        return False
    if why is None:
        try:
            _predict_round(request, fits, place)
        except InputError as error:  # no run can be fitted
            why = str(error)
    if why is not None:
        request.say(f"forecast: not predicted, as {why}")
        return False
    of_round = {run.run_id for run in request.forecast_runs(place)}
    return any(run.run_id in of_round for run in trainable(request))


def _predict_round(request: Request, fits: StudyFits | None, place: int) -> None:
    """Predict and store all runs of a round: the first from `fits`, the study's own, later ones from fits of the grid
    and the rounds before. Called within `request.writing`."""
    from analysis.forecast.predict import predict as predictions_of
    from analysis.forecast.stored import Program, path_of
    from analysis.source.run_directories import RunDirectories
    from analysis.stage import fits_of, read_tables

    study = request.study
    if place:
        earlier_runs = [*request.whole_grid, *(run for run in request.forecast_runs() if run.round < place)]
        runs = [at_stored_rate(request.rundir(run), run) for run in earlier_runs]
        before = "the round" if place == 1 else f"the {place} rounds"
        request.say(f"predict: fits of the grid and of {before} before")
        fits, tables = fits_of(study, runs, RunDirectories(study, runs))
    else:
        tables = read_tables(study.results)
    assert fits is not None
    program = Program(commit=git_commit(), code=program_digest())
    predictions = predictions_of(study, request.forecast_runs(place), fits, tables, program, place)
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


def predict(
    study: FittedOptions,
    force: Annotated[
        bool, typer.Option("--force", help="Predict anew, which is refused once one of the runs has begun to train.")
    ] = False,
) -> None:
    """Predict larger runs' losses before they are trained.

    Predicts the forecast runs of the study from its fits, and stores that once. Later calls show the predictions beside
    what was measured, and predict the next round of the forecast once the one before is trained.

    Forecast runs (section forecast of the study file) are trained only after this, and enter no fit but those of later
    rounds.
    """
    from analysis.report.forecast import forecast_section
    from analysis.report.section import terminal

    first, *later = rounds = predict_stage(study.request(), force)
    if study.as_json:
        print_json({**first.to_dict(), "later": [forecast.to_dict() for forecast in later]})
    else:
        print("\n\n".join(terminal(forecast_section(forecast)) for forecast in rounds))
    study.say_next("report" if len(rounds[-1].measured) == len(rounds[-1].outcomes) else "train")


def predict_stage(request: Request, force: bool = False) -> list[ForecastRound]:
    """The study's predictions, round by round, with what was measured. The next round is predicted and stored first,
    where the rounds before it are trained and evaluated; with `force` the last one anew, while none of its runs has
    begun.

    Raises InputError where the study file asks for no forecast, where a run that is to be predicted has begun, and for
    predictions that cannot be read or are of other runs.
    """
    study = request.study
    if study.forecast is None:
        raise InputError(f"{study.path}: has no section forecast: add one (docs/forecasts.md)")
    if study.published is not None:
        if force:
            raise InputError(f"{study.published}: is published and stays as it is: give the study file to predict anew")
    elif _round_to_predict(request, force) is not None:
        check_results(request)
        with request.writing():  # looked at again: another command may have predicted or trained until here
            if (place := _round_to_predict(request, force)) is not None:
                _refuse_begun(request, place)
                _predict_round(request, None if place else fit_stage(request), place)
    forecasts = forecast_rounds(request)
    if not forecasts:
        raise InputError(f"{study.published}: was published without predictions: give the study file to make them")
    return forecasts


def _round_to_predict(request: Request, force: bool) -> int | None:
    """The round that is to be predicted; None where none is, or it has to wait. Raises InputError where one that is
    stored cannot be predicted anew, and where the first has no learning rate."""
    from analysis.forecast.stored import n_stored, path_of

    study = request.study
    place = max(n_stored(study) - 1, 0) if force else _next_round(request)
    if place is None or (why := _why_not_yet(request, place)) is None:
        return place
    if not place:
        raise InputError(f"{study.path}: {why}")
    if force:
        raise InputError(f"{path_of(study, place)}: {why}: the stored one stays")
    request.say(f"predict: round {place + 1} waits, as {why}")
    return None


def _refuse_begun(request: Request, place: int) -> None:
    from analysis.forecast.stored import path_of

    if begun := _first_begun(request, place):
        path = path_of(request.study, place)
        remedy = "the stored one stays" if path.exists() else "remove its directory, or take it out of forecast"
        raise InputError(f"{path}: {begun} has begun, and a prediction comes before its runs: {remedy}")
