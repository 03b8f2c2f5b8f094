"""The costs of TNL: linear attention with a decay for each head, constant or of each token. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD

from .. import activations as plain
from .. import by_kernels as kernels
from ..appendix import linear_attention, low_rank_gate_lines, projections
from ..cores import decay_core, decay_excess
from ..entry import Entry, Lines, Memory, Times, low_rank_gate, norm_size, square


def appendix(cfg: ModelConfig, n: int) -> Lines:
    """8nd^2 + 4nd^2/h + nd^2/(Bh) + 4nBd + nBh + 4ntd + 2nd, over n."""
    return projections(cfg, "q", "k", "v", "o") | linear_attention(cfg, 1) | low_rank_gate_lines(cfg)


def depends(cfg: ModelConfig) -> bool:
    return bool(cfg.options.decay == "dependent")


def decays(cfg: ModelConfig) -> dict[str, int]:
    """W_a [d, h] of decays that depend on the data."""
    return {"mixer.decay": cfg.d_model * cfg.n_heads} if depends(cfg) else {}


def steps(cfg: ModelConfig, T: int, size: float) -> Lines:
    """What decays of each token keep, `size` bytes a head: their logarithm; in plain forms three numbers."""
    return {"mixer.steps": size * T * cfg.n_heads} if depends(cfg) else {}


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    """q, k (and v with value_activation) before their silu; the chunk form; the output gate."""
    d, before = cfg.d_model, 3 if cfg.options.value_activation else 2
    lines = plain.chunked(cfg, T, d, d, depends(cfg)) | plain.gated_output(cfg, T, a) | steps(cfg, T, 3 * plain.F)
    return lines | {"mixer.activation": a * T * before * d}


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """q, k (and v with value_activation) before their silu, and behind it as operands; the output gate. Kernels take
    q and k before it, with their heads filled up."""
    p, fades = kernels.padded(cfg.head_dim), cfg.options.decay != "none"
    if p > WIDEST_HEAD:
        return activations(cfg, T, a) | kernels.gated_output(cfg, T, a)
    return kernels.decay(cfg, T, a, B, p, p, fades) | kernels.gated_output(cfg, T, a) | steps(cfg, T, plain.F) | {
        "mixer.activation": a * T * (2 * cfg.n_heads * p + (cfg.d_model if cfg.options.value_activation else 0)),
        "mixer.core": 3 * a * T * cfg.n_heads * p,
    }  # fmt: skip


ENTRY = Entry(
    matrices=lambda cfg: square(cfg, "q", "k", "v", "o") | low_rank_gate(cfg) | decays(cfg),
    vectors=lambda cfg: {"mixer.norm": norm_size(cfg)},
    core=lambda cfg, n: decay_core(cfg, n, cfg.head_dim),
    excess=lambda cfg, n: decay_excess(cfg, n, cfg.head_dim),
    paper=lambda cfg, n: 1 + 1 / (2 * cfg.n_heads) + 5 / (18 * cfg.d_model),
    state=lambda cfg, n: {"state": cfg.head_dim * cfg.d_model},
    appendix=appendix,
    memory=Memory(activations, by_kernels),
    times=Times(host_ms=(8.1, 5.16), replayed=(0.673, 0.105, 0.0437, 0.0023, 6.28, 1.24), core=(4.7, 0.8, 1.9, 0.65)),
)
