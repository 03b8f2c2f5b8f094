"""One entry per architecture: its parameters, its matrix products and the paper's closed form.

Everything an architecture adds to the counts stands here; embedding, MLP, block norms and head are the same
for all and stand in params.py and forward.py, the products of the sequence operations in cores.py. Source of the
shapes: Scaling Laws for Linear Complexity Language Models (Shen et al. 2024), section 2 and appendix A.1; of HGRN1's
expansions: HGRN2, table 2.

Units: parameters are numbers; FLOP counts are floats, two for each multiply-add, of matrix products alone.
Names: d width, h heads, p = d/h head dimension, t gate rank, e TPE dimension, T or n tokens, C chunk, N states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from arch.architectures.hgrn1.shape import factors, inner_width, matrix_size, projections, state_size
from arch.config import ModelConfig

from .cores import (
    decay_core,
    decay_excess,
    filter_core,
    filter_excess,
    filter_setup,
    filter_setup_excess,
    gated_core,
    gated_excess,
    interaction_core,
    selective_core,
    selective_excess,
    softmax_core,
)


@dataclass(frozen=True)
class Entry:
    """What one architecture adds to a model's counts.

    matrices(cfg): weight matrices of one layer's token mixer, name -> size; each costs 2 x size FLOP a token.
    vectors(cfg): its other parameters (norm weights, angles), which enter no matrix product.
    core(cfg, T): FLOP of one layer's sequence operation, forward, for one sequence of T tokens.
    once(cfg): parameters the model has once and not per layer, beside embedding, head and final norm.
    once_core(cfg, T): FLOP of those parts, forward, for one sequence of T tokens.
    setup(cfg, T): FLOP of products of parameters alone: spent once a pass, however many sequences it holds.
    paper(cfg, T): the bracket of table 1, i.e. training FLOP per token divided by 72 l d^2; None where table 1 has no
    row for the architecture.
    channel_mixer: whether a layer has one, with its norm.
    state(cfg, T): numbers in one layer's decode state after T tokens of one sequence, name -> size; "state" is one of
    the sequence operation's, in fp32, all others (cache, convolution) are in the activations' dtype. None: unknown.
    state_once(cfg): the same of what the model has once.
    excess(cfg, T), once_excess, setup_excess: FLOP of the backward pass beyond twice the forward's of core, once_core
    and setup, by name: more products (positive) or fewer (negative). Default: none, two products for each.
    activations(cfg, T, a): bytes that autograd keeps of one layer's mixer for one sequence, at `a` bytes an activation,
    in whatever form it runs; those of this package stand in activations.py and by_kernels.py. None: unknown.
    """

    matrices: Callable[[ModelConfig], dict[str, int]]
    vectors: Callable[[ModelConfig], dict[str, int]]
    core: Callable[[ModelConfig, int], dict[str, float]]
    once: Callable[[ModelConfig], dict[str, int]]
    once_core: Callable[[ModelConfig, int], dict[str, float]]
    setup: Callable[[ModelConfig, int], dict[str, float]]
    paper: Callable[[ModelConfig, int], float] | None
    channel_mixer: bool = True
    state: Callable[[ModelConfig, int], dict[str, int]] | None = None
    state_once: Callable[[ModelConfig], dict[str, int]] = lambda cfg: {}
    excess: Callable[[ModelConfig, int], dict[str, float]] = lambda cfg, n: {}
    once_excess: Callable[[ModelConfig, int], dict[str, float]] = lambda cfg, n: {}
    setup_excess: Callable[[ModelConfig, int], dict[str, float]] = lambda cfg, n: {}
    activations: Callable[[ModelConfig, int, int], dict[str, float]] | None = None


def norm_size(cfg: ModelConfig, width: int | None = None) -> int:
    """Parameters of one norm over `width` (default: d): none (srms), weight (rms), weight and bias (layer)."""
    return {"srms": 0, "rms": 1, "layer": 2}[str(cfg.norm)] * (width or cfg.d_model)


def square(cfg: ModelConfig, *names: str) -> dict[str, int]:
    return {f"mixer.{name}": cfg.d_model**2 for name in names}


def low_rank_gate(cfg: ModelConfig) -> dict[str, int]:
    """W_down [d, t] and W_up [t, d] of TNL's and cosFormer2's output gate."""
    return {"mixer.gate": 2 * cfg.d_model * int(cfg.gate_rank or 0)}


def nothing(cfg: ModelConfig) -> dict[str, int]:
    return {}


def no_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    return {}


def key_width(cfg: ModelConfig) -> int:
    """cosFormer2's keys: p, and again as many channels as turn (all, or with lrpe="half" the first half)."""
    return cfg.head_dim + (cfg.head_dim if cfg.lrpe == "full" else cfg.head_dim // 2)


def angles(cfg: ModelConfig) -> dict[str, int]:
    """cosFormer2: theta [h, p], with lrpe="half" [p / 2] for all heads; none where they are constants."""
    size = cfg.d_model if cfg.lrpe == "full" else cfg.head_dim // 2
    return {"mixer.theta": size if cfg.theta_learned else 0}


def tpe(cfg: ModelConfig) -> dict[str, int]:
    e = int(cfg.tpe_dim or 0)
    return {"tpe": cfg.d_model * e} | ({"tpe.decay": e} if cfg.tpe_learned_decay else {})


def lower_bound(cfg: ModelConfig) -> dict[str, int]:
    """gamma of HGRN, [l, d] (HGRN1 with hgrn1_state="real_2d": [l, 2d])."""
    return {} if cfg.lower_bound == "off" else {"lower_bound": cfg.n_layers * cfg.bound_dim}


def hgrn2_matrices(cfg: ModelConfig) -> dict[str, int]:
    used = {"q": cfg.output_gate, "f": cfg.lower_bound != "only", "k": cfg.input_gate == "own"}
    return square(cfg, *(name for name, is_used in used.items() if is_used), "v", "o")


# what the counts call HGRN1's projections
HGRN1_NAMES = {"forget": "f", "input": "i", "gate": "g", "input_gate": "ig", "angle": "angle"}


def hgrn1_projections(cfg: ModelConfig) -> dict[str, int]:
    """Widths of HGRN1's projections of x."""
    widths = projections(cfg)
    return {short: widths[name] for name, short in HGRN1_NAMES.items() if name in widths}


def hgrn1_matrices(cfg: ModelConfig) -> dict[str, int]:
    """Dense ones are [d, width]; those of an expansion are the matrices of HGRN2's table 2."""
    sizes = {f"mixer.{name}": matrix_size(cfg, width) for name, width in hgrn1_projections(cfg).items()}
    return sizes | {"mixer.o": inner_width(cfg) * cfg.d_model}


def hgrn1_vectors(cfg: ModelConfig) -> dict[str, int]:
    """With what an expansion has beside matrices of 2 FLOP an entry."""
    return {f"mixer.{name}.factors": factors(cfg) for name in hgrn1_projections(cfg)} | {
        "mixer.norm": norm_size(cfg, inner_width(cfg)),
        "mixer.theta": cfg.d_model if cfg.hgrn1_state == "complex" else 0,
    }


def hgrn1_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """The recurrence is element-wise, O(d) a token, and counts as no matrix product."""
    glti = cfg.expansion == "glti"
    return interaction_core(cfg, context, len(hgrn1_projections(cfg))) if glti else {}


def window(cfg: ModelConfig, channels: int) -> dict[str, int]:
    """The inputs that a short convolution of Mamba keeps."""
    return {"conv": (cfg.conv_width - 1) * channels}


ENTRIES = {
    "llama": Entry(
        matrices=lambda cfg: square(cfg, "q", "k", "v", "o"),
        vectors=nothing,
        core=softmax_core,
        once=nothing,
        once_core=no_core,
        setup=no_core,
        paper=lambda cfg, n: 1 + n / (6 * cfg.d_model) + 5 / (18 * cfg.d_model),
        state=lambda cfg, n: {"cache": 2 * n * cfg.d_model},
    ),
    "tnl": Entry(
        matrices=lambda cfg: square(cfg, "q", "k", "v", "o") | low_rank_gate(cfg),
        vectors=lambda cfg: {"mixer.norm": norm_size(cfg)},
        core=lambda cfg, n: decay_core(cfg, n, cfg.head_dim),
        once=nothing,
        once_core=no_core,
        setup=no_core,
        paper=lambda cfg, n: 1 + 1 / (2 * cfg.n_heads) + 5 / (18 * cfg.d_model),
        state=lambda cfg, n: {"state": cfg.head_dim * cfg.d_model},
        excess=lambda cfg, n: decay_excess(cfg, n, cfg.head_dim),
    ),
    "hgrn2": Entry(
        matrices=hgrn2_matrices,
        vectors=lambda cfg: {"mixer.norm": norm_size(cfg)},
        core=gated_core,
        once=lower_bound,
        once_core=no_core,
        setup=no_core,
        paper=lambda cfg, n: 1 + 1 / (3 * cfg.n_heads) + 29 / (72 * cfg.d_model),
        state=lambda cfg, n: {"state": cfg.head_dim * cfg.d_model},
        excess=gated_excess,
    ),
    "cosformer2": Entry(
        matrices=lambda cfg: square(cfg, "q", "k", "v", "o") | low_rank_gate(cfg),
        vectors=lambda cfg: {"mixer.norm": norm_size(cfg)} | angles(cfg),
        core=lambda cfg, n: decay_core(cfg, n, key_width(cfg)),
        once=tpe,
        once_core=filter_core,
        setup=filter_setup,
        paper=lambda cfg, n: 1 + 3 / (4 * cfg.n_heads) + 23 / (72 * cfg.d_model),
        state=lambda cfg, n: {"state": key_width(cfg) * cfg.d_model},
        state_once=lambda cfg: {"state": cfg.d_model * int(cfg.tpe_dim or 0)},
        excess=lambda cfg, n: decay_excess(cfg, n, key_width(cfg)),
        once_excess=filter_excess,
        setup_excess=filter_setup_excess,
    ),
    "hgrn1": Entry(
        matrices=hgrn1_matrices,
        vectors=hgrn1_vectors,
        core=hgrn1_core,
        once=lower_bound,
        once_core=no_core,
        setup=no_core,
        paper=None,
        state=lambda cfg, n: {"state": state_size(cfg)},
    ),
    # the convolution and the skip are element-wise, O(d) a token, and count as no matrix product
    "mamba2": Entry(
        matrices=lambda cfg: {
            "mixer.in": cfg.d_model * (2 * cfg.inner_dim + 2 * int(cfg.ssm_state or 0) + cfg.n_heads),
            "mixer.o": cfg.inner_dim * cfg.d_model,
        },
        vectors=lambda cfg: {
            "mixer.conv": (cfg.conv_width + 1) * (cfg.inner_dim + 2 * int(cfg.ssm_state or 0)),
            "mixer.A_log": cfg.n_heads,
            "mixer.D": cfg.n_heads,
            "mixer.dt_bias": cfg.n_heads,
            "mixer.norm": norm_size(cfg, cfg.inner_dim),
        },
        core=lambda cfg, n: decay_core(cfg, n, int(cfg.ssm_state or 0), cfg.inner_dim // cfg.n_heads),
        once=nothing,
        once_core=no_core,
        setup=no_core,
        paper=None,
        channel_mixer=False,
        state=lambda cfg, n: (
            {"state": int(cfg.ssm_state or 0) * cfg.inner_dim}
            | window(cfg, cfg.inner_dim + 2 * int(cfg.ssm_state or 0))
        ),
        excess=lambda cfg, n: decay_excess(cfg, n, int(cfg.ssm_state or 0), cfg.inner_dim // cfg.n_heads),
    ),
    # scan and convolution are element-wise and count as no matrix product, though the scan has O(2dN) a token; reading
    # the states, h C, is one
    "mamba1": Entry(
        matrices=lambda cfg: {
            "mixer.in": 2 * cfg.d_model * cfg.inner_dim,
            "mixer.select": cfg.inner_dim * (int(cfg.dt_rank or 0) + 2 * int(cfg.ssm_state or 0)),
            "mixer.step": cfg.inner_dim * int(cfg.dt_rank or 0),
            "mixer.o": cfg.inner_dim * cfg.d_model,
        },
        vectors=lambda cfg: {
            "mixer.conv": (cfg.conv_width + 1) * cfg.inner_dim,
            "mixer.A_log": cfg.inner_dim * int(cfg.ssm_state or 0),
            "mixer.D": cfg.inner_dim,
            "mixer.dt_bias": cfg.inner_dim,
        },
        core=selective_core,
        once=nothing,
        once_core=no_core,
        setup=no_core,
        paper=None,
        channel_mixer=False,
        state=lambda cfg, n: {"state": cfg.inner_dim * int(cfg.ssm_state or 0)} | window(cfg, cfg.inner_dim),
        excess=selective_excess,
    ),
}
