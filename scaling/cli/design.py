"""`scaling design`: from a question and a budget to a study file, and how precise its answer will be."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import flop
from arch.arguments import file_to_write
from arch.errors import InputError, choice
from arch.tables import text_table, wrapped
from data.vocabulary import BYTES
from flops.hardware import DEVICES, device_of
from flops.quantity import MOST_GPUS, quantity, whole
from flops.tables import duration

from .design_pilot import Pilot, read_pilot
from .options import Architectures, AsJson, DryRun, print_json, several
from .passing import Passing

if TYPE_CHECKING:
    from flops.hardware import Device

    from ..study.rate_law import ArchLaw
    from ..study.rates import SweptAs
    from .design_file import Lease

ASKS = ("exponent", "loss", "compare")
LEASED = ("gpus", "lease_minutes")  # of --judge alone
# What --judge goes with.
JUDGED = ("judge", "plugin", "in_study", "device", *LEASED, "pilot", "seed_noise", "dry_run", "as_json")
RECORDS = (".jsonl", ".json")  # more bytes than text
NO_BETTER = (
    "warning: no proposal answers the question better than the naive ladder, and --write writes that ladder: "
    "give more budget, a lower --least-size, or another --ask"
)
Text = str | None


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(Architectures):
    """What is asked, of which architectures, and within which budget."""

    arch: Annotated[list[str] | None, typer.Option(help="An architecture; repeatable, or several by commas.")] = None
    judge: Annotated[
        Text,
        typer.Option(
            metavar="FILE", help="Judge this study file instead: are optima inside its runs, what does it cost."
        ),
    ] = None
    ask: Annotated[
        str,
        typer.Option(
            help="exponent (of N_opt), loss (at --target) or compare (which architecture has the lower loss there)."
        ),
    ] = "exponent"
    target: Annotated[
        Text, typer.Option(help="C in FLOP that the answer is for; default: a tenth of one architecture's runs.")
    ] = None
    budget: Annotated[Text, typer.Option(help="FLOP of all runs (exact), as 2e17.")] = None
    gpu_minutes: Annotated[Text, typer.Option(help="Instead of --budget: minutes of one GPU of --device.")] = None
    wall_minutes: Annotated[Text, typer.Option(help="Instead of --budget: minutes on this machine's cores.")] = None
    device: Annotated[str, typer.Option(help=f"Device that times are of: {', '.join(DEVICES)} (one core).")] = "h200"
    gpus: Annotated[str, typer.Option(help="With --judge: GPUs of a lease.")] = "1"
    lease_minutes: Annotated[str, typer.Option(help="With --judge: minutes of a lease.")] = "30"

    def check(self) -> None:
        """Raise InputError for options that no question is made of."""
        from arch.registry import KNOWN

        self.load()
        if not self.archs:
            raise InputError("scaling design: give --arch, or a file to --judge")
        for name in self.archs:
            if name not in KNOWN:
                raise InputError(f"--arch: {name!r}{choice(name, list(KNOWN))}")
        if len(set(self.archs)) < len(self.archs):
            raise InputError("--arch: gives an architecture twice")
        if self.ask not in ASKS:
            raise InputError(f"--ask: {self.ask!r}{choice(self.ask, list(ASKS))}")
        if self.ask == "compare" and len(self.archs) < 2:
            raise InputError("--ask compare: compares two architectures or more: give another --arch")

    @property
    def archs(self) -> list[str]:
        return several(self.arch)

    def lease(self) -> Lease:
        """What a study file's runs are counted into."""
        from .design_file import Lease

        device = device_of(self.device)
        if device.unit != "GPU":
            raise InputError(f"--device {self.device}: is no GPU, of which leases are")
        minutes = quantity(self.lease_minutes, "--lease-minutes", 1e6)
        return Lease(device, whole(self.gpus, "--gpus", MOST_GPUS), 60 * minutes)

    @property
    def is_timed(self) -> bool:
        return self.budget is None

    def amount(self) -> float:
        """The budget in FLOP, or in seconds where it is timed."""
        options = {"--budget": self.budget, "--gpu-minutes": self.gpu_minutes, "--wall-minutes": self.wall_minutes}
        given = {option: text for option, text in options.items() if text is not None}
        if len(given) != 1:
            raise InputError(f"scaling design: give one of {', '.join(options)}, not {' and '.join(given) or 'none'}")
        ((option, text),) = given.items()
        return quantity(text, option, 1e30) * (60 if self.is_timed else 1)

    def machine(self) -> Device:
        """What times are of."""
        device = device_of("cpu" if self.wall_minutes is not None else self.device)
        if self.gpu_minutes is not None and device.unit != "GPU":
            raise InputError(f"--gpu-minutes: {self.device} is no GPU: give --wall-minutes, or another --device")
        return device


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the runs of the study are trained on, and from which rates and sizes."""

    corpus: Annotated[Text, typer.Option(help="Text of the study, as corpus.source of its file.")] = None
    tokenizer: Annotated[
        str, typer.Option(help="bytes, cl100k_base, bpe:16384, a tokenizer.json, .., as corpus.tokenizer of its file.")
    ] = BYTES
    corpus_tokens: Annotated[
        Text,
        typer.Option(
            help="Tokens of the text, which no run exceeds; default: by its size in bytes, where known without reading."
        ),
    ] = None
    context: Annotated[
        int | None, typer.Option(min=16, help="Tokens of a sequence; default: 2048 on GPUs, 256 on cores.")
    ] = None
    least_size: Annotated[
        Text, typer.Option(help="Parameters of the smallest size, or more; default: 300k on GPUs, 20k on cores.")
    ] = None
    sweep: Annotated[
        bool, typer.Option("--sweep/--no-sweep", help="Reserve some of the budget for a sweep of learning rates.")
    ] = True
    lr_law: Annotated[
        Text, typer.Option(metavar="FILE", help="A law file of learning rates that runs follow; no sweep then.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class WorldOptions:
    """What the simulated studies are drawn from."""

    pilot: Annotated[
        Text,
        typer.Option(metavar="STUDY", help="Draw from the surfaces of this finished study."),
    ] = None
    seed_noise: Annotated[
        Text,
        typer.Option(help="Standard deviation of the loss between seeds, as 0.5%; default: the pilot's, else 0.5%."),
    ] = None
    studies: Annotated[int, typer.Option(min=8, help="Simulated studies for each proposal.")] = 40
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0

    def noise(self, pilot: Pilot | None) -> tuple[float, str]:
        """The noise between seeds, and where it is from: stated, else what the pilot shows, else assumed."""
        from analysis.design.worlds import SEED_NOISE

        if self.seed_noise:
            return _share(self.seed_noise), "stated"
        if pilot is not None and pilot.seeds is not None:
            return pilot.seeds, f"measured in {self.pilot}"
        return SEED_NOISE, "assumed"


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """What becomes of the best proposal."""

    name: Annotated[str, typer.Option(help="Name of the study that is written.")] = "designed"
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the best proposal's study file.")] = None
    dry_run: DryRun = False
    as_json: AsJson = False

    def check(self, corpus: str | None) -> None:
        """Raise InputError where the study could not be written."""
        from pydantic import TypeAdapter, ValidationError

        from ..study.types import Name

        if self.write is not None and corpus is None:
            raise InputError("--write: a study file needs its text: give --corpus")
        file_to_write(self.write, "--write")
        try:
            TypeAdapter(Name).validate_python(self.name)
        except ValidationError as error:
            raise InputError(f"--name: {error.errors()[0]['ctx']['error']}") from None
        if self.write is not None and self.write.exists() and not self.dry_run:
            raise InputError(f"{self.write}: is there already: give another --write")


def design(
    context_of: typer.Context, asked: QuestionOptions, runs: RunOptions, worlds: WorldOptions, output: ResultOptions
) -> None:
    """Propose a study that answers a question in a budget.

    Says how precise its answer will be. Sizes, tokens and seeds are chosen by simulating studies through the
    project's own fits, beside the ladder that one would write without a plan (equal tokens at all sizes).
    docs/design.md says what the numbers mean. With --judge a study file is judged, and refused where optima lie outside
    of its own runs.
    """
    from analysis.design.study_file import Setting
    from analysis.design.worlds import TEXT

    from .design_study import Question
    from .design_study import design as answer

    started = time.monotonic()
    given = given_in(context_of)
    if asked.judge is not None:
        if others := [option for option in given if option.name not in JUDGED]:
            name = "/".join([*others[0].opts, *others[0].secondary_opts])
            raise InputError(f"--judge: does not use {name}: leave one of the two out")
        return _judge(asked, worlds, output)
    if leased := [option.opts[0] for option in given if option.name in LEASED]:
        raise InputError(f"{leased[0]}: belongs to --judge: leave it out, or give a file to --judge")
    asked.check()
    amount = asked.amount()
    output.check(runs.corpus)
    device = asked.machine()
    gpu, cores = device.unit == "GPU", len(os.sched_getaffinity(0))
    laws, swept = _laws(runs.lr_law, asked.archs)
    context, used = runs.context or (2048 if gpu else 256), 1 if gpu else cores
    source = runs.corpus or "stdlib:"
    setting = Setting(output.name, asked.archs, source, context, gpu, used, held_out=gpu, tokenizer=runs.tokenizer)
    if runs.lr_law is not None:
        folder = output.write.parent if output.write is not None else Path()
        setting = replace(setting, law=os.path.relpath(runs.lr_law, folder), model=swept.model, training=swept.training)
        setting = replace(setting, batch=swept.batch, warmup=swept.warmup)
    pilot = read_pilot(worlds.pilot, asked.archs, runs.tokenizer) if worlds.pilot else None
    seed_noise, noise_source = worlds.noise(pilot)
    question = Question(
        ask=asked.ask,
        budget=amount,
        timed=asked.is_timed,
        device=device,
        cap=min(_cap(runs), _farthest(laws)),
        target=quantity(asked.target, "--target", 1e30) if asked.target else 0.0,
        seed_noise=seed_noise,
        text_noise=0.0 if gpu or pilot is not None else TEXT,  # the seeds of a pilot differ by their text too
        setting=setting,
        least_size=quantity(runs.least_size, "--least-size", 1e12) if runs.least_size else 3e5 if gpu else 2e4,
        units=used,
        lower=asked.is_timed and runs.least_size is None,
        studies=worlds.studies,
        seed=worlds.seed,
        priors=pilot.priors if pilot else {},
        sweep=runs.sweep and runs.lr_law is None,
        laws=laws,
        law_path=str(Path(runs.lr_law).resolve()) if runs.lr_law is not None else "",
    )
    with Passing(sys.stderr) as passing:
        result = answer(question, lambda what, share: passing.show(f"{what}: {share:.0%}"))
    result["seed_noise_source"] = noise_source
    result["design_seconds"] = time.monotonic() - started
    best = result["proposals"][0] if result["better_than_naive"] else result["naive"]
    result["written"] = None
    result["command"] = command_of(context_of)
    text = head_of(result, best) + best["text"]
    if output.write is not None and not output.dry_run:
        temporary = output.write.with_name(f".{output.write.name}.part")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(output.write)
        result["written"] = str(output.write)
    if output.as_json:
        return print_json(result)
    print(show(result))
    if output.write is None:
        corpus = "" if runs.corpus else "--corpus TEXT and "
        print(f"next: the same command with {corpus}--write FILE writes the study file of the best proposal")
    else:
        print(f"written: {output.write}; next: scaling plan {output.write}" if not output.dry_run else f"\n{text}")


def _judge(asked: QuestionOptions, worlds: WorldOptions, output: ResultOptions) -> None:
    """Judge a study file. Raises InputError where an optimum lies outside of its runs, after the tables."""
    from .design_file import judge, show_judged

    asked.load()
    assert asked.judge is not None
    judged = judge(asked.judge, worlds.pilot, worlds.noise, asked.lease())
    if output.as_json:
        print_json(judged.to_dict())
    else:
        print(show_judged(judged))
    judged.check()


def _cap(runs: RunOptions) -> float:
    """Tokens of text that a run may read once."""
    if runs.corpus_tokens is not None:
        return quantity(runs.corpus_tokens, "--corpus-tokens", 1e15)
    if runs.corpus is None:
        return math.inf
    n_bytes = _bytes_of(runs.corpus)
    if n_bytes == 0:
        raise InputError(f"--corpus {runs.corpus}: is empty: give the text that runs shall read")
    if n_bytes is None or runs.tokenizer != BYTES:
        gone = "" if Path(runs.corpus).exists() or ":" in runs.corpus else "is not here, and "
        when = "before it is read" if runs.tokenizer == BYTES else f"before {runs.tokenizer} has encoded it"
        raise InputError(
            f"--corpus {runs.corpus}: {gone}how many tokens it has is not known {when}: give --corpus-tokens"
        )
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
    from ..study.rates import SweptAs, read_law, swept_as

    if path is None:
        return (), SweptAs()

    law = read_law(Path(path)).law
    for arch in archs:
        if arch not in law.laws:
            raise InputError(f"--lr-law {path}: no law of {arch} (it has {', '.join(law.laws)}): sweep it")
    swept = swept_as(law, archs)
    if swept.decays:
        raise InputError(f"--lr-law {path}: its runs decayed, and those of a design keep their rate: leave it out")
    return tuple(law.laws[arch] for arch in archs), swept


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


def show(result: Mapping[str, Any]) -> str:
    """What the columns mean, the proposals and the naive ladder, and what the best of them is expected to answer."""
    rows = [(str(i), row) for i, row in enumerate(result["proposals"], 1)]
    rows += [("naive", result["naive"])] if result["naive"] else []
    heads = [
        "",
        "runs",
        "sweep",
        "FLOP",
        "time",
        "half of a",
        "holds",
        "N_opt known",
        "half of L",
        "right",
    ]
    lines = []
    for label, row in rows:
        summary = row["summary"]
        right = summary["right"] if result["ask"] == "exponent" else summary["right_l"]
        lines.append(
            [
                label,
                f"{row['runs']:,}",
                _of_sweep(row),
                flop(row["flops"]),
                duration(row["seconds"]),
                _three(summary["half_a"], "{:.3f}"),
                f"{summary['held']:.0%}",
                _three(summary["factor_n"], "x {:.2f}"),
                _three(summary["half_l"], "{:.2%}"),
                f"{right:.0%}",
            ]
        )
    what = {
        "exponent": "a within 0.05 and N_opt within 30% of the truth",
        "loss": "the loss at the target within 0.5% of the truth",
        "compare": "the loss at the target within 0.5% of the truth",
    }[result["ask"]]
    notes = [
        f"{result['worlds']} worlds (half of the fitted form, half of four others; seed {result['seed']}); prior: "
        f"{'; '.join(result['prior'])}",
        f"noise between seeds: {result['seed_noise']:.2%} of the loss ({result['seed_noise_source']}); sizes fall "
        f"faster or slower than the surface by {result['bend']:.1%} an e-fold of tokens (assumed)"
        + (", and their points by their text" if result["text_noise"] else ""),
        f"half of a, of L: half of the interval of N_opt's exponent, of the loss at {flop(result['target_flops'])} "
        f"FLOP, and N_opt known: the factor to an end of its interval there: median (10% to 90% of worlds); holds: how "
        f"often the interval of a contains the truth (nominal level: 95%); right: {what}",
        f"sizes of {result['least_size']:.3g} parameters or more (--least-size)",
        *(f"left out: {line}" for line in result["skipped"]),
        f"{_of_rates(result)}; time: on {result['device']}, modelled; designed in {result['design_seconds']:.0f} s",
    ]
    if result["ask"] == "compare":
        detectable = result["proposals"][0]["summary"]["tells_apart"]
        notes.insert(
            -1,
            f"1: the errors of two simulated losses at the target, of independent noise, differ by less than "
            f"{detectable:.2%} in 9 of 10 pairs: a smaller difference of two architectures cannot be detected",
        )
    answers = [f"{label}: {row['words']}" for label, row in rows] + [_answer(result)]
    return "\n".join([*wrapped(notes), "", text_table(heads, lines), "", *wrapped(answers)])


def _answer(result: Mapping[str, Any]) -> str:
    """A sentence on the best proposal."""
    if not result["better_than_naive"]:
        return NO_BETTER
    summary = result["proposals"][0]["summary"]
    if result["ask"] == "exponent":
        what, half, right = "the exponent of N_opt", _three(summary["half_a"], "{:.3f}"), summary["right"]
    else:
        what = f"the loss at {flop(result['target_flops'])} FLOP"
        half, right = _three(summary["half_l"], "{:.2%}"), summary["right_l"]
    known = "will most likely not know" if half.startswith("none") else "is expected to know"
    within = "" if half.startswith("none") else f" to ±{half.partition(' ')[0]} (median)"
    return f"proposal 1 {known} {what}{within}; it is right in {right:.0%} of its simulated studies"


def _of_rates(result: Mapping[str, Any]) -> str:
    if result["rates"] == "law":
        return "rates follow the law file; what it does not know of them is in the simulation"
    if result["rates"] == "sweep":
        return (
            "sweep: runs that find the learning rates first, within the budget; what their law leaves of wrong rates "
            "is in the simulation, and the naive ladder guesses its rates"
        )
    return "rates are a first guess: sweeps are not in the budget"


def _three(values: list[float], form: str) -> str:
    low, mid, high = (form.format(v) if math.isfinite(v) and v < 1e3 else "none" for v in values)
    return f"{mid} ({low.removeprefix('x ')} to {high.removeprefix('x ')})"


def _of_sweep(row: Mapping[str, Any]) -> str:
    swept = row["sweep"]
    return f"{swept['runs']} of them, {swept['flops'] / row['flops']:.0%} of FLOP" if swept else "-"


def given_in(context: typer.Context) -> list[Any]:
    """The options that the command line gives, as click has them."""
    sources = {option: context.get_parameter_source(option.name or "") for option in context.command.params}
    return [option for option, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def command_of(context: typer.Context) -> str:
    """The command as it was given, without where its study file and its output go."""
    words = ["scaling", "design"]
    for option in given_in(context):
        value = context.params.get(option.name or "")
        if option.name in ("write", "dry_run", "as_json"):
            continue
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            words += [option.opts[0], str(item)]
    return shlex.join(words)


def head_of(result: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    summary = best["summary"]
    lines = [
        f"{result['command']}",
        f"Written by this, for: {result['ask']} of {', '.join(result['archs'])}, budget {result['budget']:.4g} "
        f"{result['budget_unit']}.",
        f"Proposed: {best['words']}.",
        f"In {summary['studies']} simulated studies half of the interval of a is {summary['half_a'][1]:.3f} (median); "
        f"{flop(best['flops'])} FLOP exact.",
        *(
            []
            if result["better_than_naive"]
            else ["This is the naive ladder: no proposal was expected to answer better."]
        ),
    ]
    return "".join(f"# {line}\n" for line in lines)
