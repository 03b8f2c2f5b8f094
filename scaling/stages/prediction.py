"""The stage of `scaling predict`: the study's predictions, made where there are none, and what was measured since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arch.errors import InputError

from .forecast import first_begun, predict_now
from .pipeline import check_results, fit_stage

if TYPE_CHECKING:
    from .pipeline import Request


def predict_stage(request: Request, force: bool = False) -> dict[str, Any]:
    """The study's predictions with what was measured (analysis.forecast.outcome) and their rehearsals
    (analysis.forecast.rehearsals); made and stored first where there are none, or with `force` while none of their runs
    has begun.

    Raises InputError where the study file asks for no forecast, where a run that is to be predicted has begun, and for
    predictions that cannot be read or are of other runs.
    """
    from analysis.forecast.rehearsals import with_rehearsals
    from analysis.forecast.stage import told
    from analysis.forecast.stored import read_predictions
    from analysis.source.choose import source_of

    study = request.study
    if study.forecast is None:
        raise InputError(f"{study.path}: has no section forecast: add one (docs/forecasts.md)")
    runs = study.forecast_runs()
    if force or read_predictions(study, runs) is None:
        if study.published is not None:
            raise InputError(f"{study.published}: was published without predictions: give the study file to make them")
        if all(run.is_pending for run in runs):
            raise InputError(f"{study.path}: none of its forecast runs has a learning rate: {runs[0].rate['pending']}")
        check_results(request)
        with request.writing():  # looked at again: another command may have predicted or trained until here
            if force or read_predictions(study, runs) is None:
                _refuse_begun(request, force)
                predict_now(request, fit_stage(request))
    source = source_of(study, study.runs())
    found = told(study, source)
    assert found is not None
    return with_rehearsals(study, source, found)


def _refuse_begun(request: Request, force: bool) -> None:
    from analysis.forecast.stored import path_of

    if begun := first_begun(request):
        remedy = "the stored one stays" if force else "remove its directory, or take it out of forecast"
        raise InputError(f"{path_of(request.study)}: {begun} has begun, and a prediction is made before: {remedy}")
