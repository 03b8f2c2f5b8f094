"""The matrices of RetNet's mixer. Imports no torch."""

from __future__ import annotations

from typing import Any


def values(config: Any) -> int:
    """Channels of all heads' values. config: d_model, n_heads and options, here and below."""
    return int(config.options.expand_v * config.d_model)


def matrices(config: Any) -> dict[str, int]:
    """A layer's weight matrices: to q, k, v and the output gate, and from the values."""
    d, wide = config.d_model, values(config)
    return {"mixer.q": d * d, "mixer.k": d * d, "mixer.v": d * wide, "mixer.g": d * wide, "mixer.o": wide * d}
