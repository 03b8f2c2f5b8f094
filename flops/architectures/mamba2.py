"""The costs of Mamba2: linear attention with decays per head and step, behind a convolution. Imports no torch."""

from __future__ import annotations

from arch.architectures.common.mamba_options import inner_width
from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD

from .. import by_kernels as kernels
from .. import short_conv
from ..activations import F, chunked, norm
from ..cores import decay_core, decay_excess
from ..entry import Entry, Lines, Memory, Times, norm_size


def convolved(cfg: ModelConfig) -> int:
    """Channels of the convolution: v, B and C."""
    return inner_width(cfg) + 2 * int(cfg.options.ssm_state)


def matrices(cfg: ModelConfig) -> dict[str, int]:
    inner = inner_width(cfg)
    return {
        "mixer.in": cfg.d_model * (2 * inner + 2 * int(cfg.options.ssm_state) + cfg.n_heads),
        "mixer.o": inner * cfg.d_model,
    }


def vectors(cfg: ModelConfig) -> dict[str, int]:
    """The convolution and the skip D are element-wise, O(d) a token, and count as no matrix product."""
    heads = dict.fromkeys(("mixer.A_log", "mixer.D", "mixer.dt_bias"), cfg.n_heads)
    conv = {"mixer.conv": short_conv.parameters(cfg, convolved(cfg))}
    return conv | heads | {"mixer.norm": norm_size(cfg, inner_width(cfg))}


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    """x; all that the input projection gives; the convolution, of whose result fp32 copies take the place; step sizes
    and decays; the chunk form with B and C for each head; v; o, silu(z), and Norm's input and output."""
    i, s, h = inner_width(cfg), int(cfg.options.ssm_state), cfg.n_heads
    copied = a != F
    return chunked(cfg, T, h * s, i, True) | {
        "mixer.norm": T * norm(cfg, i),
        "mixer.projections": a * T * (cfg.d_model + 2 * i + 2 * s + h + i),
        "mixer.conv": short_conv.activations(cfg, T, a, i + 2 * s) - copied * a * T * (i + 2 * s),
        "mixer.steps": 4 * F * T * h,
        "mixer.values": copied * F * T * i,
        "mixer.activation": 2 * a * T * i,
    }


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """x; all that the input projection gives; the convolution's result, of which v, B and C are parts, or what fills
    their heads up; step sizes, and decays with them; o and its gated norm."""
    i, s, h = inner_width(cfg), int(cfg.options.ssm_state), cfg.n_heads
    lines = {
        "mixer.norm": T * norm(cfg, i) if cfg.norm == "layer" else 0,
        "mixer.projections": a * T * (cfg.d_model + 2 * i + 2 * s + h + i),
        "mixer.conv": short_conv.by_kernels(cfg, T, a, i + 2 * s),
        "mixer.activation": a * T * i,
    }
    keys, values = kernels.padded(s), kernels.padded(i // h)
    if max(keys, values) > WIDEST_HEAD:
        lines["mixer.conv"] -= a * T * (i + 2 * s) if a != F else 0
        return activations(cfg, T, a) | lines
    filled = [width for width, given in ((2 * keys, keys == s), (h * values, h * values == i)) if not given]
    replaced = i + 2 * s if len(filled) == 2 else 0
    decays = kernels.decay(cfg, T, a, B, keys, values, True)
    return lines | decays | {
        "mixer.decays": decays["mixer.decays"] * 5 / 3,  # with the two parts of the gain
        "mixer.steps": F * T * h,
        "mixer.core": a * T * (sum(filled) - replaced),
    }  # fmt: skip


def temporaries(cfg: ModelConfig, tokens: float, a: int) -> float:
    """Gradients of what the operation reads, of each head by itself, fp32, and the states before chunks."""
    i, s, h = inner_width(cfg), int(cfg.options.ssm_state), cfg.n_heads
    return tokens * (3 * a * i + 2 * F * h * s + a * i * s / kernels.chunks_of(1, a)[0])


ENTRY = Entry(
    matrices=matrices,
    vectors=vectors,
    core=lambda cfg, n: decay_core(cfg, n, int(cfg.options.ssm_state), inner_width(cfg) // cfg.n_heads),
    excess=lambda cfg, n: decay_excess(cfg, n, int(cfg.options.ssm_state), inner_width(cfg) // cfg.n_heads),
    has_mlp=False,
    state=lambda cfg, n: (
        {"state": int(cfg.options.ssm_state) * inner_width(cfg)} | short_conv.window(cfg, convolved(cfg))
    ),
    rounded=lambda cfg: short_conv.weights(cfg, convolved(cfg)),
    memory=Memory(activations, by_kernels, temporaries=temporaries),
    times=Times(host_ms=None, replayed=None, core=(0.0, 0.0, 10.7, 0.42)),
)
