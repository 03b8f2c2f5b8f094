"""The commands of a study on this machine: run, plan, data, train and report. Each does only what is missing."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted_of
from arch.errors import InputError
from arch.tables import rows_table
from data.settings import shown_source
from data.units import loss_unit

from ..rundir.tracking import check_trackers
from ..study.plan import show_plan
from .corpus import NOT_READY, check_corpus, data_stage, reads_text
from .evaluation import NO_DATA, check_evaluations, eval_stage
from .fitting import check_results, fit_stage, report_stage
from .forecast import Waiting, forecast_rounds, predict_missing
from .options import (
    ChangedFittedOptions,
    DryRun,
    Figures,
    Force,
    Repair,
    RunsOptions,
    close,
    print_json,
    written_figures,
)
from .planning import REFUSES, TimedPlan, evaluation_time, outlook, outstanding, timed_plan
from .request import Request
from .sweep import is_pending, sweep_line, sweep_stage
from .training import check_architectures, check_trunks, prepare_runs, train_argv, train_stage

if TYPE_CHECKING:
    from analysis.fits.study_fits import StudyFits
    from analysis.forecast.outcome import ForecastRound

    from ..study.run import RunSpec


@dataclass
class StudyRun:
    """What `scaling run` did. trained: run ids; failed: {run id: reason}; evaluations: of eval_stage; fits, report:
    None for variants made with --set, which lie beside the study's own runs and are not among them; forecast: its
    rounds with what was measured, of the study's own fits."""

    trained: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    evaluations: dict[str, Any] = field(default_factory=dict)
    fits: StudyFits | None = None
    report: Path | None = None
    forecast: list[ForecastRound] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        fits, report = self.fits and self.fits.to_dict(), self.report and str(self.report)
        return vars(self) | {"fits": fits, "report": report, "forecast": [part.to_dict() for part in self.forecast]}


def run(study: RunsOptions, repair: Repair = False, dry_run: DryRun = False) -> None:
    """Run the whole study here, from plan to report. A re-run does only what is missing."""
    request = study.request(repair)
    if dry_run:
        return _dry_run(request, study.as_json)
    check_evaluations(request)
    request.say(timed_plan(request).headline)
    if is_pending(request):
        request.say(sweep_line(request))
        swept = sweep_stage(request)
        request.say(f"sweep: law {swept.law}, report {swept.report}")
        request = study.request(repair)
    result = run_study(request)
    if study.as_json:
        print_json(result.to_dict())
    elif result.fits:
        from analysis.report.runs import fitted_line
        from analysis.source.choose import source_of
        from analysis.stage import accuracies, read_tables

        from .fitting import runs_at_stored_rates
        from .show import show_summary

        source, runs = source_of(request.study, runs_at_stored_rates(request)), read_tables(request.study.results).runs
        if rows := accuracies(request.study, runs, source):
            print(f"\n{rows_table(rows)}")
        more = [
            fitted_line(result.fits),
            f"losses: {result.fits.conventions['L']}; text: {shown_source(request.study.corpus.settings().source)}",
            f"all laws and their checks: {study.command('fit study', '--details')}",
            f"report: {result.report}",
        ]
        print(f"\n{show_summary(result.fits, [*more, _next_step(study, request, result.fits)], result.forecast)}")
    else:
        print(f"\n{_beside_own(study, request)}")
    close(request, {"failed": result.failed, "evaluations": result.evaluations})


def _beside_own(study: RunsOptions, request: Request) -> str:
    """The held-out losses of variants made with --set beside those of the study's own runs."""
    from analysis.held_out import load_held_out
    from arch.tables import wrapped

    def loss_of(run: RunSpec) -> float | None:
        with suppress(InputError):  # not trained, or not evaluated
            return load_held_out(request.study.directory, run.run_id, run.n_steps).loss
        return None

    def key_of(run: RunSpec) -> tuple[object, ...]:
        return run.arch, run.size, run.seed, run.n_tokens, str(run.point)

    own = {key_of(run): run for run in replace(study, sets=None).request().runs}
    unit, rows = loss_unit([request.study.corpus.tokenizer]), []
    for run in request.runs:
        other = own.get(key_of(run))
        losses = loss_of(run), None if other is None else loss_of(other)
        mine, its = ("-" if loss is None else f"{loss:.4f}" for loss in losses)
        less = "-" if None in losses else f"{(losses[0] or 0.0) - (losses[1] or 0.0):+.4f}"
        rows.append({"run": run.run_id, f"held-out loss, {unit}": mine, "the study's own run": its, "difference": less})
    words = ["scaling", "try", "VARIANT.yaml", "--against", study.study]
    command = shlex.join([*words, *([] if study.out is None else ["--out", str(study.out)])])
    how = f"`{command}` tells such a difference from chance, and what larger sizes say (docs/try.md)"
    return "\n".join([rows_table(rows), *wrapped([f"next: {how}"])])


def _next_step(study: RunsOptions, request: Request, fits: StudyFits) -> str:
    """What follows from the study: what it still waits for, runs that would give the laws it lacks, a test of its laws,
    or its publication."""
    from analysis.figures.palette import name_of
    from analysis.report.laws import leading_law
    from analysis.report.words import listed

    waiting = Waiting.of(request)
    if waiting.for_rate:
        return f"next: {study.command('sweep')}"
    if waiting.for_prediction:
        return f"next: {study.command('predict')}"
    if not any(group.n_runs for group in fits.groups):
        ended = f"`{study.command('status')}` shows how they ended"
        return f"next: let runs enter the fits, as the reasons above say; {ended}"
    lacking = dict.fromkeys(name_of(law.group) for law in fits.laws if not leading_law(fits, law.group))
    if lacking or not fits.laws:
        of = f" for {listed(list(lacking))}" if lacking else ""
        return f"next: more sizes or seeds, for a law of the optimal size{of}: `scaling design` proposes them"
    if not request.study.rounds:
        return "next: test the laws by a larger run: a section forecast in the study file (docs/forecasts.md)"
    return f"next: to share tables, laws and report: {study.command('publish', 'FOLDER')} (FOLDER: a new folder)"


def run_study(request: Request) -> StudyRun:
    """Everything that is missing, stage by stage."""
    check_trunks(request)
    check_trackers(request.study.tracking)
    if names := check_architectures(request):
        request.say(f"checked {', '.join(names)}: ok")
    with request.writing():
        corpus = data_stage(request, reads_text(request))
        check_evaluations(request)  # what it reads of the corpus too
        result = StudyRun(*train_stage(request, corpus), eval_stage(request))
        if request.study.is_variant:
            request.say("fit, report: skipped (they use the study's own runs, not variants made with --set)")
            return result
        result.fits = fit_stage(request)
        while predict_missing(request, result.fits):
            more, result.failed = train_stage(request, corpus)
            result.trained, result.evaluations = [*result.trained, *more], eval_stage(request)
        result.forecast = [] if request.study.set_results else forecast_rounds(request)
        result.report = report_stage(request)
        return result


def plan_command(study: RunsOptions) -> None:
    """Say what the study will cost.

    Prints parameters, tokens, steps and FLOP of every run, its time on this machine, and what its fits will not
    identify.
    """
    request = study.request()
    made = _planned(request, data_later=True)
    if study.as_json:
        return print_json(made.to_dict())
    print(show_plan(made.plan))
    start = "run" if request.study.jobs.cluster is None else "submit"
    refused = (NOT_READY, REFUSES, *([f"{NO_DATA}: "] if start == "run" else []))  # jobs of a cluster may find the data
    if any(line.startswith(refused) for line in made.plan.warnings):
        return print(f"next: correct what the warnings say, then `{study.command(start)}`")
    is_left = made.expected.n_runs or evaluation_time(request) or Waiting.of(request).lines(request)
    study.say_next(start if is_left else "status")


def _planned(request: Request, data_later: bool) -> TimedPlan:
    """The plan with all that is known about it. Raises InputError where a corpus or evaluations cannot be, unless these
    may come later."""
    later = check_evaluations(request, data_later)
    made = timed_plan(request)
    made.plan.outlook += outlook(request)
    made.plan.warnings += later + check_corpus(request, data_later)
    made.plan.notes += [sweep_line(request)] if is_pending(request) else []
    return made


def _dry_run(request: Request, as_json: bool) -> None:
    made, todo = _planned(request, data_later=False), outstanding(request)
    if as_json:
        return print_json(made.to_dict() | {"todo": todo})
    print(show_plan(made.plan))
    print(f"would train {counted_of(len(todo), len(request.runs), 'run')} (dry run: nothing was written)")


def data(study: RunsOptions) -> None:
    """Prepare the corpus."""
    request = study.request()
    with request.writing(rates=False):
        corpus = data_stage(request)
    if study.as_json:
        print_json(corpus.manifest)
    study.say_next("train")


def train(
    study: RunsOptions,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Write the corpus and the run directories, and print each run's command.")
    ] = False,
    repair: Repair = False,
    dry_run: DryRun = False,
) -> None:
    """Train the runs that are not done yet."""
    request = study.request(repair)
    if dry_run:
        return _dry_run(request, study.as_json)
    check_evaluations(request)
    if not prepare:
        check_trunks(request)
        check_trackers(request.study.tracking)
    with request.writing():
        corpus = data_stage(request, reads_text(request))
        check_evaluations(request)  # what they read of the corpus too
        if prepare:
            launch = request.study.jobs.processes, request.study.plugins
            commands = [shlex.join(train_argv(rundir, *launch)) for rundir in prepare_runs(request, corpus)]
            request.say("\n".join(commands))
            return print_json({"commands": commands}) if study.as_json else None
        trained, failed = train_stage(request, corpus)
    if study.as_json:
        print_json({"trained": trained, "failed": failed})
    close(request, {"failed": failed})
    study.say_next("eval study")


def report(
    study: ChangedFittedOptions,
    force: Force = False,
    figures: Figures = None,
) -> None:
    """Draw the report from the fitted laws and the tables."""
    request = study.request()
    check_results(request)
    if figures is not None:
        from analysis.figures.paper import check_paper

        check_paper(figures)
    with request.writing(rates=False):
        path = report_stage(request, force, figures)
    if study.as_json:
        return print_json({"report": str(path)})
    print(f"report: {path}")
    if figures is not None:
        print(written_figures(figures))
