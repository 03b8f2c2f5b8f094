"""The `scaling` command. typer alone is imported before a command runs, so that --help is there at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted_of
from arch.commands import application, with_options
from arch.console import run_app

from ..rundir.launcher import leave
from .numerics import fix_bits
from .options import ChangedFittedOptions, DryRun, Force, Repair, RunsOptions, close, print_json

if TYPE_CHECKING:
    from ..stages.request import Request
    from ..study.spec import StudySpec


def run(study: RunsOptions, repair: Repair = False, dry_run: DryRun = False) -> None:
    """Run the whole study here, from plan to report. A re-run does only what is missing."""
    from ..stages import pipeline as commands
    from ..stages import planning, sweep

    request = study.request(repair)
    if dry_run:
        return _dry_run(request, study.as_json)
    request.say(planning.headline(request))
    if sweep.pending(request):
        request.say(sweep.sweep_line(request))
        sweep_result = sweep.sweep_stage(request)
        request.say(f"sweep: law {sweep_result['law']}, report {sweep_result['report']}")
        request = study.request(repair)
    result = commands.run_study(request)
    if study.as_json:
        rounds = [one.to_dict() for one in result["forecast"]]
        print_json(result | {"fits": result["fits"] and result["fits"].to_dict(), "forecast": rounds})
    elif result["fits"]:
        from ..stages.show import show_summary

        more = [f"all laws and their checks: {study.command('fit study', '--details')}", f"report: {result['report']}"]
        print(f"\n{show_summary(result['fits'], more, result['forecast'])}")
    close(request, result)


def plan(
    study: RunsOptions,
    device: Annotated[str | None, typer.Option(help="Print the time on this device too, as flops study.")] = None,
) -> None:
    """Say what the study will cost.

    Prints parameters, tokens, steps and FLOP of every run, its time on this machine, and what its fits will not
    identify.
    """
    from flops.hardware import device_of

    from ..stages import planning, sweep
    from ..stages.corpus import check_corpus
    from ..stages.plan_notes import notes_of
    from ..stages.trunks import short_trunks
    from ..study.machine_cost import on_device
    from ..study.plan_view import show_plan

    chosen = None if device is None else device_of(device)
    request = study.request()
    later = _check_tasks(request.study, request.only, data_later=True)
    table = planning.timed_plan(request) | notes_of(request)
    if chosen is not None:
        table |= on_device(request.study, request.runs, chosen)
        table["notes"].append(table["on_device"]["text"])
    table["warnings"] += later + check_corpus(request, data_later=True)
    table["notes"] += [sweep.sweep_line(request)] if sweep.pending(request) else []
    table["notes"] += short_trunks(request)
    if study.as_json:
        print_json(table)
    else:
        print(show_plan(table))
    study.say_next("run")


def data(study: RunsOptions) -> None:
    """Prepare the corpus."""
    from ..stages.corpus import data_stage

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
    import shlex

    from ..stages import training as commands
    from ..stages.corpus import data_stage, reads_text
    from ..stages.trunks import check_trunks

    request = study.request(repair)
    if dry_run:
        return _dry_run(request, study.as_json)
    _check_tasks(request.study, request.only)
    if not prepare:
        check_trunks(request)
    result: dict[str, Any]
    with request.writing():
        corpus = data_stage(request, reads_text(request))
        _check_tasks(request.study, request.only)  # what they read of the corpus too
        if prepare:
            dirs = commands.prepare_runs(request, corpus)
            launch = request.study.jobs.processes, request.study.plugins
            result = {"commands": [shlex.join(commands.train_argv(rundir, *launch)) for rundir in dirs]}
            request.say("\n".join(result["commands"]))
        else:
            trained, failed = commands.train_stage(request, corpus)
            result = {"trained": trained, "failed": failed}
    if study.as_json:
        print_json(result)
    close(request, result)
    if not prepare:
        study.say_next("eval")


def report(study: ChangedFittedOptions, force: Force = False) -> None:
    """Draw the report from the fitted laws and the tables."""
    from ..stages import pipeline as commands

    request = study.request()
    commands.check_results(request)
    with request.writing(rates=False):
        path = commands.report_stage(request, force)
    if study.as_json:
        print_json({"report": str(path)})
    else:
        print(f"report: {path}")


def _dry_run(request: Request, as_json: bool) -> None:
    from ..stages import planning, sweep
    from ..stages.corpus import check_corpus
    from ..stages.plan_notes import notes_of
    from ..study.plan_view import show_plan

    _check_tasks(request.study, request.only)
    table = planning.timed_plan(request) | notes_of(request) | {"todo": planning.outstanding(request)}
    table["warnings"] += check_corpus(request)
    table["notes"] += [sweep.sweep_line(request)] if sweep.pending(request) else []
    if as_json:
        return print_json(table)
    print(show_plan(table))
    print(f"would train {counted_of(len(table['todo']), len(request.runs), 'run')} (dry run: nothing was written)")


def _check_tasks(study: StudySpec, only: str | None, data_later: bool = False) -> list[str]:
    """Check the evaluations before anything is trained. A study that names none passes, without more imports."""
    if not (study.evaluation.tasks or study.evaluation.settings or study.evaluation.data):
        return []
    from ..stages.evaluation_tasks import check
    from ..stages.request import Request

    return check(Request(study, only), data_later)


# Of each command, the module of this folder and the function there; of a group of commands its typer application.
COMMANDS = {
    "run": "main:run",
    "plan": "main:plan",
    "data": "main:data",
    "train": "main:train",
    "report": "main:report",
    "status": "jobs:status",
    "submit": "jobs:submit",
    "cancel": "jobs:cancel",
    "design": "design:design",
    "sweep": "sweep:sweep",
    "try": "trial:try_",
    "predict": "predict:predict",
    "publish": "publish:publish",
    "clean-text": "clean_text:clean_text",
    "recall": "recall:recall",
    "generate": "checkpoint:generate",
    "inspect": "checkpoint:inspect",
    "export": "checkpoint:export",
    "finish": "jobs:finish",
    "eval": "evaluate:app",
    "fit": "fit:app",
    "bundle": "bundle:app",
}
HIDDEN = ("finish",)


def application_of(names: Iterable[str]) -> typer.Typer:
    """The commands of these names. A command's module is imported here, so that `scaling fit` loads no other's."""
    app = application(
        "A scaling study from one YAML file: corpus, runs, evaluations, fits and report. Everything can be resumed."
    )
    for name in names:
        module, attribute = COMMANDS[name].split(":")
        command = getattr(import_module(f"{__package__}.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, hidden=name in HIDDEN)(with_options(command))
    return app


def __getattr__(name: str) -> typer.Typer:
    """`app`: all commands."""
    if name != "app":
        raise AttributeError(name)
    return application_of(COMMANDS)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Console script."""
    fix_bits()
    signal.signal(signal.SIGTERM, _stop)  # an exception ends the running trainings in good order
    leave()
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    app = application_of([asked] if asked in COMMANDS else COMMANDS)
    run_app(app, "interrupted: give the same command again to continue")


if __name__ == "__main__":
    main()
