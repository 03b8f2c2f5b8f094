"""The matrices of DeltaNet's, Gated DeltaNet's and Kimi Delta's mixers. Imports no torch."""

from __future__ import annotations

from typing import Any


def keys(config: Any) -> int:
    """Channels of all heads' keys. config: d_model, n_heads and options, here and below."""
    return int(config.n_heads * config.options.key_dim)


def values(config: Any) -> int:
    """Channels of all heads' values."""
    return int(config.options.expand_v * keys(config))


def convolved(config: Any) -> int:
    """Channels of the convolution: q, k and v."""
    return 2 * keys(config) + values(config)


def deltanet(config: Any) -> dict[str, int]:
    """A layer's weight matrices: to q, k, v and beta, and from the values."""
    width = convolved(config) + config.n_heads
    return {"mixer.in": config.d_model * width, "mixer.o": values(config) * config.d_model}


def gated_deltanet(config: Any) -> dict[str, int]:
    """A layer's weight matrices: to q, k, v, beta, decays and output gate, and from the values."""
    width = convolved(config) + 2 * config.n_heads + values(config)
    return {"mixer.in": config.d_model * width, "mixer.o": values(config) * config.d_model}


def kimi_delta(config: Any) -> dict[str, int]:
    """A layer's weight matrices: decays and output gate are of low rank."""
    rank = config.options.gate_rank
    return {
        "mixer.in": config.d_model * (convolved(config) + config.n_heads + 2 * rank),
        "mixer.decay": rank * keys(config),
        "mixer.gate": rank * values(config),
        "mixer.o": values(config) * config.d_model,
    }
