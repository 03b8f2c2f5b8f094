"""The stages that make laws and report of the runs that are trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from arch.amounts import counted
from arch.errors import InputError

from ..rundir.prepare import at_stored_rate
from ..study.run import RunSpec
from .request import Request

if TYPE_CHECKING:
    from analysis.fits.study_fits import StudyFits


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


def report_stage(request: Request, force: bool = False, paper: Path | None = None) -> Path:
    """report/index.html of the whole study; figures and tables for a paper into the folder `paper`. Raises InputError
    as fit_stage does."""
    from analysis.stage import report

    check_results(request)
    result = report(request.study, runs_at_stored_rates(request), force, paper)
    request.say(
        ("report: written" if result.fresh else "report: nothing to do") + _beside(request, request.study.report)
    )
    if result.no_pictures:
        request.say(f"report: no PNGs ({result.no_pictures})")
    return result.path


def runs_at_stored_rates(request: Request) -> list[RunSpec]:
    """The study's runs. A run whose rate is still open has the rate that it was trained at; a warning says so."""
    runs = request.whole_grid
    pending = [run for run in runs if run.is_pending and request.rundir(run).run_json.exists()]
    if pending:
        are = counted(len(pending), "run is taken at the rate of its", "runs are taken at the rates of their")
        why = pending[0].rate.pending if pending[0].rate else ""
        request.say(f"warning: {are} training; the study file asks for another law: {why}")
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
    if request.study.published is None and not any(request.rundir(run).has_begun for run in request.whole_grid):
        raise InputError(
            f"{request.study.directory}: no run has trained, so there is nothing to fit or to report: "
            f"`scaling train {request.study.path}` first"
        )
