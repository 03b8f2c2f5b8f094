"""How long a training step takes: by its FLOP at a share of the peak, and by what it costs beside them.

Small models are bound by the host. On a GPU it starts every kernel, so no step is shorter than that takes, however few
its FLOP are; on a CPU core each step, layer and token costs time beside its matrix products. Imports no torch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from arch.config import ModelConfig

from .conventions import train_flops_per_token
from .hardware import Device
from .registry import ENTRIES, entry_of

MFU = 0.4  # of a GPU's peak, where nothing else is known

# Times.host_ms: least squares over the fastest step at each number of layers of four architectures at 0.4 to 31 M
# parameters (2, 4, 8, 10 layers; 65,536 tokens; LLaMA without 10, which its kernels bound), in the trainer on one H200,
# torch 2.11, eager: within 15% of each.
HOST_SOURCE = "the host's time to start the kernels, measured on one H200, torch 2.11"

# Times.core: least squares in the logarithm over steps of the trainer's engine on one core of an AMD EPYC, torch 2.13
# (16 to 256 wide, 2 to 8 layers, 1,024 to 8,192 tokens) and over the 28 runs of a quickstart there: within a factor of
# 1.35 of each.
CORE_SOURCE = "steps measured on one core of an AMD EPYC, met within a factor of 1.35"
WIDEST = 256
CORE_BEYOND = f"steps measured on one core of an AMD EPYC at widths up to {WIDEST}, far beyond which this is"
UNMEASURED = "; its architecture was not measured, the slowest of those measured stands for it"
START_S = {"GPU": 20.0, "core": 3.0}  # from the start of a process to its first step: 15 to 25 s and 2.5 to 3.6 s seen


@dataclass(frozen=True)
class Pace:
    """Seconds of a step, and in words what they are made of."""

    step_seconds: float
    basis: str
    host_bound: bool


def pace(
    cfg: ModelConfig,
    step_tokens: int,
    device: Device,
    units: int = 1,
    passes: int = 1,
    mfu: float | None = None,
    convention: str = "exact",
) -> Pace:
    """Of steps of `step_tokens` tokens on `units` devices (GPUs or cores), in `passes` forward and backward passes.

    `mfu`: share of the peak at which the FLOP of `convention` are worked off; None: MFU, on a core what was measured.
    Raises InputError where the convention does not cover the architecture.
    """
    flops = train_flops_per_token(cfg, convention) * step_tokens
    if device.unit == "core":
        step_s, known = _on_a_core(cfg, step_tokens, units, passes, flops, device.peak_flops_per_s, mfu)
        source = CORE_SOURCE if cfg.d_model <= WIDEST else CORE_BEYOND
        return Pace(step_s[0] + step_s[1], source + ("" if known else UNMEASURED), step_s[0] > step_s[1])
    share = mfu or MFU
    by_flops = flops / (device.peak_flops_per_s * share * units)
    by_host, known = _by_the_host(cfg, passes)
    if by_host > by_flops:
        return Pace(by_host, HOST_SOURCE + ("" if known else UNMEASURED), True)
    what = f"{flops:.3g} FLOP {convention} at {share:.1%} of the peak of {device.peak_flops_per_s / 1e12:,.4g} TFLOP/s"
    return Pace(by_flops, what, False)


def _by_the_host(cfg: ModelConfig, passes: int) -> tuple[float, bool]:
    """Seconds of a step that the host needs on a GPU, and whether this architecture was measured."""
    own = entry_of(cfg.arch).times
    measured = [own.host_ms] if own and own.host_ms else [e.times.host_ms for e in ENTRIES.values() if e.times]
    seconds = [1e-3 * passes * (found[0] + found[1] * cfg.n_layers) for found in measured if found]
    return max(seconds), own is not None and own.host_ms is not None


def _on_a_core(
    cfg: ModelConfig, step_tokens: int, units: int, passes: int, flops: float, peak: float, mfu: float | None
) -> tuple[tuple[float, float], bool]:
    """Seconds of a step beside its work, and of its work on `units` cores; whether the architecture was measured."""
    own = entry_of(cfg.arch).times
    found = []
    for step_ms, layer_ms, token_us, share in (
        [own.core] if own else [e.times.core for e in ENTRIES.values() if e.times]
    ):
        host = passes * (step_ms + layer_ms * cfg.n_layers) * 1e-3
        work = token_us * 1e-6 * cfg.n_layers * step_tokens + flops / (peak * (mfu or share))
        found.append((host, work / units))
    return max(found, key=sum), own is not None


def makespan(seconds: Iterable[float], at_once: int) -> float:
    """Until the last of some runs ends that are started longest first, `at_once` at a time."""
    ends = [0.0] * at_once
    for one in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)
