"""A proposal as the text of a study file. Rates and batches are first guesses, and the file says so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.design.precision import FACTOR, SMOOTHED, SWEPT_RATES
from analysis.design.prices import Prices
from analysis.design.proposal import Proposal, batch_of, decisive
from arch import amounts
from arch.errors import InputError
from arch.registry import kinds_of, pattern_fields, plugins_of
from data.vocabulary import BYTES, is_file, vocabulary
from flops.ladder import Ladder, common_shape
from flops.quantity import quantity
from flops.sizing import period_of

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
    law: str = ""  # a law file of learning rates that its runs follow
    model: Mapping[str, Any] = field(default_factory=dict)  # fields that the law's runs had, and ladders have not
    training: Mapping[str, Any] = field(default_factory=dict)  # the same of the section training
    batch: int | None = None  # tokens of a step that the law holds at
    warmup: tuple[int, int] | None = None  # fewest and most tokens that its runs had
    held_out: bool = False  # curves of held-out losses at checkpoints, else of training losses
    tokenizer: str = BYTES


def ladder_of(proposal: Proposal, archs: Sequence[str]) -> Ladder:
    """The ladder of the proposal's sizes, with ends of three digits as the file writes them. With patterns among the
    architectures all sizes have one depth, which holds their periods and is the rule's amid the sizes. Raises
    InputError."""
    low, high = (quantity(amounts.count(size), "size", 1e13) for size in (proposal.sizes[0], proposal.sizes[-1]))
    ladder = Ladder(low, high, len(proposal.sizes))
    if (period := math.lcm(*map(period_of, archs))) == 1:
        return ladder
    depth = common_shape(ladder, math.sqrt(low * high))["n_layers"]
    return replace(ladder, layers=period * max(1, round(depth / period)))


def first_rate(n_params: float, batch: int) -> float:
    """A guess of a learning rate, two digits."""
    value = RATE * (n_params / RATE_N) ** RATE_POWER * (batch / RATE_BATCH) ** (1 / 3)
    return float(f"{value:.2g}")


def text_of(proposal: Proposal, setting: Setting) -> str:
    """The study file. Raises InputError where the ladder has no such sizes."""
    ladder = ladder_of(proposal, setting.archs)
    sizes, guessed = proposal.sizes, not (proposal.sweep or setting.law)
    numbers = dict(zip(ladder.names, proposal.seed_numbers, strict=True))
    comment = "  # no size reads the text of another: what is hard there differs"
    if proposal.same_text:
        comment, numbers = "", {name: seeds[1:] for name, seeds in numbers.items() if len(seeds) > 1}
    batches = batches_of(proposal, setting.context, setting.batch)
    kinds = [kind for arch in setting.archs for kind in kinds_of(arch)]
    patterns = {arch: fields for arch in setting.archs if (fields := pattern_fields(arch))}
    source, tokenizer = _quoted(setting.source), setting.tokenizer
    tokenizer = _quoted(tokenizer) if is_file(tokenizer) else tokenizer
    layers = "" if ladder.layers is None else f", layers: {ladder.layers}"
    lines = [
        f"name: {setting.name}",
        *(f"plugins: [{plugin}]" for plugin in [", ".join(plugins_of(kinds))] if plugin),
        *(["architectures:", *(f"  {name}: {json.dumps(patterns[name])}" for name in patterns)] if patterns else []),
        "out: out",
        f"corpus: {{source: {source}, tokenizer: {tokenizer}, validation_fraction: 0.03, epochs: 1.0}}",
        "grid:",
        f"  archs: [{', '.join(setting.archs)}]",
        f"  sizes: {{from: {amounts.count(sizes[0])}, to: {amounts.count(sizes[-1])}, count: {len(sizes)}{layers}}}",
        f"  seeds: {[0] if proposal.same_text else []}",
        f"  extra_seeds: {{{', '.join(f'{name}: {seeds}' for name, seeds in numbers.items())}}}{comment}",
        "model:",
        f"  context_length: {setting.context}",
        *(f"  {key}: {json.dumps(value)}" for key, value in setting.model.items()),
        "training:",
        *(f"  {key}: {json.dumps(value)}" for key, value in setting.training.items()),
        f"  precision: {'bf16' if setting.gpu else 'fp32'}",
        "  threads: 1",
        *_checkpoints(proposal, setting),
        *_rates(proposal, ladder, setting, batches),
        "overrides:",
        f"  by_size:{'  # lr, batch and warm-up are a guess: sweep rates before you believe a law' if guessed else ''}",
    ]
    few, many = setting.warmup or (0, math.inf)
    for name, n, tokens, batch in zip(ladder.names, ladder.targets, proposal.tokens, batches, strict=True):
        rate = f"lr: {first_rate(n, batch):g}, " if guessed else ""
        warmup = min(max((WARM if guessed else SWEPT_WARM) * tokens, few), many)
        steps, warm_steps = (max(1, round(length / batch)) for length in (tokens, warmup))
        lines.append(
            f"    {name}: {{{rate}batch_tokens: {batch}, warmup_tokens: {warm_steps * batch}, "
            f"n_tokens: {steps * batch}}}"
        )
    smoothing = max(1, round(LEAST_SMOOTHED * min(proposal.tokens)))
    read = (
        "loss: validation"
        if setting.held_out
        else (f"loss: train_smoothed, smoothing_tokens: {smoothing}, smoothing_fraction: {SMOOTHED:g}, control: bigram")
    )
    lines += [
        f"evaluation: {{validation_tokens: {HELD_OUT if setting.gpu else HELD_OUT // 4}, batch_rows: 16}}",
        f"fit: {{{read}{'' if proposal.same_text else ', stopped: leave_out'}, flops: exact}}",
        f"jobs: {{parallel: {setting.parallel}}}",
    ]
    return "\n".join(lines) + "\n"


def batches_of(proposal: Proposal, context: int, of_law: int | None = None) -> list[int]:
    """The tokens of a step of each size. of_law: those at which a law of learning rates holds."""
    if of_law is not None:
        return [of_law] * len(proposal.sizes)
    return [batch_of(tokens, context) for tokens in decisive(proposal.tokens, bool(proposal.sweep))]


def _checkpoints(proposal: Proposal, setting: Setting) -> list[str]:
    """The lines of `training` on checkpoints: where held-out losses make the curves, many without a state beside
    each."""
    if not setting.held_out:
        return ["  n_checkpoints: 1"]
    return [
        f"  n_checkpoints: {CURVE_CHECKPOINTS}  # their held-out losses are the curves that are fitted",
        f"  state_every_tokens: {math.ceil(max(proposal.tokens))}",
    ]


def _rates(proposal: Proposal, ladder: Ladder, setting: Setting, batches: Sequence[int]) -> list[str]:
    """The lines of `training` on rates, and the section `sweep`."""
    if setting.law:
        return ["  lr: law", f"  lr_law: {_quoted(setting.law)}"]
    if not proposal.sweep:
        return []
    names, sizes = [ladder.names[i] for i in proposal.sweep], [ladder.targets[i] for i in proposal.sweep]
    lengths = proposal.swept(proposal.sweep[0])
    if proposal.tilt == 1.0:
        tokens = [f"{float(f'{length / sizes[0]:.3g}'):g}N" for length in lengths]
    else:
        tokens = [f"{batches[0] * max(1, round(length / batches[0]))}" for length in lengths]
    swept = [length for i in proposal.sweep for length in proposal.swept(i)]
    outside = max(max(proposal.tokens) / max(swept), min(swept) / min(proposal.tokens))
    far = max(proposal.sizes[-1] / sizes[-1], outside)  # times, beyond the sizes or the tokens of the sweep
    rates = []
    for name, n in zip(names, sizes, strict=True):
        first = float(f"{first_rate(n, batches[0]) / FACTOR ** (SWEPT_RATES // 2):.2g}")
        rates.append(f"{name}: {{first: {first:g}, factor: {FACTOR:g}, count: {SWEPT_RATES}}}")
    fields = {"vocab_size": vocabulary(setting.tokenizer), "context_length": setting.context}
    price = Prices(setting.archs, fields).in_flops()  # small sizes pay most for a large vocabulary
    share = math.ceil(100 * SHARE * proposal.sweep_cost(price) / proposal.main_cost(price)) / 100
    return [
        "  lr: law  # of the sweep below",
        *([f"  lr_law_beyond: {math.ceil(1.2 * far)}"] if far > BEYOND / 1.2 else []),
        "sweep:",
        f"  sizes: [{', '.join(names)}]",
        f"  tokens: [{', '.join(tokens)}]",
        f"  rates: {{{', '.join(rates)}}}",
        f"  share: {share:g}  # of the runs' FLOP, at the most",
    ]


def _quoted(text: str) -> str:
    if "\n" in text or '"' in text:
        raise InputError(f"{text!r} cannot be written into a study file: give a path without quotes and line ends")
    return f'"{text}"'
