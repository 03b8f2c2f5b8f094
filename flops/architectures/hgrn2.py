"""The costs of HGRN2: gated linear attention, keys tied to the forget gates. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD

from .. import by_kernels as kernels
from ..activations import F, gated_chunks, norm
from ..appendix import linear_attention, projections
from ..cores import gated_core, gated_excess
from ..entry import Entry, Lines, Memory, Times, norm_size, square
from ..hgrn_gates import forget, lower_bound


def matrices(cfg: ModelConfig) -> dict[str, int]:
    used = {"q": cfg.options.output_gate, "f": cfg.options.gates_forget, "k": cfg.options.input_gate == "own"}
    return square(cfg, *(name for name, is_used in used.items() if is_used), "v", "o")


def appendix(cfg: ModelConfig, n: int) -> Lines:
    """8nd^2 + 4nd^2/h + nd^2/(Bh) + 4nBd + nBh + 5nd, over n."""
    return projections(cfg, "q", "f", "v", "o") | linear_attention(cfg, 1) | {"mixer.forget": 4.0 * cfg.d_model}


def appendix_once(cfg: ModelConfig, n: int, sequences: int) -> Lines:
    """The softmax over layers is done once a step, whatever the batch: 12dl in training, without b and n."""
    return {"lower_bound.softmax": 4.0 * cfg.d_model * cfg.n_layers / (n * sequences)}


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    """q before silu; the gates; the chunk form."""
    d = cfg.d_model
    own = a * T * d if cfg.options.input_gate == "own" else 0.0
    return gated_chunks(cfg, T, d, d) | {
        "mixer.norm": T * norm(cfg, d),
        "mixer.projections": 2 * a * T * d + own,
        "mixer.activation": a * T * d if cfg.options.output_gate else 0.0,
        "mixer.gates": T * forget(cfg, d, cfg.options.input_gate == "tied"),
    }


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """q before its silu, the gates' logits, v (and k) as operands, q and k with their decays; o and Norm(o)."""
    d, h, p = cfg.d_model, cfg.n_heads, kernels.padded(cfg.head_dim)
    lines = {"mixer.norm": T * kernels.norm(cfg, d, a), "mixer.projections": 2 * a * T * d}
    if p > WIDEST_HEAD:
        return activations(cfg, T, a) | {"mixer.norm": lines["mixer.norm"]}
    own, filled = cfg.options.input_gate == "own", p != cfg.head_dim
    # what replaces q or k by ones has the stream's dtype, and all operands the widest one
    wide = F if kernels.stream(cfg, a) == F and (not cfg.options.output_gate or cfg.options.input_gate == "none") else a
    lines["mixer.projections"] += a * T * d if own and (filled or wide > a) else 0.0  # its sigmoid
    constant = not cfg.options.gates_forget  # log f of one token, copied to all only where heads are filled up
    gates = (F if constant else a) * T * h * p if filled or not constant else 0.0
    core = wide * T * h * p * (4 + (cfg.options.input_gate != "tied"))
    return lines | kernels.gated(cfg, T, wide, p, p) | {"mixer.gates": gates, "mixer.core": core}


ENTRY = Entry(
    matrices=matrices,
    vectors=lambda cfg: {"mixer.norm": norm_size(cfg)},
    core=gated_core,
    excess=gated_excess,
    once=lambda cfg: lower_bound(cfg, cfg.d_model),
    once_fp32=lambda cfg: sum(lower_bound(cfg, cfg.d_model).values()),
    paper=lambda cfg, n: 1 + 1 / (3 * cfg.n_heads) + 29 / (72 * cfg.d_model),
    state=lambda cfg, n: {"state": cfg.head_dim * cfg.d_model},
    appendix=appendix,
    appendix_once=appendix_once,
    memory=Memory(activations, by_kernels),
    times=Times(host_ms=(9.0, 4.56), replayed=(0.954, 0.0604, 0.0249, 0.0020, 20.0, 1.31), core=(0.0, 3.7, 4.6, 0.52)),
)
