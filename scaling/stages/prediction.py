"""The stage of `scaling predict`: the study's predictions, made where there are none, and what was measured since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arch.errors import InputError

from .forecast import first_begun, forecast_rounds, next_round, predict_now, unmeasured
from .pipeline import check_results, fit_stage
from .request import Request

if TYPE_CHECKING:
    from analysis.forecast.outcome import ForecastRound


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
    elif (place := _round_to_predict(request, force)) is not None:
        runs = request.forecast_runs(place)
        if all(run.is_pending for run in runs):
            raise InputError(f"{study.path}: none of its forecast runs has a learning rate: {runs[0].rate['pending']}")
        check_results(request)
        with request.writing():  # looked at again: another command may have predicted or trained until here
            if (place := _round_to_predict(request, force)) is not None:
                _refuse_begun(request, place)
                predict_now(request, None if place else fit_stage(request), place)
    forecasts = forecast_rounds(request)
    if not forecasts:
        raise InputError(f"{study.published}: was published without predictions: give the study file to make them")
    return forecasts


def _round_to_predict(request: Request, force: bool) -> int | None:
    """The round that is to be predicted; None where none is, or it has to wait. Raises InputError where one that is
    stored cannot be predicted anew."""
    from analysis.forecast.stored import n_stored, path_of

    study = request.study
    place = max(n_stored(study) - 1, 0) if force else next_round(request)
    if not place:
        return place
    why, runs = unmeasured(request, place), request.forecast_runs(place)
    if why is None and all(run.is_pending for run in runs):
        why = f"none of its runs has a learning rate: {runs[0].rate['pending']}"
    if why is None:
        return place
    if force:
        raise InputError(f"{path_of(study, place)}: {why}: the stored one stays")
    request.say(f"predict: round {place + 1} waits, as {why}")
    return None


def _refuse_begun(request: Request, place: int) -> None:
    from analysis.forecast.stored import path_of

    if begun_run := first_begun(request, place):
        path = path_of(request.study, place)
        remedy = "the stored one stays" if path.exists() else "remove its directory, or take it out of forecast"
        raise InputError(f"{path}: {begun_run} has begun, and a prediction comes before its runs: {remedy}")
