"""One entry per architecture: its parameters, its matrix products and the paper's closed form.

Everything an architecture adds to the counts stands here; embedding, channel mixer, block norms and head are the same
for all and stand in params.py and forward.py. Source of the shapes: Scaling Laws for Linear Complexity Language Models
(Shen et al. 2024), section 2 and appendix A.1; of the products: the chunk forms in arch/ops, which the tests hold
against torch's FLOP counter.

Units: parameters are numbers; FLOP counts are floats, two for each multiply-add, of matrix products alone.
Names: d width, h heads, p = d/h head dimension, t gate rank, e TPE dimension, T context, C chunk, n tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from arch.config import ModelConfig


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
    """

    matrices: Callable[[ModelConfig], dict[str, int]]
    vectors: Callable[[ModelConfig], dict[str, int]]
    core: Callable[[ModelConfig, int], dict[str, float]]
    once: Callable[[ModelConfig], dict[str, int]]
    once_core: Callable[[ModelConfig, int], dict[str, float]]
    setup: Callable[[ModelConfig, int], dict[str, float]]
    paper: Callable[[ModelConfig, int], float] | None
    channel_mixer: bool = True


def norm_size(cfg: ModelConfig, width: int | None = None) -> int:
    """Parameters of one norm over `width` (default: d): none (srms), weight (rms), weight and bias (layer)."""
    return {"srms": 0, "rms": 1, "layer": 2}[str(cfg.norm)] * (width or cfg.d_model)


def chunks(context: int, size: int) -> list[tuple[int, int]]:
    """(rows, how many) of the whole chunks of a sequence and of the shorter one left over, as arch/ops cuts it."""
    return [(rows, count) for rows, count in ((size, context // size), (context % size, 1)) if rows and count]


def square(cfg: ModelConfig, *names: str) -> dict[str, int]:
    return {f"mixer.{name}": cfg.d_model**2 for name in names}


def low_rank_gate(cfg: ModelConfig) -> dict[str, int]:
    """W_down [d, t] and W_up [t, d] of TNL's and cosFormer2's output gate."""
    return {"mixer.gate": 2 * cfg.d_model * int(cfg.gate_rank or 0)}


def nothing(cfg: ModelConfig) -> dict[str, int]:
    return {}


def no_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    return {}


def softmax_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """q k^T and A v over the full T x T square: 4 T^2 d. Convention `exact` halves it (causal)."""
    return {"mixer.softmax": 4.0 * context * context * cfg.d_model}


def decay_core(cfg: ModelConfig, context: int, key_dim: int, value_dim: int | None = None) -> dict[str, float]:
    """decay_attention in chunks. A chunk of C rows and a head have, with keys k wide and values p wide (default: d/h):

    inside the chunk q k^T 2CCk and (q k^T) v 2CCp; through the state q S 2Ckp and k^T v 2Ckp.
    """
    k, p, inside, state = float(key_dim), float(value_dim or cfg.head_dim), 0.0, 0.0
    for rows, count in chunks(context, cfg.chunk_size):
        inside += cfg.n_heads * count * 2.0 * rows * rows * (k + p)
        state += cfg.n_heads * count * 4.0 * rows * k * p
    return {"mixer.inside": inside, "mixer.state": state}


def gated_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """gated_attention in chunks, the scores by halves; keys and values are p wide.

    The scores of a chunk of C rows come from blocks of m = 1, 2, 4 .. C/2 rows: at each level C/2m products of m late
    queries with m early keys, 2mmp each, so Cmp a level and C(C-1)p in all (the diagonal is an element-wise product).
    Then scores v 2CCp, q S 2Cpp and k^T v 2Cpp. A shorter last chunk is filled up to a power of two.
    """
    p, inside, state = float(cfg.head_dim), 0.0, 0.0
    for rows, count in chunks(context, cfg.chunk_size):
        rows = 1 << (rows - 1).bit_length()
        inside += cfg.n_heads * count * rows * (3.0 * rows - 1.0) * p
        state += cfg.n_heads * count * 4.0 * rows * p * p
    return {"mixer.inside": inside, "mixer.state": state}


def filter_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """causal_filter (TPE) in chunks of C rows: state read and update 2Cde each, inside a Toeplitz product 2CCd."""
    d, e = float(cfg.d_model), float(cfg.tpe_dim or 0)
    return {"tpe": sum(count * rows * d * (4.0 * e + 2.0 * rows) for rows, count in chunks(context, cfg.chunk_size))}


def filter_setup(cfg: ModelConfig, context: int) -> dict[str, float]:
    """The Toeplitz kernel B [d, e] times the powers of the decays [e, C], once for each length of chunk: 2deC."""
    d, e = float(cfg.d_model), float(cfg.tpe_dim or 0)
    return {"tpe.kernel": sum(2.0 * d * e * rows for rows, _ in chunks(context, cfg.chunk_size))}


def selective_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """selective_scan in its own chunks of 16 rows: each row reads its states, 2 (2d) N. A shorter last chunk is filled
    up to a power of two."""
    rows = sum(count * (1 << (rows - 1).bit_length()) for rows, count in chunks(context, 16))
    return {"mixer.state": 2.0 * rows * cfg.inner_dim * int(cfg.ssm_state or 0)}


def hgrn1_width(cfg: ModelConfig) -> int:
    """Real numbers in HGRN1's state: 2d (complex) or d."""
    return (2 if cfg.hgrn1_complex else 1) * cfg.d_model


ENTRIES = {
    "llama": Entry(
        matrices=lambda cfg: square(cfg, "q", "k", "v", "o"),
        vectors=nothing,
        core=softmax_core,
        once=nothing,
        once_core=no_core,
        setup=no_core,
        paper=lambda cfg, n: 1 + n / (6 * cfg.d_model) + 5 / (18 * cfg.d_model),
    ),
    "tnl": Entry(
        matrices=lambda cfg: square(cfg, "q", "k", "v", "o") | low_rank_gate(cfg),
        vectors=lambda cfg: {"mixer.norm": norm_size(cfg)},
        core=lambda cfg, n: decay_core(cfg, n, cfg.head_dim),
        once=nothing,
        once_core=no_core,
        setup=no_core,
        paper=lambda cfg, n: 1 + 1 / (2 * cfg.n_heads) + 5 / (18 * cfg.d_model),
    ),
    "hgrn2": Entry(
        matrices=lambda cfg: square(cfg, "q", "f", "v", "o"),
        vectors=lambda cfg: {"mixer.norm": norm_size(cfg)},
        core=gated_core,
        once=lambda cfg: {"lower_bound": cfg.n_layers * cfg.d_model},
        once_core=no_core,
        setup=no_core,
        paper=lambda cfg, n: 1 + 1 / (3 * cfg.n_heads) + 29 / (72 * cfg.d_model),
    ),
    "cosformer2": Entry(
        matrices=lambda cfg: square(cfg, "q", "k", "v", "o") | low_rank_gate(cfg),
        vectors=lambda cfg: {"mixer.norm": norm_size(cfg), "mixer.theta": cfg.d_model},
        core=lambda cfg, n: decay_core(cfg, n, 2 * cfg.head_dim),
        once=lambda cfg: {"tpe": cfg.d_model * int(cfg.tpe_dim or 0)},
        once_core=filter_core,
        setup=filter_setup,
        paper=lambda cfg, n: 1 + 3 / (4 * cfg.n_heads) + 23 / (72 * cfg.d_model),
    ),
    # the recurrence is element-wise, O(d) a token, and counts as no matrix product
    "hgrn1": Entry(
        matrices=lambda cfg: {
            "mixer.f": cfg.d_model**2,
            **{f"mixer.{name}": cfg.d_model * hgrn1_width(cfg) for name in ("i", "g", "o")},
        },
        vectors=lambda cfg: {
            "mixer.norm": norm_size(cfg, hgrn1_width(cfg)),
            "mixer.theta": cfg.d_model if cfg.hgrn1_complex else 0,
        },
        core=no_core,
        once=lambda cfg: {"lower_bound": cfg.n_layers * cfg.d_model},
        once_core=no_core,
        setup=no_core,
        paper=None,
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
    ),
}
