"""`scaling design`: from a question and a budget to a study file, and how precise its answer will be."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arch.arguments import file_to_write
from arch.errors import InputError, choice
from flops.hardware import DEVICES, device_of
from flops.quantity import quantity
from flops.tables import duration

from ..stages.passing import Passing
from .design_pilot import read_pilot
from .design_view import command_of, head_of, show
from .options import AsJson, DryRun, print_json

if TYPE_CHECKING:
    from ..study.law_recipe import SweptAs
    from ..study.rate_law import ArchLaw

ASKS = ("exponent", "loss", "compare")
RECORDS = (".jsonl", ".json")  # more bytes than text
Text = str | None


def design(
    context_of: typer.Context,
    arch: Annotated[list[str], typer.Option(help="An architecture; repeatable.")],
    corpus: Annotated[Text, typer.Option(help="Its text, as corpus.source of the study file; read as bytes.")] = None,
    corpus_tokens: Annotated[
        Text,
        typer.Option(
            help="Tokens of it, which no run goes beyond; default: by its size, where that is known without reading it."
        ),
    ] = None,
    budget: Annotated[Text, typer.Option(help="FLOP of all runs (exact), as 2e17.")] = None,
    gpu_minutes: Annotated[Text, typer.Option(help="Or minutes of one GPU of --device.")] = None,
    wall_minutes: Annotated[Text, typer.Option(help="Or minutes on the cores of this machine.")] = None,
    device: Annotated[str, typer.Option(help=f"For times: one of {', '.join(DEVICES)} (one core).")] = "h200",
    ask: Annotated[
        str,
        typer.Option(
            help="exponent (of N_opt), loss (at --target) or compare (which architecture has the lower one there)."
        ),
    ] = "exponent",
    target: Annotated[
        Text, typer.Option(help="C in FLOP that the answer is for; default: a tenth of one architecture's runs.")
    ] = None,
    pilot: Annotated[
        Text, typer.Option(metavar="STUDY", help="A study that ran: its surfaces instead of the laws.")
    ] = None,
    seed_noise: Annotated[Text, typer.Option(help="Standard deviation of the loss between seeds, as 0.5%.")] = None,
    text_noise: Annotated[
        Text,
        typer.Option(
            metavar="NATS",
            help="Standard deviation of the mean training loss of n tokens, times the root of n; default: 5.4.",
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=16, help="Tokens of a sequence; default: 2048 on GPUs, 256 on cores.")
    ] = None,
    least_size: Annotated[
        Text, typer.Option(help="Parameters of the smallest size, or more; default: 300k on GPUs, 20k on cores.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep/--no-sweep", help="Reserve some of the budget for a sweep of learning rates.")
    ] = True,
    lr_law: Annotated[
        Text, typer.Option(metavar="FILE", help="A law file of learning rates that runs follow; no sweep then.")
    ] = None,
    studies: Annotated[int, typer.Option(min=8, help="Simulated studies a proposal.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    name: Annotated[str, typer.Option(help="Of the study that is written.")] = "designed",
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the best proposal's study file.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Propose a study that answers a question within a budget, and say how precise its answer will be.

    Sizes, tokens, seeds and branches are chosen by simulating studies through the project's own fits, beside the ladder
    that one would write without a plan (equal tokens at all sizes). docs/design.md says what the numbers mean.
    """
    from pydantic import TypeAdapter, ValidationError

    from analysis.design.cores import on_cores
    from analysis.design.layout import TEXT
    from analysis.design.study_file import Setting
    from analysis.design.worlds import BEND, SEED_NOISE
    from arch.registry import KNOWN

    from ..stages.design import Question
    from ..stages.design import design as answer
    from ..study.types import Name

    started = time.monotonic()
    for arch_name in arch:
        if arch_name not in KNOWN:
            raise InputError(f"--arch: {arch_name!r}{choice(arch_name, list(KNOWN))}")
    if len(set(arch)) < len(arch):
        raise InputError("--arch: gives an architecture twice")
    if ask not in ASKS:
        raise InputError(f"--ask: {ask!r}{choice(ask, list(ASKS))}")
    if ask == "compare" and len(arch) < 2:
        raise InputError("--ask compare: compares two architectures or more: give another --arch")
    given = {"--budget": budget, "--gpu-minutes": gpu_minutes, "--wall-minutes": wall_minutes}
    budgets = [option for option, value in given.items() if value is not None]
    if len(budgets) != 1:
        raise InputError(f"scaling design: give one of {', '.join(given)}, not {' and '.join(budgets) or 'none'}")
    if write is not None and corpus is None:
        raise InputError("--write: a study file needs its text: give --corpus")
    file_to_write(write, "--write")
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise InputError(f"--name: {error.errors()[0]['ctx']['error']}") from None
    if write is not None and write.exists() and not dry_run:
        raise InputError(f"{write}: is there already: give another --write")
    amount = quantity(given[budgets[0]] or "", budgets[0], 1e30)
    on = device_of("cpu" if wall_minutes is not None else device)
    if gpu_minutes is not None and on.unit != "GPU":
        raise InputError(f"--gpu-minutes: {device} is no GPU: give --wall-minutes, or another --device")
    gpu, cores = on.unit == "GPU", len(os.sched_getaffinity(0))
    laws, swept = _laws(lr_law, arch)
    setting = Setting(name, arch, corpus or "stdlib:", context or (2048 if gpu else 256), gpu, 1 if gpu else cores)
    setting = replace(setting, held_out=gpu)
    if lr_law is not None:
        folder = write.parent if write is not None else Path()
        setting = replace(setting, law=os.path.relpath(lr_law, folder), model=swept.model, training=swept.training)
        setting = replace(setting, batch=swept.batch, warmup=swept.warmup)
    pilot_study = read_pilot(pilot, arch) if pilot else None
    noises: dict[str, tuple[float | None, float | None, float]] = {
        "seed_noise": (
            _share(seed_noise) if seed_noise else None,
            pilot_study.seeds if pilot_study else None,
            SEED_NOISE,
        ),
        "text_noise": (
            quantity(text_noise, "--text-noise", 100) if text_noise else None,
            pilot_study.text if pilot_study and not setting.held_out else None,
            0.0 if setting.held_out else TEXT,  # of curves: held-out losses are all of one text
        ),
        "bend": (None, pilot_study.bend if pilot_study else None, BEND),
    }
    noise = {name: next(value for value in values if value is not None) for name, values in noises.items()}
    question = Question(
        ask,
        amount if budget is not None else 60 * amount,
        budget is None,
        on,
        min(_cap(corpus, corpus_tokens), _farthest(laws)),
        quantity(target, "--target", 1e30) if target else 0.0,
        noise["seed_noise"],
        noise["text_noise"],
        noise["bend"],
        setting,
        quantity(least_size, "--least-size", 1e12) if least_size else 3e5 if gpu else 2e4,
        1 if gpu else cores,
        budget is None and least_size is None,
        studies,
        seed,
        pilot_study.priors if pilot_study else {},
        sweep and lr_law is None,
        laws,
        str(Path(lr_law).resolve()) if lr_law is not None else "",
        curves=None if swept.decays is None else not swept.decays,
    )
    with Passing(sys.stderr) as passing, on_cores(cores) as each:
        result = answer(question, partial(_tell, passing, _Step(started)), each)
    for name, (stated, measured_value, _) in noises.items():
        measured = pilot_study.basis if pilot_study and measured_value is not None else "assumed"
        result[f"{name}_source"] = "stated" if stated is not None else measured
    result["design_seconds"] = time.monotonic() - started
    best = result["proposals"][0] if result["better_than_naive"] else result["naive"]
    result["written"] = None
    result["command"] = command_of(context_of)
    text = head_of(result, best) + best["text"]
    if write is not None and not dry_run:
        temporary = write.with_name(f".{write.name}.part")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(write)
        result["written"] = str(write)
    if as_json:
        return print_json(result)
    print(show(result))
    if write is not None:
        print(f"written: {write}; next: scaling plan {write}" if not dry_run else f"\n{text}")


@dataclass
class _Step:
    """What is being done, and since when."""

    began: float
    what: str = ""


def _tell(passing: Passing, step: _Step, what: str, share: float) -> None:
    now = time.monotonic()
    if what != step.what:
        step.began, step.what = now, what
    left = (now - step.began) * (1 - share) / share if share > 0.05 else None
    passing.tell(f"{what}: {share:.0%}" + (f", {duration(left)} left" if left is not None else ""))


def _cap(corpus: str | None, tokens: str | None) -> float:
    """Tokens of text that a run may read once."""
    if tokens is not None:
        return quantity(tokens, "--corpus-tokens", 1e15)
    if corpus is None:
        return math.inf
    n_bytes = _bytes_of(corpus)
    if n_bytes is None:
        gone = "" if Path(corpus).exists() or ":" in corpus else "is not here, and "
        raise InputError(
            f"--corpus {corpus}: {gone}how many tokens it has is not known before it is read: give --corpus-tokens"
        )
    if n_bytes == 0:
        raise InputError(f"--corpus {corpus}: is empty: give the text that runs shall read")
    return 0.97 * n_bytes


def _bytes_of(corpus: str) -> int | None:
    """Bytes of the text, where they are known without reading it: not of compressed files, of records, and of what is
    elsewhere."""
    from data.sources.schemes import find

    if Path(corpus).suffix in RECORDS:
        return None
    try:
        sizes = find(corpus).sizes()
    except InputError:
        if Path(corpus).exists():
            raise
        return None  # it may be where the study is to run
    return None if sizes is None else sum(sizes)


def _laws(path: str | None, archs: list[str]) -> tuple[tuple[ArchLaw, ...], SweptAs]:
    """The laws of the architectures in a law file, and what its runs were trained with."""
    from ..study.law_file import read_law
    from ..study.law_recipe import SweptAs, swept_as

    if path is None:
        return (), SweptAs()

    law = read_law(Path(path)).law
    for arch in archs:
        if arch not in law.laws:
            raise InputError(f"--lr-law {path}: no law of {arch} (it has {', '.join(law.laws)}): sweep it")
    return tuple(law.laws[arch] for arch in archs), swept_as(law, archs)


def _farthest(laws: tuple[ArchLaw, ...]) -> float:
    """Tokens of a run beyond which a law of rates is not followed."""
    from ..study.training import Training

    beyond = Training.model_fields["lr_law_beyond"].default
    return min((beyond * law.ranges["n_tokens"][1] for law in laws), default=math.inf)


def _share(text: str) -> float:
    """0.005 of 0.5% or 0.005."""
    value = quantity(text.removesuffix("%"), "--seed-noise", 100) / (100 if text.endswith("%") else 1)
    if not value < 0.2:
        raise InputError(f"--seed-noise: {text} is no standard deviation of a loss: give a share below 20%, as 0.5%")
    return value
