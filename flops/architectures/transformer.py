"""The costs of the transformer of today: softmax attention with grouped queries, of all tokens or a window. Imports no
torch."""

from __future__ import annotations

from arch.architectures.transformer.shape import blocks, kv_width, matrices
from arch.config import ModelConfig

from .. import by_kernels as kernels
from ..activations import F, norm
from ..entry import Entry, Lines, Memory, norm_size
from . import llama


def core(cfg: ModelConfig, context: int) -> Lines:
    """q k^T and A v, 4 d for each pair of tokens: the W T - W^2 / 2 that a causal model with a window of W tokens needs
    (without one half of the square), and the others of the square, or of the blocks, that are computed."""
    window = min(int(cfg.options.window) or context, context)
    needed = window * context - window * window / 2
    count = blocks(int(cfg.options.window), context)
    computed = 2 * count * window * window if count else context * context
    return {
        "mixer.softmax": 4.0 * cfg.d_model * needed,
        "mixer.softmax.masked": 4.0 * cfg.d_model * (computed - needed),
    }


def state(cfg: ModelConfig, n: int) -> dict[str, int]:
    window = int(cfg.options.window)
    return {"cache": 2 * kv_width(cfg) * (min(n, window - 1) if window else n)}


def kept(cfg: ModelConfig, T: int, a: int) -> Lines:
    """Bytes but for the norms: x; q, k, v, the output and the log-sum of each row; with a window those of blocks and
    their masks, keys and values repeated for their queries; the gate and its product."""
    d, window = cfg.d_model, int(cfg.options.window)
    count, masked = blocks(window, T), bool(window) and window < T
    rows, keys = (count * window, 2 * count * window) if count else (T, T)
    lines = {"mixer.projections": a * T * d * (3.0 if cfg.options.attention_gate else 1.0)}
    lines["mixer.core"] = a * 2 * (rows * d + keys * (d if masked else kv_width(cfg))) + F * rows * cfg.n_heads
    sliced = 0 if cfg.options.attention_gate else T * d  # the blocks' output, without what fills up the last one
    return lines | ({"mixer.blocks": a * (sliced + 2 * window * rows)} if count else {})


def square_mask(cfg: ModelConfig, T: int, kernels: bool) -> float:
    """Bytes of the mask of a window that is not cut into blocks."""
    window = int(cfg.options.window)
    return F * T * T if window and window < T and not blocks(window, T) else 0.0


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    heads = (cfg.n_heads + int(cfg.options.n_kv_heads)) * cfg.options.qk_norm
    return kept(cfg, T, a) | {"mixer.norm": T * heads * norm(cfg, cfg.head_dim)}


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    heads = (cfg.n_heads + int(cfg.options.n_kv_heads)) * cfg.options.qk_norm
    return kept(cfg, T, a) | {"mixer.norm": T * heads * kernels.norm(cfg, cfg.head_dim, a)}


def rotary(cfg: ModelConfig, T: int, a: int, sequences: int, by_kernels: bool) -> Lines:
    """As LLaMA's."""
    return llama.rotary(cfg, T, a, sequences, by_kernels) if cfg.options.position == "rotary" else {}


ENTRY = Entry(
    matrices=matrices,
    vectors=lambda cfg: {"mixer.norm": 2 * norm_size(cfg, cfg.head_dim) if cfg.options.qk_norm else 0},
    core=core,
    state=state,
    memory=Memory(activations, by_kernels, shared=square_mask, once=rotary, mlp_tensors=4),
)
