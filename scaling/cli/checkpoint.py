"""`scaling generate`, `inspect` and `export`: what is done with one checkpoint."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from arch.amounts import counted
from arch.commands import Plugins
from arch.errors import InputError
from data.vocabulary import IDS

from ..rundir.find_checkpoint import find_checkpoint
from ..rundir.saved import Checkpoint
from .options import AsJson, DryRun, notify, print_json

CheckpointPath = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's directory, or a run's for its newest.")
]


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """How a continuation is drawn and printed."""

    tokens: Annotated[int, typer.Option(min=1, help="At most so many new tokens; end-of-text ends it earlier.")] = 100
    temperature: Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token.")] = 0.8
    top_k: Annotated[int, typer.Option(min=0, help="Draw from the k likeliest tokens; 0: from all.")] = 0
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that reach this probability.")] = 1.0
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0
    dtype: Annotated[str, typer.Option(help="Precision of the weights: fp32 or bf16.")] = "fp32"
    plugin: Plugins = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one object at the end: text and ids.")] = False


def generate(
    checkpoint: CheckpointPath,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help='Text to continue; "-" reads standard input.')],
    options: GenerateOptions,
) -> None:
    """Continue a text with a trained model. Prints the continuation as it is written; uses a GPU where there is one."""
    saved = _language_model(checkpoint, options.plugin)
    from ..checkpoints.generate import SamplingOptions, open_model, read_prompt
    from ..checkpoints.generate import generate as write_on

    text = read_prompt(prompt)
    model, tokenizer = open_model(saved.path, options.dtype), saved.tokenizer()
    sampling = SamplingOptions(options.tokens, options.temperature, options.top_k, options.top_p, options.seed)
    try:
        result = write_on(model, tokenizer, text, sampling, None if options.as_json else sys.stdout)
    except BrokenPipeError:  # the reader closed the pipe
        raise typer.Exit(128 + signal.SIGPIPE) from None
    if options.as_json:
        print_json({"checkpoint": str(saved.path)} | result)


def inspect(
    checkpoint: CheckpointPath,
    text: Annotated[
        Path | None, typer.Option(help="Read this text; default: held-out text of the study's corpus.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Read about so many tokens.")] = 16_384,
    out: Annotated[
        Path | None, typer.Option(help="Directory for gates.json, index.html and pictures; default: inspect-RUN-STEP.")
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Look inside a model. Shows what its forget gates keep, layer by layer, and which tokens its layers mix."""
    saved = _language_model(checkpoint, plugin)
    from analysis.inspection.gates import inspect_checkpoint
    from analysis.inspection.page import gates_table, write_inspection

    result = inspect_checkpoint(saved.path, saved.tokenizer(), text or saved.corpus, tokens)
    pages = write_inspection(result, out or Path(f"inspect-{saved.manifest['run_id']}-{saved.step}"))
    if as_json:
        return print_json(result.to_dict() | pages)
    print(f"{gates_table(result)}\n\npage: {pages['page']}")
    if pages["no_pictures"]:
        print(f"no PNGs ({pages['no_pictures']})")


def export(
    checkpoint: CheckpointPath,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; must not exist, or be empty.")],
    dtype: Annotated[
        str | None, typer.Option(help="Precision of the weights: fp32 or bf16; default: the checkpoint's.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload it too, to this repository, as revision stepN.")
    ] = None,
    plugin: Plugins = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint for other tools. transformers opens the folder: weights, tokenizer, model card and code, for
    trust_remote_code=True."""
    from ..checkpoints.export import check_repository, export_hf
    from ..checkpoints.export import push as upload

    if push is not None:
        check_repository(push)
    saved = _language_model(checkpoint, plugin)
    with TemporaryDirectory() as elsewhere:
        result = export_hf(saved.path, Path(elsewhere) if dry_run else directory, dtype) | {"directory": str(directory)}
    where = push and f"revision step{saved.step} of {push}"
    result |= {"pushed": upload(directory, push, saved.step) if push and not dry_run else None}
    if as_json:
        return print_json(result)
    print(
        f"{directory}: {result['n_params']:,} parameters, {result['bytes']:,} bytes, "
        f"{counted(len(result['files']), 'file')}; "
        f"AutoModelForCausalLM.from_pretrained opens it with trust_remote_code=True"
    )
    if where:
        print(f"would be {where}" if dry_run else f"pushed: {where}, {result['pushed']}")
    if dry_run:
        print("dry run: nothing was written")


def _language_model(path: Path, plugin: list[str] | None) -> Checkpoint:
    """The checkpoint at a path. Raises InputError where there is none, and for a classifier's, which reads no text."""
    saved = find_checkpoint(path, notify, plugin)
    if (saved.manifest.get("tokenizer") or {}).get("name") == IDS:
        raise InputError(f"{saved.path}: is a classifier, which reads rows of ids: give a language model's checkpoint")
    return saved
