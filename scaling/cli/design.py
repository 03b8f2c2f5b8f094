"""`scaling design`: from a question and a budget to a study file, with what its study is expected to tell."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import flop
from arch.errors import InputError, choice
from arch.tables import text_table, wrapped
from flops.hardware import DEVICES, device_of
from flops.quantity import quantity
from flops.tables import duration

from .options import AsJson, DryRun, print_json

if TYPE_CHECKING:
    from analysis.design.priors import Prior

ASKS = ("exponent", "loss", "compare")
COMPRESSED = (".gz", ".xz", ".zst", ".bz2", ".parquet", ".jsonl", ".json")
NO_BETTER = (
    "warning: none of these answers what is asked better than the naive ladder, which is what --write "
    "writes: give more budget, a lower --least-size, or ask for what less can tell"
)
Text = str | None


def design(
    arch: Annotated[list[str], typer.Option(help="An architecture; repeatable.")],
    corpus: Annotated[Text, typer.Option(help="Its text, as corpus.source of the study file; read as bytes.")] = None,
    corpus_tokens: Annotated[
        Text, typer.Option(help="Tokens of it, which no run goes beyond; default: a plain file's size.")
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
        Text, typer.Option(help="C in FLOP that is asked about; default: a tenth of one architecture's runs.")
    ] = None,
    pilot: Annotated[
        Text, typer.Option(metavar="STUDY", help="A study that ran: its surfaces instead of the laws.")
    ] = None,
    seed_noise: Annotated[Text, typer.Option(help="Standard deviation of the loss between seeds, as 0.5%.")] = None,
    context: Annotated[
        int | None, typer.Option(min=16, help="Tokens of a sequence; default: 2048 on GPUs, 256 on cores.")
    ] = None,
    least_size: Annotated[
        Text, typer.Option(help="Parameters of the smallest size, or more; default: 300k on GPUs, 20k on cores.")
    ] = None,
    studies: Annotated[int, typer.Option(min=8, help="Simulated studies a proposal.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    name: Annotated[str, typer.Option(help="Of the study that is written.")] = "designed",
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the best proposal's study file.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Propose a study that can answer what is asked within a budget, and say how well it will.

    Sizes, tokens, seeds and branches are chosen by simulating studies through the project's own fits, beside the ladder
    that one would write without a plan (equal tokens at all sizes). docs/design.md says what the numbers mean.
    """
    from pydantic import TypeAdapter, ValidationError

    from analysis.design.study_file import Setting
    from arch.registry import KNOWN

    from ..stages.design import Question
    from ..stages.design import design as answer
    from ..study.types import Name

    started = time.monotonic()
    for one in arch:
        if one not in KNOWN:
            raise InputError(f"--arch: {one!r}{choice(one, list(KNOWN))}")
    if len(set(arch)) < len(arch):
        raise InputError("--arch: gives an architecture twice")
    if ask not in ASKS:
        raise InputError(f"--ask: {ask!r}{choice(ask, list(ASKS))}")
    if ask == "compare" and len(arch) < 2:
        raise InputError("--ask compare: compares two architectures or more: give another --arch")
    given = {"--budget": budget, "--gpu-minutes": gpu_minutes, "--wall-minutes": wall_minutes}
    told = [option for option, value in given.items() if value is not None]
    if len(told) != 1:
        raise InputError(f"scaling design: give one of {', '.join(given)}, not {' and '.join(told) or 'none'}")
    if write is not None and corpus is None:
        raise InputError("--write: a study file needs its text: give --corpus")
    if write is not None and not (write.parent.is_dir() and os.access(write.parent, os.W_OK)):
        raise InputError(
            f"{write}: there is no directory {write.parent} that can be written to: make it, or give another --write"
        )
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise InputError(f"--name: {error.errors()[0]['ctx']['error']}") from None
    if write is not None and write.exists() and not dry_run:
        raise InputError(f"{write}: is there already: give another --write")
    amount = quantity(given[told[0]] or "", told[0], 1e30)
    on = device_of("cpu" if wall_minutes is not None else device)
    if gpu_minutes is not None and on.unit != "GPU":
        raise InputError(f"--gpu-minutes: {device} is no GPU: give --wall-minutes, or another --device")
    gpu, cores = on.unit == "GPU", len(os.sched_getaffinity(0))
    setting = Setting(name, arch, corpus or "stdlib:", context or (2048 if gpu else 256), gpu, 1 if gpu else cores)
    priors, noise, why = _pilot(pilot, arch) if pilot else ({}, None, "")
    question = Question(
        ask,
        amount if budget is not None else 60 * amount,
        budget is None,
        on,
        _cap(corpus, corpus_tokens),
        quantity(target, "--target", 1e30) if target else 0.0,
        _share(seed_noise) if seed_noise else noise or 0.005,
        setting,
        quantity(least_size, "--least-size", 1e12) if least_size else 3e5 if gpu else 2e4,
        1 if gpu else cores,
        budget is None and least_size is None,
        studies,
        seed,
        priors,
    )
    found = answer(question, _progress(started))
    sys.stderr.write("\n")
    found["seed_noise_source"] = "stated" if seed_noise else why if noise else "assumed"
    found["design_seconds"] = time.monotonic() - started
    best = found["proposals"][0] if found["better_than_naive"] else found["naive"]
    found["written"] = None
    text = _head(found, best) + best["text"]
    if write is not None and not dry_run:
        temporary = write.with_name(f".{write.name}.part")
        temporary.write_text(text)
        temporary.replace(write)
        found["written"] = str(write)
    if as_json:
        return print_json(found)
    print(show(found))
    if write is not None:
        print(f"written: {write}; next: scaling plan {write}" if not dry_run else f"\n{text}")


def show(found: Mapping[str, Any]) -> str:
    """The proposals and the naive ladder, and what the columns mean."""
    rows = [(str(i), row) for i, row in enumerate(found["proposals"], 1)]
    rows += [("naive", found["naive"])] if found["naive"] else []
    heads = [
        "",
        "runs",
        "FLOP",
        "time",
        "identified",
        "half of a",
        "holds",
        "N_opt known",
        "half of L",
        "right",
        "saving",
    ]
    lines = []
    for label, row in rows:
        told = row["summary"]
        right = told["right"] if found["ask"] == "exponent" else told["right_l"]
        lines.append(
            [
                label,
                f"{row['runs']:,}",
                flop(row["flops"]),
                duration(row["seconds"]),
                f"{told['identified']:.0%}",
                _three(told["half_a"], "{:.3f}"),
                f"{told['held']:.0%}",
                _three(told["factor_n"], "x {:.2f}"),
                _three(told["half_l"], "{:.2%}"),
                f"{right:.0%}",
                _saving(row),
            ]
        )
    what = {
        "exponent": "a within 0.05 and N_opt within 30% of the truth",
        "loss": "the loss at the target within 0.5% of the truth",
        "compare": "the loss at the target within 0.5% of the truth",
    }[found["ask"]]
    notes = [
        *([NO_BETTER] if not found["better_than_naive"] else []),
        *(f"{label}: {row['words']}" for label, row in rows),
        f"{found['worlds']} worlds (half of the fitted form, half of four others; seed {found['seed']}); prior: "
        f"{'; '.join(found['prior'])}; noise between seeds {found['seed_noise']:.2%} "
        f"({found['seed_noise_source']})",
        f"identified: N_opt and D_opt have intervals and no reason against believing them; half of a, of L: half of "
        f"the interval of N_opt's exponent, of the loss at {flop(found['target_flops'])} FLOP, and N_opt known: the "
        f"factor to an end of its interval there: median (10% to 90% of worlds); holds: how often the interval of a "
        f"holds the truth, of 95% asked for; right: {what}",
        *([f"note: {found['target_note']}"] if found["target_note"] else []),
        f"sizes of {found['least_size']:.3g} parameters or more (--least-size)",
        *(f"left out: {line}" for line in found["skipped"]),
        "saving: how many times its budget the naive ladder would need for the interval, in more seeds",
        f"time: on {found['device']}, modelled; rates and batches of the study file are a first guess, sweeps are not "
        f"in the budget; designed in {found['design_seconds']:.0f} s",
    ]
    if found["ask"] == "compare":
        apart = found["proposals"][0]["summary"]["tells_apart"]
        notes.insert(
            -1,
            f"1: the errors of two simulated losses at the target, of independent noise, differ by less than "
            f"{apart:.2%} in 9 of 10 pairs: a smaller difference of two architectures is not told apart",
        )
    return "\n".join([text_table(heads, lines), "", *wrapped(notes)])


def _three(values: list[float], form: str) -> str:
    low, mid, high = (form.format(v) if math.isfinite(v) and v < 1e3 else "none" for v in values)
    return f"{mid} ({low.removeprefix('x ')} to {high.removeprefix('x ')})"


def _saving(row: Mapping[str, Any]) -> str:
    value = row.get("saving")
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.1f} times" if math.isfinite(value) else "naive has no interval"


def _head(found: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    told = best["summary"]
    lines = [
        f"Written by scaling design for: {found['ask']} of {', '.join(found['archs'])}, budget {found['budget']:.4g} "
        f"{found['budget_unit']}.",
        f"Proposed: {best['words']}.",
        f"Of {told['studies']} simulated studies {told['identified']:.0%} identify N_opt and D_opt; half of the "
        f"interval of a: {told['half_a'][1]:.3f} (median); {flop(best['flops'])} FLOP exact.",
        *(
            []
            if found["better_than_naive"]
            else ["This is the naive ladder: no proposal was expected to answer better."]
        ),
    ]
    return "".join(f"# {line}\n" for line in lines)


def _progress(started: float) -> Callable[[str, float], None]:
    last: list[Any] = [0.0, ""]
    began = [started]

    def told(what: str, share: float) -> None:
        now = time.monotonic()
        if what == last[1] and now - last[0] < 1 and share < 1:
            return
        if what != last[1]:
            began[0] = now
        last[:] = [now, what]
        left = (now - began[0]) * (1 - share) / share if share > 0.05 else None
        sys.stderr.write(
            f"\r{what}: {share:4.0%}" + (f", {duration(left)} left" if left is not None else "") + " " * 12
        )
        sys.stderr.flush()

    began = [started]
    return told


def _cap(corpus: str | None, tokens: str | None) -> float:
    """Tokens of text that a run may read once."""
    if tokens is not None:
        return quantity(tokens, "--corpus-tokens", 1e15)
    if corpus is None:
        return math.inf
    path = Path(corpus)
    if not path.is_file() or path.suffix in COMPRESSED:
        raise InputError(
            f"--corpus {corpus}: how many tokens it has is not known before it is read: give --corpus-tokens"
        )
    return 0.97 * path.stat().st_size


def _share(text: str) -> float:
    """0.005 of 0.5% or 0.005."""
    value = quantity(text.removesuffix("%"), "--seed-noise", 100) / (100 if text.endswith("%") else 1)
    if not value < 0.2:
        raise InputError(f"--seed-noise: {text} is no standard deviation of a loss: give below 20%, as 0.5%")
    return value


def _pilot(study: str, archs: list[str]) -> tuple[dict[str, Prior], float | None, str]:
    """Of each architecture the surfaces that a pilot's runs allow, and the noise between its seeds, if it has any."""
    import numpy as np

    from analysis.design.priors import Prior
    from analysis.fits.envelope.of_points import seed_noise_of
    from analysis.fits.parametric.fit import fit_parametric
    from analysis.fits.parametric.many import LEAST_SQUARES

    from .fit_sources import of_studies
    from .options import request_of

    source = of_studies([request_of(study, None, None, None, True)], None, None, True)
    found = {}
    for arch in archs:
        if arch not in source.reading.groups:
            raise InputError(f"--pilot {study}: has no runs of {arch} that are done")
        fit = fit_parametric(source.reading.groups[arch], objective=LEAST_SQUARES, n_replicates=400)
        if fit.draws is None:
            raise InputError(f"--pilot {study}: {arch}: {fit.why_no_draws}")
        surfaces = fit.draws.surface
        good = np.all([np.isfinite(v) & (v > 0) for v in (surfaces.A, surfaces.B, surfaces.alpha, surfaces.beta)], 0)
        if not good.any():
            raise InputError(f"--pilot {study}: {arch}: its runs identify no surface to draw from")
        text = f"{int(good.sum())} surfaces that the runs of {study} allow"
        found[arch] = Prior(arch, "", "bytes", text, surfaces.take(good))
    noise = seed_noise_of(list(source.curve_points.values()))
    return found, None if noise is None else noise.s, f"measured in {study}"
