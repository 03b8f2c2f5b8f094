"""The costs of RetNet: linear attention with a fixed decay for each head and rotary positions. Imports no torch."""

from __future__ import annotations

from arch.architectures.retnet.shape import matrices, values
from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD

from .. import activations as plain
from .. import by_kernels as kernels
from ..cores import decay_core, decay_excess
from ..entry import Entry, Lines, Memory, norm_size
from .llama import rotary


def head(cfg: ModelConfig) -> int:
    """Channels of a head's values."""
    return values(cfg) // cfg.n_heads


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    return plain.chunked(cfg, T, cfg.d_model, values(cfg), False) | plain.gated_heads(cfg, T, a, values(cfg))


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """q, k, and v as operands, with their heads filled up."""
    p, v = kernels.padded(cfg.head_dim), kernels.padded(head(cfg))
    lines = kernels.gated_heads(cfg, T, a, values(cfg))
    if max(p, v) > WIDEST_HEAD:
        return activations(cfg, T, a) | lines
    return kernels.decay(cfg, T, a, B, p, v, True) | lines | {"mixer.core": a * T * cfg.n_heads * (2.0 * p + v)}


ENTRY = Entry(
    matrices=matrices,
    vectors=lambda cfg: {"mixer.norm": norm_size(cfg, head(cfg))},
    core=lambda cfg, n: decay_core(cfg, n, cfg.head_dim, head(cfg)),
    excess=lambda cfg, n: decay_excess(cfg, n, cfg.head_dim, head(cfg)),
    state=lambda cfg, n: {"state": cfg.head_dim * values(cfg)},
    memory=Memory(activations, by_kernels, once=rotary, mlp_tensors=4),
)
