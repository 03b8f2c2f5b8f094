"""The costs of LLaMA: softmax attention with rotary positions. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig

from ..activations import F
from ..appendix import projections
from ..entry import Entry, Lines, Memory, Times, square


def core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """q k^T and A v over the full T x T square, 4 T^2 d, by halves: the masked one is what no causal model needs."""
    half = 2.0 * context * context * cfg.d_model
    return {"mixer.softmax": half, "mixer.softmax.masked": half}


def appendix(cfg: ModelConfig, n: int) -> Lines:
    """8nd^2 + 4n^2d + 3n^2h + 4nd, over n. The square stands in two halves, as the causal count has one."""
    d = float(cfg.d_model)
    half = 2.0 * n * d
    softmax = {"mixer.softmax": half, "mixer.softmax.masked": half, "mixer.softmax.exp": 3.0 * n * cfg.n_heads}
    return projections(cfg, "q", "k", "v", "o") | softmax | {"mixer.rope": 4 * d}


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    """In bytes: x; rotated q and k, v, the output and the log-sum of each row."""
    return {
        "mixer.projections": a * T * cfg.d_model,
        "mixer.core": T * (4 * a * cfg.d_model + F * cfg.n_heads),
    }


def rotary(cfg: ModelConfig, T: int, a: int, sequences: int, kernels: bool) -> Lines:
    """Bytes of the cosines and sines of p/2 angles at all positions, which all layers share."""
    return {"rotary": F * T * cfg.head_dim}


ENTRY = Entry(
    matrices=lambda cfg: square(cfg, "q", "k", "v", "o"),
    core=core,
    paper=lambda cfg, n: 1 + n / (6 * cfg.d_model) + 5 / (18 * cfg.d_model),
    state=lambda cfg, n: {"cache": 2 * n * cfg.d_model},
    appendix=appendix,
    memory=Memory(activations, once=rotary, mlp_tensors=4),
    times=Times(host_ms=(10.2, 3.15), replayed=(0.168, 0.217, 0.0533, 0.0046, 1.62, 1.11), core=(3.1, 0.0, 5.6, 0.68)),
)
