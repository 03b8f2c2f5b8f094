"""The costs of GLA: linear attention with a forget gate for each key channel. Imports no torch."""

from __future__ import annotations

from arch.architectures.gla.shape import keys, matrices
from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD

from .. import activations as plain
from .. import by_kernels as kernels
from ..activations import F
from ..cores import gated_core, gated_excess
from ..entry import Entry, Lines, Memory, norm_size


def gates(cfg: ModelConfig, T: int, a: int) -> Lines:
    """The low-rank projection and the forget gate's softplus."""
    return {"mixer.forget": a * T * float(cfg.options.gate_rank), "mixer.gates": F * T * keys(cfg)}


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    lines = plain.gated_chunks(cfg, T, keys(cfg), cfg.d_model) | plain.gated_heads(cfg, T, a, cfg.d_model)
    return lines | gates(cfg, T, a)


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """q, k, and both with their decays, log f and v, with their heads filled up."""
    k, v = kernels.padded(cfg.head_dim // 2), kernels.padded(cfg.head_dim)
    lines = gates(cfg, T, a) | kernels.gated_heads(cfg, T, a, cfg.d_model)
    if v > WIDEST_HEAD:
        return activations(cfg, T, a) | lines
    lines["mixer.gates"] += F * T * cfg.n_heads * k
    return lines | kernels.gated(cfg, T, a, k, v) | {"mixer.core": a * T * cfg.n_heads * (4.0 * k + v)}


ENTRY = Entry(
    matrices=matrices,
    vectors=lambda cfg: {"mixer.forget_bias": keys(cfg), "mixer.norm": norm_size(cfg, cfg.head_dim)},
    core=lambda cfg, n: gated_core(cfg, n, cfg.head_dim // 2),
    excess=lambda cfg, n: gated_excess(cfg, n, cfg.head_dim // 2),
    state=lambda cfg, n: {"state": cfg.head_dim // 2 * cfg.d_model},
    memory=Memory(activations, by_kernels, mlp_tensors=4),
)
