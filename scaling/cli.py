"""The `scaling` command. Typer alone is imported before a command runs, so that --help is at once there."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flops.console import run_app

if TYPE_CHECKING:
    from .commands import Request

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A scaling study from one YAML file: corpus, runs, evaluations, fits and report. Everything can be resumed.",
)
Study = Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or the name of one of the package's.")]
Only = Annotated[str | None, typer.Option(help="Some runs only, as arch=hgrn2|tnl,size=98k,seed=0.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Change a value, as training.lr=1e-3; repeatable.")]
Out = Annotated[Path | None, typer.Option(help="Directory of all studies' output; default: the study file's `out`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; progress goes to stderr.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]


def _request(study: str, only: str | None, sets: list[str] | None, out: Path | None, as_json: bool) -> Request:
    from .commands import Request
    from .spec import load_study

    request = Request(load_study(study, sets or [], out), only, sys.stderr if as_json else sys.stdout)
    request.study.runs(only)
    return request


def _print(value: Any) -> None:
    print(json.dumps(value, indent=1))


@app.command()
def run(
    study: Study,
    only: Only = None,
    sets: Sets = None,
    out: Out = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """The whole study here: plan, data, train, eval, fit, report. A re-run does only what is missing."""
    from . import commands

    request = _request(study, only, sets, out, as_json)
    if dry_run:
        return _dry_run(request, as_json)
    request.say(commands.headline(request))
    result = commands.run_study(request)
    if as_json:
        _print(result)
    elif result["fits"]:
        print(f"\n{commands.show_laws(result['fits'])}\n\nreport: {result['report']}")
    _close(request, result)


@app.command()
def plan(study: Study, only: Only = None, sets: Sets = None, out: Out = None, as_json: AsJson = False) -> None:
    """What the study will cost: parameters, tokens, steps and FLOP of every run."""
    from .plan import plan as make_plan
    from .plan import show_plan
    from .spec import load_study

    spec = load_study(study, sets or [], out)
    table = make_plan(spec, spec.runs(only))
    if as_json:
        _print(table)
    else:
        print(show_plan(table))


@app.command()
def data(study: Study, only: Only = None, sets: Sets = None, out: Out = None, as_json: AsJson = False) -> None:
    """Prepare the corpus."""
    from . import commands

    request = _request(study, only, sets, out, as_json)
    with request.writing():
        corpus = commands.data_stage(request)
    if as_json:
        _print(corpus.manifest)


@app.command()
def train(
    study: Study,
    only: Only = None,
    sets: Sets = None,
    out: Out = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Write corpus and run directories and print each run's command.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train the runs that are not done yet."""
    import shlex

    from . import commands

    request = _request(study, only, sets, out, as_json)
    if dry_run:
        return _dry_run(request, as_json)
    result: dict[str, Any]
    with request.writing():
        corpus = commands.data_stage(request)
        if prepare:
            dirs = commands.prepare_runs(request, corpus)
            tasks = [
                commands.train_task(*pair, request.study.jobs.processes)
                for pair in zip(request.runs, dirs, strict=True)
            ]
            result = {"commands": [shlex.join(task.argv) for task in tasks]}
            request.say("\n".join(result["commands"]))
        else:
            trained, failed = commands.train_stage(request, corpus)
            result = {"trained": trained, "failed": failed}
    if as_json:
        _print(result)
    _close(request, result)


@app.command("eval")
def evaluate(
    study: Study,
    only: Only = None,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
    checkpoint: Annotated[list[str] | None, typer.Option(hidden=True, help="The share of one worker process.")] = None,
) -> None:
    """Evaluate the checkpoints that have no result yet: held-out loss, perplexity, bits per byte."""
    from . import commands

    request = _request(study, only, sets, out, as_json)
    if checkpoint:  # started by eval_stage, whose process holds the lock
        return commands.eval_worker(request, checkpoint)
    with request.writing():
        result = {"warnings": commands.eval_stage(request)}
    if as_json:
        _print(result)
    _close(request, result)


@app.command()
def fit(study: Study, sets: Sets = None, out: Out = None, as_json: AsJson = False) -> None:
    """Fit the power laws to the runs that are done and print them."""
    from . import commands

    request = _request(study, None, sets, out, as_json)
    with request.writing():
        fits = commands.fit_stage(request)
    if as_json:
        _print(fits)
    else:
        print(commands.show_laws(fits))


@app.command()
def report(study: Study, sets: Sets = None, out: Out = None, as_json: AsJson = False) -> None:
    """Draw the report from the fitted laws and the tables."""
    from . import commands

    request = _request(study, None, sets, out, as_json)
    with request.writing():
        path = commands.report_stage(request)
    if as_json:
        _print({"report": str(path)})
    else:
        print(f"report: {path}")


@app.command()
def status(study: Study, only: Only = None, sets: Sets = None, out: Out = None, as_json: AsJson = False) -> None:
    """How far each run is: state, steps, tokens, loss, speed, and why it stopped."""
    from .status import show_status, status_rows

    request = _request(study, only, sets, out, as_json)
    rows = status_rows(request.study, request.runs)
    if as_json:
        _print({"study": request.study.name, "directory": str(request.study.directory), "runs": rows})
    else:
        print(show_status(rows))


def _dry_run(request: Request, as_json: bool) -> None:
    from . import commands
    from .plan import plan, show_plan

    table = plan(request.study, request.runs) | {"todo": commands.outstanding(request)}
    if as_json:
        return _print(table)
    print(show_plan(table))
    print(f"would train {len(table['todo'])} of {len(request.runs)} runs (dry run: nothing was written)")


def _close(request: Request, result: dict[str, Any]) -> None:
    """Tell what went wrong and leave with 1 where something did."""
    for line in result.get("warnings", []):
        print(f"warning: {line}", file=sys.stderr)
    failed = result.get("failed", {})
    for run_id, reason in failed.items():
        print(f"failed: {run_id}: {reason}", file=sys.stderr)
    if failed:
        print(f"error: {len(failed)} of {len(request.runs)} runs are not done", file=sys.stderr)
        raise typer.Exit(1)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Console script."""
    signal.signal(signal.SIGTERM, _stop)  # an exception ends the running trainings in good order
    run_app(app)


if __name__ == "__main__":
    main()
