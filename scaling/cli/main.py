"""The `scaling` command. Typer alone is imported before a command runs, so that --help is at once there."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted, counted_of
from arch.errors import InputError
from flops.console import HELP_BY, add_version, run_app
from flops.hardware import device_of

from ..rundir.launcher import leave
from . import bundle as cli_bundle
from . import clean_text as cli_clean_text
from . import design as cli_design
from . import evaluate as cli_eval
from . import fit as cli_fit
from . import flops as cli_flops
from . import jobs as cli_jobs
from . import predict as cli_predict
from . import publish as cli_publish
from . import recall as cli_recall
from . import sweep as cli_sweep
from . import trial as cli_trial
from .numerics import fix_bits
from .options import (
    AsJson,
    CheckpointPath,
    DryRun,
    Fitted,
    Force,
    Only,
    Out,
    Plugin,
    Repair,
    Sets,
    Study,
    close,
    print_json,
    request_of,
    tell,
)

if TYPE_CHECKING:
    from ..stages.request import Request
    from ..study.spec import StudySpec

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP_BY,
    help="A scaling study from one YAML file: corpus, runs, evaluations, fits and report. Everything can be resumed.",
)
add_version(app)
cli_jobs.register(app)


@app.command()
def run(
    study: Study,
    only: Only = None,
    sets: Sets = None,
    out: Out = None,
    repair: Repair = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """The whole study here: plan, data, train, eval, fit, report. A re-run does only what is missing."""
    from ..stages import pipeline as commands
    from ..stages import planning, sweep

    request = request_of(study, only, sets, out, as_json, repair=repair)
    if dry_run:
        return _dry_run(request, as_json)
    request.say(planning.headline(request))
    if sweep.pending(request):
        request.say(sweep.sweep_line(request))
        sweep_result = sweep.sweep_stage(request)
        request.say(f"sweep: law {sweep_result['law']}, report {sweep_result['report']}")
        request = request_of(study, only, sets, out, as_json, repair=repair)
    result = commands.run_study(request)
    if as_json:
        print_json(result | {"fits": result["fits"] and result["fits"].to_dict()})
    elif result["fits"]:
        from ..stages.show import show_summary

        folder = "" if out is None else f" --out {out}"
        more = [f"all laws and their checks: scaling fit {study}{folder} --details", f"report: {result['report']}"]
        print(f"\n{show_summary(result['fits'], more)}")
    close(request, result)


@app.command()
def plan(
    study: Study,
    only: Only = None,
    sets: Sets = None,
    out: Out = None,
    device: Annotated[str | None, typer.Option(help="Its time on one of these too, as `flops study` has it.")] = None,
    as_json: AsJson = False,
) -> None:
    """What the study will cost: parameters, tokens, steps and FLOP of every run, its time on this machine, and what its
    fits will not identify."""
    from ..stages import planning, sweep
    from ..stages.corpus import check_corpus
    from ..stages.plan_notes import notes_of
    from ..stages.trunks import short_trunks
    from ..study.plan_view import show_plan

    chosen = None if device is None else device_of(device)
    request = request_of(study, only, sets, out, as_json)
    later = _check_tasks(request.study, only, data_later=True)
    table = planning.timed_plan(request) | notes_of(request)
    if chosen is not None:
        table |= cli_flops.on_device(request.study, request.runs, chosen)
        table["notes"].append(table["on_device"]["text"])
    table["warnings"] += later + check_corpus(request, data_later=True)
    table["notes"] += [sweep.sweep_line(request)] if sweep.pending(request) else []
    table["notes"] += short_trunks(request)
    if as_json:
        print_json(table)
    else:
        print(show_plan(table))


@app.command()
def data(study: Study, only: Only = None, sets: Sets = None, out: Out = None, as_json: AsJson = False) -> None:
    """Prepare the corpus."""
    from ..stages.corpus import data_stage

    request = request_of(study, only, sets, out, as_json)
    with request.writing(rates=False):
        corpus = data_stage(request)
    if as_json:
        print_json(corpus.manifest)


@app.command()
def train(
    study: Study,
    only: Only = None,
    sets: Sets = None,
    out: Out = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Write corpus and run directories and print each run's command.")
    ] = False,
    repair: Repair = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train the runs that are not done yet."""
    import shlex

    from ..stages import training as commands
    from ..stages.corpus import data_stage, reads_text
    from ..stages.trunks import check_trunks

    request = request_of(study, only, sets, out, as_json, repair=repair)
    if dry_run:
        return _dry_run(request, as_json)
    _check_tasks(request.study, only)
    if not prepare:
        check_trunks(request)
    result: dict[str, Any]
    with request.writing():
        corpus = data_stage(request, reads_text(request))
        _check_tasks(request.study, only)  # what they read of the corpus too
        if prepare:
            dirs = commands.prepare_runs(request, corpus)
            launch = request.study.jobs.processes, request.study.plugins
            result = {"commands": [shlex.join(commands.train_argv(rundir, *launch)) for rundir in dirs]}
            request.say("\n".join(result["commands"]))
        else:
            trained, failed = commands.train_stage(request, corpus)
            result = {"trained": trained, "failed": failed}
    if as_json:
        print_json(result)
    close(request, result)


app.command("clean-text")(cli_clean_text.clean_text)
app.command()(cli_sweep.sweep)
app.add_typer(cli_bundle.app, name="bundle")
app.add_typer(cli_eval.app, name="eval")
app.command()(cli_recall.recall)
app.command("try")(cli_trial.try_)


app.command()(cli_fit.fit)
app.command()(cli_predict.predict)
app.command()(cli_design.design)
app.command()(cli_publish.publish)


@app.command()
def report(
    study: Fitted,
    sets: Sets = None,
    out: Out = None,
    force: Force = False,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Draw the report from the fitted laws and the tables."""
    from ..stages import pipeline as commands

    request = request_of(study, None, sets, out, as_json, True, plugin)
    commands.check_results(request)
    with request.writing(rates=False):
        path = commands.report_stage(request, force)
    if as_json:
        print_json({"report": str(path)})
    else:
        print(f"report: {path}")


@app.command()
def generate(
    checkpoint: CheckpointPath,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help='Text to continue; "-" reads standard input.')],
    tokens: Annotated[int, typer.Option(min=1, help="At most so many new tokens; end-of-text ends it earlier.")] = 100,
    temperature: Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Draw from the k likeliest tokens; 0: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that reach this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    dtype: Annotated[str, typer.Option(help="Precision of the weights: fp32 or bf16.")] = "fp32",
    stats: Annotated[bool, typer.Option("--stats", help="Speed, state bytes and parameters, on stderr.")] = False,
    plugin: Plugin = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one object at the end: text, ids, statistics.")
    ] = False,
) -> None:
    """Continue a text with a trained model. Prints the continuation as it is written; uses a GPU where there is one."""
    from ..rundir.find_checkpoint import find_checkpoint

    saved = find_checkpoint(checkpoint, tell, plugin)
    from ..checkpoints.generate import SamplingOptions, describe, open_model, read_prompt
    from ..checkpoints.generate import generate as write_on

    text = read_prompt(prompt)
    model, tokenizer = open_model(saved.path, dtype), saved.tokenizer()
    options = SamplingOptions(tokens, temperature, top_k, top_p, seed)
    try:
        result = write_on(model, tokenizer, text, options, None if as_json else sys.stdout)
    except BrokenPipeError:  # the reader closed the pipe
        raise typer.Exit(128 + signal.SIGPIPE) from None
    if as_json:
        print_json({"checkpoint": str(saved.path)} | result)
    if stats:
        tell(describe(result["stats"]))


@app.command()
def inspect(
    checkpoint: CheckpointPath,
    text: Annotated[
        Path | None, typer.Option(help="Read this text; default: held-out text of the study's corpus.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Read about so many tokens.")] = 16_384,
    out: Annotated[
        Path | None, typer.Option(help="Directory for gates.json, index.html and pictures; default: inspect-RUN-STEP.")
    ] = None,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Look inside a model: what its forget gates keep, layer by layer, and which tokens its layers mix."""
    from ..rundir.find_checkpoint import find_checkpoint

    saved = find_checkpoint(checkpoint, tell, plugin)
    from analysis.inspection.gates import inspect_checkpoint
    from analysis.inspection.page import gates_table, write_inspection

    result = inspect_checkpoint(saved.path, saved.tokenizer(), text or saved.corpus, tokens)
    pages = write_inspection(result, out or Path(f"inspect-{saved.manifest['run_id']}-{saved.step}"))
    if as_json:
        return print_json(result.to_dict() | pages)
    print(f"{gates_table(result)}\n\npage: {pages['page']}")
    if pages["no_pictures"]:
        print(f"no PNGs ({pages['no_pictures']})")


@app.command()
def export(
    checkpoint: CheckpointPath,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; must not exist, or be empty.")],
    hf: Annotated[bool, typer.Option("--hf", help="As a folder that transformers opens by itself.")] = False,
    dtype: Annotated[
        str | None, typer.Option(help="Precision of the weights: fp32 or bf16; default: the checkpoint's.")
    ] = None,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint for other tools: weights, tokenizer, model card and code, for trust_remote_code=True."""
    if not hf:
        raise InputError("export: give the format; --hf is the only one")
    from ..checkpoints.export import export_hf
    from ..rundir.find_checkpoint import find_checkpoint

    result = export_hf(find_checkpoint(checkpoint, tell, plugin).path, directory, dtype)
    if as_json:
        return print_json(result)
    print(
        f"{directory}: {result['n_params']:,} parameters, {result['bytes']:,} bytes, "
        f"{counted(len(result['files']), 'file')}; "
        f"AutoModelForCausalLM.from_pretrained opens it with trust_remote_code=True"
    )


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


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Console script."""
    fix_bits()
    signal.signal(signal.SIGTERM, _stop)  # an exception ends the running trainings in good order
    leave()
    run_app(app, "interrupted: give the same command again to continue")


if __name__ == "__main__":
    main()
