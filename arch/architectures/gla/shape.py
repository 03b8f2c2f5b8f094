"""The matrices of GLA's mixer. Imports no torch."""

from __future__ import annotations

from typing import Any


def keys(config: Any) -> int:
    """Channels of all heads' keys. config: d_model, n_heads and options, here and below."""
    return int(config.d_model // 2)


def matrices(config: Any) -> dict[str, int]:
    """A layer's weight matrices: to q, k, v, the output gate and the forget gate, and from the values."""
    d, narrow = config.d_model, keys(config)
    sizes = {"mixer.q": d * narrow, "mixer.k": d * narrow, "mixer.v": d * d, "mixer.g": d * d, "mixer.o": d * d}
    return sizes | {"mixer.forget": config.options.gate_rank * (d + narrow)}
