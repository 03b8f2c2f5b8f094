"""A proposal as the text of a study file. Rates and batches are first guesses, and the file says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.design.prices import batch_of
from analysis.design.proposal import DECAY, Proposal, short
from arch.errors import InputError
from flops.ladder import Ladder
from flops.quantity import quantity

# lr = RATE (N / RATE_N)^-0.37 (batch / 65,536)^(1/3): through the rates that the trial study guessed (0.4 M to 31 M
# parameters, batches of 65,536), and within a fifth of those tried for the quickstart (6 k and 55 k, batches of 1,024).
RATE, RATE_N, RATE_POWER, RATE_BATCH = 4e-3, 4e5, -0.37, 65_536
HELD_OUT = 262_144  # tokens of the held-out loss on GPUs, a fourth on cores: the same ones for all runs
WARM = 0.1  # of the shortest run's tokens: warm-up
SMOOTHED = 0.1  # of them, at the most: the window that smooths a curve


@dataclass(frozen=True)
class Setting:
    """What a study file says beside its proposal."""

    name: str
    archs: Sequence[str]
    source: str
    context: int
    gpu: bool
    parallel: int = 1
    threads: int = 1


def ladder_of(proposal: Proposal) -> Ladder:
    """Its sizes, with ends of three digits as the file writes them. Raises InputError."""
    low, high = (quantity(short(one), "size", 1e13) for one in (proposal.sizes[0], proposal.sizes[-1]))
    return Ladder(low, high, len(proposal.sizes))


def first_rate(n_params: float, batch: int) -> float:
    """A guess of a learning rate, two digits."""
    value = RATE * (n_params / RATE_N) ** RATE_POWER * (batch / RATE_BATCH) ** (1 / 3)
    return float(f"{value:.2g}")


def text_of(proposal: Proposal, setting: Setting, head: Sequence[str] = ()) -> str:
    """The study file. head: lines of its first comment. Raises InputError where the ladder has no such sizes."""
    ladder = ladder_of(proposal)
    several = {
        name: list(range(1, seeds)) for name, seeds in zip(ladder.names, proposal.seeds, strict=True) if seeds > 1
    }
    lines = [f"# {line}" for line in head]
    lines += [
        f"name: {setting.name}",
        "out: out",
        f"corpus: {{source: {_quoted(setting.source)}, tokenizer: bytes, validation_fraction: 0.03, epochs: 1.0}}",
        "grid:",
        f"  archs: [{', '.join(setting.archs)}]",
        f"  sizes: {{from: {short(proposal.sizes[0])}, to: {short(proposal.sizes[-1])}, count: {len(proposal.sizes)}}}",
        "  seeds: [0]",
    ]
    if several:
        lines.append(f"  extra_seeds: {{{', '.join(f'{name}: {seeds}' for name, seeds in several.items())}}}")
    lines += ["model:", f"  context_length: {setting.context}", "training:"]
    if not proposal.curves:
        lines += ["  schedule: wsd  # one trunk a seed; each branch is decayed from it", f"  decay_fraction: {DECAY:g}"]
    lines += [
        f"  precision: {'bf16' if setting.gpu else 'fp32'}",
        f"  threads: {setting.threads}",
        "  n_checkpoints: 1",
        "overrides:",
        "  by_size:  # lr, batch and warm-up are a first guess: sweep rates at two sizes before you believe a law",
    ]
    for name, n, tokens in zip(ladder.names, ladder.targets, proposal.tokens, strict=True):
        batch = batch_of(tokens[0], setting.context)
        steps = max(1, round(WARM * tokens[0] / batch))
        rounded = list(dict.fromkeys(batch * max(1, round(one / batch)) for one in tokens))
        length = f"n_tokens: {rounded[0]}" if proposal.curves else f"branches: {rounded}"
        rate = f"lr: {first_rate(n, batch):g}, batch_tokens: {batch}, warmup_tokens: {steps * batch}"
        lines.append(f"    {name}: {{{rate}, {length}}}")
    smoothing = min(
        max(batch_of(one[0], setting.context) for one in proposal.tokens) * 30,
        max(1, round(SMOOTHED * min(one[0] for one in proposal.tokens))),
    )
    curves = f"loss: train_smoothed, smoothing_tokens: {smoothing}"
    read = curves if proposal.curves else "loss: validation, points: decayed"
    lines += [
        f"evaluation: {{validation_tokens: {HELD_OUT if setting.gpu else HELD_OUT // 4}, batch_rows: 16}}",
        f"fit: {{{read}, flops: exact}}",
        f"jobs: {{parallel: {setting.parallel}}}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(source: str) -> str:
    if "\n" in source or '"' in source:
        raise InputError(f"--corpus: {source!r} cannot be written into a study file")
    return f'"{source}"'


def resized(proposal: Proposal, factor: float, cap: float) -> Proposal:
    """Sizes and tokens times sqrt(factor), so that it costs about `factor` times as much; no run beyond `cap`."""
    times = math.sqrt(factor)
    tokens = tuple(tuple(dict.fromkeys(min(d * times, cap) for d in row)) for row in proposal.tokens)
    sizes = tuple(n * times for n in proposal.sizes)
    return Proposal(sizes, tokens, proposal.seeds, proposal.tilt, proposal.curves, proposal.capped)
