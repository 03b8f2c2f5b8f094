"""A proposal as the text of a study file. Rates and batches are first guesses, and the file says so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.design.expected import FACTOR
from analysis.design.layout import SMOOTHED
from analysis.design.proposal import DECAY, SWEPT_RATES, Price, Proposal, batch_of, decisive
from arch import amounts
from arch.errors import InputError
from flops.ladder import Ladder
from flops.quantity import quantity

# lr = RATE (N / RATE_N)^-0.37 (batch / 65,536)^(1/3): through the rates that the trial study guessed (0.4 M to 31 M
# parameters, batches of 65,536), and within a fifth of those tried for the quickstart (6 k and 55 k, batches of 1,024).
RATE, RATE_N, RATE_POWER, RATE_BATCH = 4e-3, 4e5, -0.37, 65_536
HELD_OUT = 262_144  # tokens of the held-out loss on GPUs, a fourth on cores: the same ones for all runs
CURVE_CHECKPOINTS = 18  # of a run: twelve in the last decade of its tokens
WARM, SWEPT_WARM = 0.1, 0.02  # of the shortest run's tokens: warm-up; where shorter ones are swept
BEYOND = 10.0  # the default of training.lr_law_beyond
SHARE = 1.2  # times the sweep's FLOP over the runs', that it may cost
LEAST_SMOOTHED = 0.01  # of its tokens: where the mean over SMOOTHED of the tokens seen is over fewer, it is over these


@dataclass(frozen=True)
class Setting:
    """What a study file says beside the proposal."""

    name: str
    archs: Sequence[str]
    source: str
    context: int
    gpu: bool
    parallel: int = 1
    threads: int = 1
    law: str = ""  # a law file of learning rates that its runs follow
    model: Mapping[str, Any] = field(default_factory=dict)  # fields that the law's runs had, and ladders have not
    training: Mapping[str, Any] = field(default_factory=dict)  # the same of the section training
    batch: int | None = None  # tokens of a step that the law holds at
    warmup: tuple[int, int] | None = None  # fewest and most tokens that its runs had
    held_out: bool = False  # curves of held-out losses at checkpoints, else of training losses


def ladder_of(proposal: Proposal) -> Ladder:
    """The ladder of the proposal's sizes, with ends of three digits as the file writes them. Raises InputError."""
    low, high = (quantity(amounts.count(size), "size", 1e13) for size in (proposal.sizes[0], proposal.sizes[-1]))
    return Ladder(low, high, len(proposal.sizes))


def first_rate(n_params: float, batch: int) -> float:
    """A guess of a learning rate, two digits."""
    value = RATE * (n_params / RATE_N) ** RATE_POWER * (batch / RATE_BATCH) ** (1 / 3)
    return float(f"{value:.2g}")


def text_of(proposal: Proposal, setting: Setting) -> str:
    """The study file. Raises InputError where the ladder has no such sizes."""
    ladder = ladder_of(proposal)
    numbers = dict(zip(ladder.names, map(list, proposal.seed_numbers), strict=True))
    if proposal.same_text:
        first, numbers = [0], {name: seeds[1:] for name, seeds in numbers.items() if len(seeds) > 1}
    else:
        first = []  # each size its own
    sizes = proposal.sizes
    lines = [
        f"name: {setting.name}",
        "out: out",
        f"corpus: {{source: {_quoted(setting.source)}, tokenizer: bytes, validation_fraction: 0.03, epochs: 1.0}}",
        "grid:",
        f"  archs: [{', '.join(setting.archs)}]",
        f"  sizes: {{from: {amounts.count(sizes[0])}, to: {amounts.count(sizes[-1])}, count: {len(sizes)}}}",
        f"  seeds: {first}",
    ]
    if numbers:
        comment = "" if proposal.same_text else "  # no size reads the text of another: what is hard there differs"
        lines.append(f"  extra_seeds: {{{', '.join(f'{name}: {seeds}' for name, seeds in numbers.items())}}}{comment}")
    fields = [f"  {key}: {json.dumps(value)}" for key, value in setting.model.items()]
    lines += ["model:", f"  context_length: {setting.context}", *fields, "training:"]
    lines += [f"  {key}: {json.dumps(value)}" for key, value in setting.training.items()]
    if not proposal.curves:
        lines += ["  schedule: wsd  # one trunk a seed; each branch is decayed from it", f"  decay_fraction: {DECAY:g}"]
    batches = batches_of(proposal, setting.context, setting.batch)
    lines += [
        f"  precision: {'bf16' if setting.gpu else 'fp32'}",
        f"  threads: {setting.threads}",
        *_checkpoints(proposal, setting),
        *_rates(proposal, ladder, setting, batches),
        "overrides:",
        "  by_size:"
        + (
            ""
            if proposal.sweep or setting.law
            else "  # lr, batch and warm-up are a first guess: sweep rates before you believe a law"
        ),
    ]
    warm = SWEPT_WARM if proposal.sweep or setting.law else WARM
    for name, n, tokens, batch in zip(ladder.names, ladder.targets, proposal.tokens, batches, strict=True):
        few, many = setting.warmup or (0, math.inf)
        steps = max(1, round(min(max(warm * tokens[0], few), many) / batch))
        rounded = list(dict.fromkeys(batch * max(1, round(token / batch)) for token in tokens))
        length = f"n_tokens: {rounded[0]}" if proposal.curves else f"branches: {rounded}"
        rate = "" if proposal.sweep or setting.law else f"lr: {first_rate(n, batch):g}, "
        lines.append(f"    {name}: {{{rate}batch_tokens: {batch}, warmup_tokens: {steps * batch}, {length}}}")
    smoothing = max(1, round(LEAST_SMOOTHED * min(token[0] for token in proposal.tokens)))
    curves = f"loss: train_smoothed, smoothing_tokens: {smoothing}, smoothing_fraction: {SMOOTHED:g}, control: bigram"
    if setting.held_out:
        curves = "loss: validation"
    read = curves if proposal.curves else "loss: validation, points: decayed"
    read += ", stopped: leave_out" if proposal.leaves_out else ""
    lines += [
        f"evaluation: {{validation_tokens: {HELD_OUT if setting.gpu else HELD_OUT // 4}, batch_rows: 16}}",
        f"fit: {{{read}, flops: exact}}",
        f"jobs: {{parallel: {setting.parallel}}}",
    ]
    return "\n".join(lines) + "\n"


def batches_of(proposal: Proposal, context: int, of_law: int | None = None) -> list[int]:
    """The tokens of a step of each size. of_law: those at which a law of learning rates holds."""
    if of_law is not None:
        return [of_law] * len(proposal.sizes)
    shortest = decisive([row[0] for row in proposal.tokens], bool(proposal.sweep))
    return [batch_of(tokens, context) for tokens in shortest]


def _checkpoints(proposal: Proposal, setting: Setting) -> list[str]:
    """The lines of `training` on checkpoints: where held-out losses make the curves, many without a state beside
    each."""
    if not (proposal.curves and setting.held_out):
        return ["  n_checkpoints: 1"]
    last = max(row[-1] for row in proposal.tokens)
    return [
        f"  n_checkpoints: {CURVE_CHECKPOINTS}  # their held-out losses are the curves that are fitted",
        f"  state_every_tokens: {math.ceil(last)}",
    ]


def _rates(proposal: Proposal, ladder: Ladder, setting: Setting, batches: Sequence[int]) -> list[str]:
    """The lines of `training` on rates, and the section `sweep`."""
    if setting.law:
        return ["  lr: law", f"  lr_law: {_quoted(setting.law)}"]
    if not proposal.sweep:
        return []
    names = [ladder.names[i] for i in proposal.sweep]
    sizes = [ladder.targets[i] for i in proposal.sweep]
    lengths = [proposal.swept(i) for i in proposal.sweep]
    if proposal.tilt == 1.0:
        tokens = [f"{float(f'{length / sizes[0]:.3g}'):g}N" for length in lengths[0]]
    else:
        tokens = [f"{batches[0] * max(1, round(length / batches[0]))}" for length in lengths[0]]
    far = max(proposal.sizes[-1] / sizes[-1], _furthest(proposal, lengths))
    rates = []
    for name, n, batch in zip(names, sizes, batches, strict=False):
        first = float(f"{first_rate(n, batch) / FACTOR ** (SWEPT_RATES // 2):.2g}")
        rates.append(f"{name}: {{first: {first:g}, factor: {FACTOR:g}, count: {SWEPT_RATES}}}")
    return [
        "  lr: law  # of the sweep below",
        *([f"  lr_law_beyond: {math.ceil(1.2 * far)}"] if far > BEYOND / 1.2 else []),
        "sweep:",
        f"  sizes: [{', '.join(names)}]",
        f"  tokens: [{', '.join(tokens)}]",
        f"  rates: {{{', '.join(rates)}}}",
        f"  share: {_share(proposal):g}  # of the runs' FLOP, at the most",
    ]


def _share(proposal: Proposal) -> float:
    about = Price(lambda sizes: sizes)  # FLOP a token are close to a multiple of them
    return math.ceil(100 * SHARE * proposal.sweep_cost(about) / proposal.main_cost(about)) / 100


def _furthest(proposal: Proposal, lengths: Sequence[tuple[float, ...]]) -> float:
    """The factor by which the tokens of a size's rate lie outside of the sweep's."""
    least, most = min(map(min, lengths)), max(map(max, lengths))
    horizons = [math.sqrt(row[0] * row[-1]) for row in proposal.tokens]
    return max(max(horizons) / most, least / min(horizons))


def _quoted(source: str) -> str:
    if "\n" in source or '"' in source:
        raise InputError(
            f"--corpus: {source!r} cannot be written into a study file: give a path without quotes and line ends"
        )
    return f'"{source}"'


def resized(proposal: Proposal, factor: float, cap: float) -> Proposal:
    """The proposal with sizes and tokens times sqrt(factor), so that it costs about `factor` times as much; no run
    beyond `cap`."""
    times = math.sqrt(factor)
    tokens = tuple(tuple(dict.fromkeys(min(d * times, cap) for d in row)) for row in proposal.tokens)
    sizes = tuple(n * times for n in proposal.sizes)
    return replace(proposal, sizes=sizes, tokens=tokens)
