"""What is stored of a study's evaluations, as its table and its page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .evaluation_tasks import EvalOptions, task_context
from .request import Request

if TYPE_CHECKING:
    from analysis.evals.results import CurrentResults


def current_results(request: Request, options: EvalOptions | None = None) -> CurrentResults:
    """What is stored of the request's runs, as far as it would be computed so today. The tasks of `options` are known
    beside the study's. Raises InputError for settings that cannot be."""
    from analysis.evals.registry import entry_of, make_tasks
    from analysis.evals.results import read_current

    context, runs_dir = task_context(request), request.study.directory / "runs"
    words = [*(request.study.evaluation.tasks or ()), *(options.tasks if options else ())]
    names = {path.stem for run in request.runs for path in (runs_dir / run.run_id / "evals").glob("[0-9]*/*.*")}
    task_names = [name for name in sorted(names) if entry_of(name)] + [word for word in words if ":" in word]
    return read_current(runs_dir, request.runs, make_tasks(task_names, context))


def show_results(request: Request, options: EvalOptions | None = None) -> None:
    """Write results/evals.parquet and evals/index.html of all the study's own runs; print what is left out of them."""
    from analysis.evals.page import write_page
    from analysis.evals.results import write_tables

    directory = request.study.directory
    current = current_results(replace(request, only=None), options)
    for line in current.lines():
        request.say(f"eval: {line}")
    if write_tables(directory / "results", current.results, {run.run_id for run in request.study.forecast_runs()}):
        request.say(f"eval: all numbers are in {directory}/results/evals.parquet")
    if all(result.task == "validation" for result in current.results):
        return  # the report shows it
    page = write_page(directory / "evals", request.study.name, current.results, current.lines())
    if page.fresh:
        request.say(f"eval: drawn, {page.path}" + (f" (no PNGs: {page.no_pictures})" if page.no_pictures else ""))
