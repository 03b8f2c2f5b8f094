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

MFU = 0.4  # of a GPU's peak, where nothing else is known

# (ms a pass, ms a pass and layer) of forward, backward and optimizer that the host needs on a GPU. Least squares over
# the fastest step at each number of layers of four architectures at 0.4 to 31 M parameters (2, 4, 8, 10 layers; 65,536
# tokens; LLaMA without 10, which its kernels bound), in the trainer on one H200, torch 2.11, eager: within 15% of each.
HOST_MS = {"llama": (10.2, 3.15), "tnl": (8.1, 5.16), "hgrn2": (9.0, 4.56), "cosformer2": (12.1, 5.15)}
HOST_SOURCE = "the host's time to start the kernels, measured on one H200, torch 2.11"

# One thread of a CPU: (ms a pass, ms a pass and layer, microseconds a token and layer, share of the peak that the FLOP
# are worked off at). Least squares in the logarithm over steps of the trainer's engine on one core of an AMD EPYC,
# torch 2.13 (16 to 256 wide, 2 to 8 layers, 1,024 to 8,192 tokens) and over the 28 runs of a quickstart there: within a
# factor of 1.35 of each.
CORE = {
    "llama": (3.1, 0.0, 5.6, 0.68),
    "tnl": (4.7, 0.8, 1.9, 0.65),
    "hgrn2": (0.0, 3.7, 4.6, 0.52),
    "cosformer2": (7.1, 0.9, 1.9, 0.55),
    "hgrn1": (4.3, 1.3, 2.6, 0.44),
    "mamba2": (0.0, 0.0, 10.7, 0.42),
    "mamba1": (3.4, 9.8, 5.8, 0.12),
}
CORE_SOURCE = "steps measured on one core of an AMD EPYC, met within a factor of 1.35"
WIDEST = 256
CORE_BEYOND = f"steps measured on one core of an AMD EPYC at widths up to {WIDEST}, far beyond which this is"
UNMEASURED = "; its architecture was not measured, HGRN2 stands for it"
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
        known = cfg.arch in CORE
        step_ms, layer_ms, token_us, share = CORE[cfg.arch if known else "hgrn2"]
        host = passes * (step_ms + layer_ms * cfg.n_layers) * 1e-3
        rest = token_us * 1e-6 * cfg.n_layers * step_tokens + flops / (device.peak_flops_per_s * (mfu or share))
        source = CORE_SOURCE if cfg.d_model <= WIDEST else CORE_BEYOND
        return Pace(host + rest / units, source + ("" if known else UNMEASURED), host > rest / units)
    share = mfu or MFU
    by_flops = flops / (device.peak_flops_per_s * share * units)
    known = cfg.arch in HOST_MS
    step_ms, layer_ms = HOST_MS[cfg.arch if known else "hgrn2"]
    by_host = passes * (step_ms + layer_ms * cfg.n_layers) * 1e-3
    if by_host > by_flops:
        return Pace(by_host, HOST_SOURCE + ("" if known else UNMEASURED), True)
    what = f"{flops:.3g} FLOP {convention} at {share:.1%} of the peak of {device.peak_flops_per_s / 1e12:,.4g} TFLOP/s"
    return Pace(by_flops, what, False)


def makespan(seconds: Iterable[float], at_once: int) -> float:
    """Until the last of some runs ends that are started longest first, `at_once` at a time."""
    ends = [0.0] * at_once
    for one in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)
