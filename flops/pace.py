"""How long a training step takes: by its FLOP at a share of the peak, and by what it costs beside them.

Small models take longer than their FLOP. A GPU reads and writes every channel of every position between two products,
and where the host starts every kernel (the trainer replays its steps at ZeRO stage 0 alone), no step is shorter than
that takes. On a CPU core each step, layer and position costs time beside its matrix products. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from arch.config import ModelConfig
from arch.encoder import scans_of
from arch.registry import architecture

from .conventions import OF_PRODUCTS, of_a_token, train_flops_per_token
from .hardware import Device
from .registry import ENTRIES, entry_of

MFU = 0.4  # of a GPU's peak, where nothing else is known

# Times.host_ms: least squares over the fastest step at each number of layers of four architectures at 0.4 to 31 M
# parameters (2, 4, 8, 10 layers; 65,536 tokens; LLaMA without 10, which its kernels bound), in the trainer on one H200,
# torch 2.11, eager: within 15% of each.
HOST_SOURCE = "the host's time to start the kernels, measured on one H200, torch 2.11"

# Times.replayed: least squares in the logarithm over 31 steps of each of four architectures at 0.2 to 410 M parameters
# (2 to 26 layers, 80 to 1,024 wide, heads of 16 to 128 channels, vocabularies of 257 to 100,280 words, 4,096 to 65,536
# tokens), in the trainer on H200s, torch 2.11: within 28% of each, half of them within 4%.
KERNELS_SOURCE = "replayed steps measured on H200s, torch 2.11"
PADDED_HEAD = 64  # channels: kernels take no less for narrower heads
H200_PEAK = 989.5e12  # FLOP/s, of Times.replayed

# Times.core: least squares in the logarithm over steps of the trainer's engine on one core of an AMD EPYC, torch 2.13
# (16 to 256 wide, 2 to 8 layers, 1,024 to 8,192 tokens) and over the 28 runs of a quickstart there: within a factor of
# 1.35 of each.
CORE_SOURCE = "steps measured on one core of an AMD EPYC, within a factor of 1.35"
WIDEST = 256
CORE_BEYOND = f"steps measured on one core of an AMD EPYC at widths up to {WIDEST}, far beyond which this is"
UNMEASURED = "; the architecture was not measured: the times are those of the slowest of its kind that was"
START_S = {"GPU": 20.0, "core": 3.0}  # from the start of a process to its first step: 15 to 25 s and 2.5 to 3.6 s seen
# from a run's end to the first step of the next in the same process: 0.1 to 1.1 s and 0.15 to 0.32 s seen
NEXT_S = {"GPU": 1.0, "core": 0.2}


def start_of(device: Device, processes: int = 1) -> float:
    """Seconds that a run takes beside its steps: one process trains runs one after another; a run of several has
    processes of its own."""
    return (NEXT_S if processes == 1 else START_S)[device.unit]


@dataclass(frozen=True)
class Pace:
    """Seconds of a step, in words what they are made of, and what bounds them: "flops", "kernels" (by more than their
    FLOP) or "host"."""

    step_seconds: float
    basis: str
    bound_by: str


def pace(
    cfg: ModelConfig,
    step_tokens: int,
    device: Device,
    units: int = 1,
    passes: int = 1,
    mfu: float | None = None,
    convention: str = "exact",
    replayed: bool = True,
) -> Pace:
    """Of steps of `step_tokens` tokens on `units` devices (GPUs or cores), in `passes` forward and backward passes.

    `mfu`: share of the peak at which the FLOP of `convention` are computed; None: MFU, on a core what was measured.
    `replayed`: the GPU's steps are CUDA graphs, as the trainer's are at ZeRO stage 0.
    A pattern takes the mean, by their shares of the layers, of what models of its kinds take. Raises InputError where
    the convention does not cover the architecture.
    """
    if len(cfg.kinds) > 1:
        pure = [dataclasses.replace(kind, n_layers=cfg.n_layers) for kind in cfg.kinds]
        paces = [pace(kind, step_tokens, device, units, passes, mfu, convention, replayed) for kind in pure]
        seconds = [kind.n_layers / cfg.n_layers * own.step_seconds for kind, own in zip(cfg.kinds, paces, strict=True)]
        longest = paces[seconds.index(max(seconds))]
        return Pace(sum(seconds), longest.basis, longest.bound_by)
    cfg = cfg.kinds[0]
    if entry_of(cfg.arch).core is None and convention in OF_PRODUCTS:
        convention = "6nd_total"  # as if the sequence operation cost nothing
    flops = train_flops_per_token(cfg, convention) * step_tokens
    if device.unit == "core":
        step_s, known = _on_a_core(cfg, step_tokens, units, passes, flops, device.peak_flops_per_s, mfu)
        source = CORE_SOURCE if cfg.d_model <= WIDEST else CORE_BEYOND
        return Pace(
            step_s[0] + step_s[1], source + ("" if known else UNMEASURED), "host" if step_s[0] > step_s[1] else "flops"
        )
    share = mfu or MFU
    by_flops = flops / (device.peak_flops_per_s * share * units)
    if replayed:
        least, known = _by_kernels(cfg, step_tokens / units, passes, device)
        bound_by, source = "kernels", KERNELS_SOURCE
    else:
        least, known = _by_the_host(cfg, passes)
        bound_by, source = "host", HOST_SOURCE
    if least > by_flops:
        return Pace(least, source + ("" if known else UNMEASURED), bound_by)
    what = f"{flops:.3g} FLOP {convention} at {share:.1%} of the peak of {device.peak_flops_per_s / 1e12:,.4g} TFLOP/s"
    return Pace(by_flops, what, "flops")


def _by_kernels(cfg: ModelConfig, tokens: float, passes: int, device: Device) -> tuple[float, bool]:
    """Seconds of a replayed step of `tokens` tokens on each GPU, and whether this architecture was measured. On another
    device than an H200 tokens take longer by as much as its peak is lower."""
    measured, known = _times(cfg, "replayed")
    of_layer, (positions, outputs) = entry_of(cfg.arch).core, _read(cfg)
    if of_layer is None:
        core, rest = 0.0, train_flops_per_token(cfg, "6nd_total")
    else:
        *_, length = scans_of(cfg, cfg.read_as(cfg.context_length)[1])
        core = 3 * cfg.n_layers * sum(of_layer(cfg, length).values()) / length * positions
        rest = train_flops_per_token(cfg, "exact") - core
    padded = max(1.0, PADDED_HEAD * cfg.n_heads / cfg.d_model)
    seconds = []
    for step_ms, layer_ms, channel_ns, word_ns, core_share, share in measured:
        a_token = 1e-9 * (channel_ns * cfg.n_layers * cfg.d_model * positions + word_ns * cfg.n_outputs * outputs)
        a_token += (core_share * core * padded + share * rest) / H200_PEAK
        slower = H200_PEAK / device.peak_flops_per_s
        seconds.append(1e-3 * passes * (step_ms + layer_ms * cfg.n_layers) + tokens * a_token * slower)
    return max(seconds), known


def _times(cfg: ModelConfig, name: str) -> tuple[list[tuple[float, ...]], bool]:
    """Times of this name of layers of a kind, and whether they were measured: else those of the measured architectures
    that have softmax as it has, or a recurrence as it has."""
    own = entry_of(cfg.arch).times
    if own and (times := getattr(own, name)):
        return [times], True
    linear = architecture(cfg.arch).constant_state
    alike = [entry.times for arch, entry in ENTRIES.items() if architecture(arch).constant_state == linear]
    return [times for other in alike if other and (times := getattr(other, name))], False


def _read(cfg: ModelConfig) -> tuple[float, float]:
    """Positions that each layer reads, in all its scans, and outputs of the head, for each token of a row."""
    positions, outputs = of_a_token(cfg, cfg.context_length)
    return scans_of(cfg, cfg.read_as(cfg.context_length)[1])[0] * positions, outputs


def _by_the_host(cfg: ModelConfig, passes: int) -> tuple[float, bool]:
    """Seconds of a step that the host needs on a GPU, and whether this architecture was measured."""
    measured, known = _times(cfg, "host_ms")
    return max(1e-3 * passes * (step_ms + layer_ms * cfg.n_layers) for step_ms, layer_ms in measured), known


def _on_a_core(
    cfg: ModelConfig, step_tokens: int, units: int, passes: int, flops: float, peak: float, mfu: float | None
) -> tuple[tuple[float, float], bool]:
    """Seconds of a step beside its work, and of its work on `units` cores; whether the architecture was measured."""
    measured, known = _times(cfg, "core")
    positions = _read(cfg)[0] * step_tokens
    seconds = []
    for step_ms, layer_ms, token_us, share in measured:
        host = passes * (step_ms + layer_ms * cfg.n_layers) * 1e-3
        work = token_us * 1e-6 * cfg.n_layers * positions + flops / (peak * (mfu or share))
        seconds.append((host, work / units))
    return max(seconds, key=sum), known


def makespan(seconds: Iterable[float], at_once: int) -> float:
    """Until the last of some runs ends that are started longest first, `at_once` at a time."""
    ends = [0.0] * at_once
    for duration in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
