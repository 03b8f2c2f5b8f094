"""The stages of a study, in the order in which `scaling run` takes them. Each does only what is missing.

Heavy imports happen inside the stages that need them: a study where all is done never loads torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.amounts import counted
from arch.errors import InputError

from ..rundir.prepare import at_stored_rate
from ..study.run import RunSpec
from .corpus import data_stage, reads_text
from .forecast import forecast_rounds, predict_missing, waiting
from .request import Request
from .training import train_stage
from .trunks import check_trunks

if TYPE_CHECKING:
    from analysis.fits.study_fits import StudyFits


def run_study(request: Request) -> dict[str, Any]:
    """Everything that is missing, stage by stage.

    Returns {"trained": run ids, "failed": {run id: reason}, "evaluations": of eval_stage, "fits", "report": path,
    "forecast": its rounds with what was measured}; fits and report are None for variants made with --set, which lie
    beside the study's own runs and are not among them, and then there is no forecast.
    """
    from .evaluation import eval_stage
    from .evaluation_tasks import check

    check(request)  # a wrong evaluation is refused before anything is trained
    check_trunks(request)
    with request.writing():
        corpus = data_stage(request, reads_text(request))
        check(request)  # what it reads of the corpus too
        trained, failed = train_stage(request, corpus)
        result: dict[str, Any] = {"trained": trained, "failed": failed, "evaluations": eval_stage(request)}
        if request.study.is_variant:
            request.say("fit, report: skipped (they use the study's own runs, not variants made with --set)")
            return result | {"fits": None, "report": None, "forecast": []}
        fits = fit_stage(request)
        while waiting(request) and predict_missing(request, fits):
            more, failed = train_stage(request, corpus)
            trained = [*trained, *more]
            result |= {"trained": trained, "failed": failed, "evaluations": eval_stage(request)}
        rounds = [] if request.study.set_results else forecast_rounds(request)
        return result | {"fits": fits, "report": str(report_stage(request)), "forecast": rounds}


def fit_stage(request: Request, force: bool = False) -> StudyFits:
    """The laws of the whole study, from the runs that are done. Raises InputError for variants made with --set, and
    where nothing has trained."""
    from analysis.stage import fit

    check_results(request)
    result = fit(request.study, runs_at_stored_rates(request), force)
    if result.damaged:
        request.say(f"fit: made again: {result.damaged}")
    request.say(("fit: done" if result.fresh else "fit: nothing to do") + _beside(request, request.study.results))
    return result.fits


def report_stage(request: Request, force: bool = False) -> Path:
    """report/index.html of the whole study. Raises InputError as fit_stage does."""
    from analysis.stage import report

    check_results(request)
    result = report(request.study, runs_at_stored_rates(request), force)
    request.say(("report: drawn" if result.fresh else "report: nothing to do") + _beside(request, request.study.report))
    if result.no_pictures:
        request.say(f"report: no PNGs ({result.no_pictures})")
    return result.path


def runs_at_stored_rates(request: Request) -> list[RunSpec]:
    """The study's runs. A run whose rate is still open has the rate that it was trained at; a warning says so."""
    runs = request.whole_grid
    pending = [run for run in runs if run.is_pending and request.rundir(run).run_json.exists()]
    if pending:
        runs_text = counted(len(pending), "run is taken at the rate of its", "runs are taken at the rates of their")
        request.say(f"warning: {runs_text} training; the study file asks for another law: {pending[0].rate['pending']}")
    return [at_stored_rate(request.rundir(run), run) for run in runs]


def _beside(request: Request, directory: Path) -> str:
    """Where results of a changed fit or grid go; "" for the study's own."""
    if not request.study.set_results:
        return ""
    return f" (changed by --set, so it is in {directory}/ beside the study's own)"


def check_results(request: Request) -> None:
    """Raise InputError for variants made with --set, and where no run of the study has trained."""
    if request.study.is_variant:
        raise InputError(
            f"{request.study.origin}: fit and report use the study's own runs, not variants: leave out --set of "
            f"training and model, or write a study file with another name"
        )
    if request.study.published is not None:  # some of its runs had trained
        return
    for run in request.whole_grid:
        if request.rundir(run).has_begun:
            return
    raise InputError(
        f"{request.study.directory}: no run has trained, so there is nothing to fit or to report: "
        f"`scaling train {request.study.path}` first"
    )
