"""What one architecture adds to a model's costs: its parameters, matrix products, memory and measured times.

Embedding, MLP, block norms and head are the same for all and stand in params.py, forward.py and memory.py. Each
architecture of this package has a module in architectures/; a plugin registers an Entry of its own (registry.py).
Source of the shapes: Scaling Laws for Linear Complexity Language Models (Shen et al. 2024), section 2 and appendix A.1.

A pattern's costs are the sum over its kinds of layers (ModelConfig.kinds): the functions here get the configuration of
one kind, whose n_layers is the number of its layers.

Units: parameters are numbers; FLOP counts are floats, two for each multiply-add, of matrix products alone.
Names: d width, h heads, p = d/h head dimension, t gate rank, e TPE dimension, T or n tokens, C chunk, N states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from arch.config import ModelConfig

Lines = dict[str, float]


def summed(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The parts as one, what they have under the same name added up."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def nothing(cfg: ModelConfig) -> dict[str, int]:
    return {}


def no_core(cfg: ModelConfig, context: int) -> Lines:
    return {}


@dataclass(frozen=True)
class Memory:
    """Bytes that autograd keeps from the forward to the backward pass, `a` bytes an activation.

    activations(cfg, T, a): of one layer's mixer for one sequence, in the plain PyTorch forms, or in whatever form it
    runs. by_kernels(cfg, T, a, B): the same where our kernels run, in micro-batches of B sequences; None: as above.
    shared(cfg, T, kernels): of one layer, once for all sequences. once(cfg, T, a, B, kernels): outside the layers, for
    all B sequences. mlp_tensors: tensors as wide as d_ffn that the plain MLP keeps. temporaries(cfg, tokens, a): the
    most that a layer's backward pass holds beside what it reads, with kernels; None: the gradients of the MLP's inputs.
    autocast_copies(cfg): weight matrices of a layer whose bf16 copies autocast keeps to the forward's end.
    """

    activations: Callable[[ModelConfig, int, int], Lines]
    by_kernels: Callable[[ModelConfig, int, int, int], Lines] | None = None
    shared: Callable[[ModelConfig, int, bool], float] = lambda cfg, n, kernels: 0.0
    once: Callable[[ModelConfig, int, int, int, bool], Lines] = lambda cfg, n, a, sequences, kernels: {}
    mlp_tensors: int = 3
    temporaries: Callable[[ModelConfig, float, int], float] | None = None
    autocast_copies: Callable[[ModelConfig], tuple[str, ...]] = lambda cfg: ()


@dataclass(frozen=True)
class Times:
    """What was measured of the time that a step takes beside its FLOP (pace.py says on what).

    host_ms: milliseconds a pass, and a pass and layer, that the host needs to start a GPU's kernels; None: not
    measured. replayed: of a step that a GPU replays, milliseconds a pass, and a pass and layer; nanoseconds a position,
    layer and channel, and a logit of the head; and by how much longer than at the peak the sequence operation's FLOP
    take (heads of less than 64 channels as if they had 64), and all others; None: not measured.
    core: of one thread of a CPU, milliseconds a pass, a pass and layer, microseconds a position and layer, and the
    share of the peak at which the FLOP are computed.
    """

    host_ms: tuple[float, float] | None
    replayed: tuple[float, float, float, float, float, float] | None
    core: tuple[float, float, float, float]


@dataclass(frozen=True)
class Entry:
    """What one architecture adds to a model's counts.

    matrices(cfg): weight matrices of one layer's token mixer, name -> size; each costs 2 x size FLOP a token.
    vectors(cfg): its other parameters (norm weights, angles), which enter no matrix product.
    core(cfg, T): FLOP of one layer's sequence operation, forward, for one sequence of T tokens; None: not known, and
    `exact` and `executed` count no model with such layers.
    once(cfg): parameters the model has once and not per layer, beside embedding, head and final norm.
    once_core(cfg, T): FLOP of those parts, forward, for one sequence of T tokens.
    setup(cfg, T): FLOP of products of parameters alone: spent once a pass, however many sequences it holds.
    paper(cfg, T): the bracket of table 1, i.e. training FLOP per token divided by 72 l d^2; None where table 1 has no
    row for the architecture.
    has_mlp: whether a layer has an MLP, with its norm. gated_mlp: whether that has a gate, a third matrix.
    state(cfg, T): numbers in one layer's decode state after T tokens of one sequence, name -> size; "state" is one of
    the sequence operation's, in fp32, all others (cache, convolution) are in the activations' dtype. None: unknown.
    state_once(cfg): the same of what the model has once.
    unseen: lines of core whose products torch's FLOP counter does not see, as those of triangular solves.
    excess(cfg, T), once_excess, setup_excess: FLOP of the backward pass beyond twice the forward's of core, once_core
    and setup, by name: more products (positive) or fewer (negative). Default: none, two products for each.
    rounded(cfg), once_fp32(cfg): of a layer's `vectors`, the parameters that a bf16 checkpoint rounds, being matrices;
    of `once`, those that it keeps in fp32.
    appendix(cfg, T): the paper's appendix A.1, FLOP per token of one layer's mixer by operation; None where it has
    none. appendix_once(cfg, T, sequences): the same outside the layers, per token of all layers.
    memory: what training keeps of it; None: unknown. times: what was measured of its pace; None: nothing.
    """

    matrices: Callable[[ModelConfig], dict[str, int]]
    core: Callable[[ModelConfig, int], Lines] | None
    vectors: Callable[[ModelConfig], dict[str, int]] = nothing
    once: Callable[[ModelConfig], dict[str, int]] = nothing
    once_core: Callable[[ModelConfig, int], Lines] = no_core
    setup: Callable[[ModelConfig, int], Lines] = no_core
    paper: Callable[[ModelConfig, int], float] | None = None
    has_mlp: bool = True
    gated_mlp: bool = True
    state: Callable[[ModelConfig, int], dict[str, int]] | None = None
    state_once: Callable[[ModelConfig], dict[str, int]] = nothing
    unseen: tuple[str, ...] = ()
    excess: Callable[[ModelConfig, int], Lines] = no_core
    once_excess: Callable[[ModelConfig, int], Lines] = no_core
    setup_excess: Callable[[ModelConfig, int], Lines] = no_core
    rounded: Callable[[ModelConfig], int] = lambda cfg: 0
    once_fp32: Callable[[ModelConfig], int] = lambda cfg: 0
    appendix: Callable[[ModelConfig, int], Lines] | None = None
    appendix_once: Callable[[ModelConfig, int, int], Lines] = lambda cfg, n, sequences: {}
    memory: Memory | None = None
    times: Times | None = None


def norm_size(cfg: ModelConfig, width: int | None = None) -> int:
    """Parameters of one norm over `width` (default: d): none (srms), weight (rms), weight and bias (layer)."""
    return {"srms": 0, "rms": 1, "layer": 2}[str(cfg.norm)] * (width or cfg.d_model)


def square(cfg: ModelConfig, *names: str) -> dict[str, int]:
    """Matrices [d, d] by the names of what they project to."""
    return {f"mixer.{name}": cfg.d_model**2 for name in names}


def low_rank_gate(cfg: ModelConfig) -> dict[str, int]:
    """W_down [d, t] and W_up [t, d] of an output gate of rank t, the option gate_rank."""
    return {"mixer.gate": 2 * cfg.d_model * int(cfg.options.gate_rank)}
