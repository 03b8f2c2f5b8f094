"""The costs of Mamba1: a selective scan on single channels, behind a short convolution. Imports no torch."""

from __future__ import annotations

import math

from arch.architectures.common.mamba_options import inner_width
from arch.config import ModelConfig
from arch.kernel_config import SELECTIVE_SCAN

from .. import short_conv
from ..activations import F
from ..cores import chunks, power_of_two
from ..entry import Entry, Lines, Memory, Times


def matrices(cfg: ModelConfig) -> dict[str, int]:
    inner, rank = inner_width(cfg), int(cfg.options.dt_rank)
    return {
        "mixer.in": 2 * cfg.d_model * inner,
        "mixer.select": inner * (rank + 2 * int(cfg.options.ssm_state)),
        "mixer.step": inner * rank,
        "mixer.o": inner * cfg.d_model,
    }


def vectors(cfg: ModelConfig) -> dict[str, int]:
    """Scan, convolution and skip are element-wise and count as no matrix product, though the scan has O(2dN) a
    token."""
    inner = inner_width(cfg)
    return {
        "mixer.conv": short_conv.parameters(cfg, inner),
        "mixer.A_log": inner * int(cfg.options.ssm_state),
        "mixer.D": inner,
        "mixer.dt_bias": inner,
    }


def core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """selective_scan in its own chunks of 16 rows: each row reads its states, 2 (2d) N. A shorter last chunk is filled
    up to a power of two."""
    row = 2.0 * inner_width(cfg) * int(cfg.options.ssm_state)
    filled = sum(count * power_of_two(rows) for rows, count in chunks(context, 16))
    return {"mixer.state": row * context, "mixer.padding": row * (filled - context)}


def excess(cfg: ModelConfig, context: int) -> dict[str, float]:
    """The backward pass has three products a row: of the read's two gradients that of the states is the outer product
    C_t dy_t, formed element by element, and that of C_t is one; the input B_t u_t, element-wise forward, has two."""
    forward = core(cfg, context)
    return {"mixer.state.inputs": sum(forward.values())}


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    """x; what the input and the selecting projection give; the convolution; softplus's input, dt, B and C, the scan's
    input and output in fp32; a state for each 16 tokens; silu(z) and the gated output."""
    i, s, rank = inner_width(cfg), int(cfg.options.ssm_state), int(cfg.options.dt_rank)
    copies = (i + 2 * s) * F if a < F else 0.0  # of what is fp32 already there is no copy
    return {
        "mixer.projections": a * T * (cfg.d_model + 2 * i + rank + 2 * s + i),
        "mixer.conv": short_conv.activations(cfg, T, a, i),
        "mixer.core": T * (3 * F * i + copies),
        "mixer.states": F * math.ceil(T / 16) * i * s,
        "mixer.activation": a * T * i,
    }


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """x; what the input and the selecting projection give; the convolution's result; dt; a
    state for each 16 tokens; o and the gated sum; A with and without its sign, once for all sequences."""
    i, s, rank = inner_width(cfg), int(cfg.options.ssm_state), int(cfg.options.dt_rank)
    return {
        "mixer.projections": a * T * (cfg.d_model + 2 * i + rank + 2 * s + i),
        "mixer.conv": short_conv.by_kernels(cfg, T, a, i),
        "mixer.steps": F * T * i,
        "mixer.core": a * T * i + 2 * F * i * s / B,
        "mixer.states": F * math.ceil(T / (SELECTIVE_SCAN.rows * SELECTIVE_SCAN.stored)) * i * s,
    }


def temporaries(cfg: ModelConfig, tokens: float, a: int) -> float:
    """Gradients of what the scan reads, of each block of channels by itself, fp32, and the states it goes through."""
    i, s = inner_width(cfg), int(cfg.options.ssm_state)
    return tokens * ((2 * a + F) * i + 2 * F * s * math.ceil(i / 32))


ENTRY = Entry(
    matrices=matrices,
    vectors=vectors,
    core=core,
    excess=excess,
    has_mlp=False,
    state=lambda cfg, n: (
        {"state": inner_width(cfg) * int(cfg.options.ssm_state)} | short_conv.window(cfg, inner_width(cfg))
    ),
    rounded=lambda cfg: short_conv.weights(cfg, inner_width(cfg)),
    memory=Memory(
        activations,
        by_kernels,
        temporaries=temporaries,
        autocast_copies=lambda cfg: ("mixer.select", "mixer.step"),
    ),
    times=Times(host_ms=None, replayed=None, core=(3.4, 9.8, 5.8, 0.12)),
)
