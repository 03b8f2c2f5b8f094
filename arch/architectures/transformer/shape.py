"""The matrices of softmax attention, and the pairs of tokens that it computes. Imports no torch."""

from __future__ import annotations

from typing import Any


def kv_width(config: Any) -> int:
    """Channels of all heads of keys, and of values. config: d_model, n_heads and options."""
    return int(config.d_model // config.n_heads * config.options.n_kv_heads)


def projections(config: Any) -> dict[str, int]:
    """The widths of the projections of x."""
    widths = {"query": config.d_model, "key": kv_width(config), "value": kv_width(config)}
    return widths | ({"gate": config.d_model} if config.options.attention_gate else {})


def matrices(config: Any) -> dict[str, int]:
    """A layer's weight matrices: to q, k, v and the gate, and from the values."""
    sizes = {f"mixer.{name[0]}": config.d_model * width for name, width in projections(config).items()}
    return sizes | {"mixer.o": config.d_model**2}


def blocks(window: int, length: int) -> int:
    """Into how many blocks of `window` queries a sequence is cut, each of which reads its own keys and the block
    before; 0 where one block of all, with a mask, has no more pairs."""
    count = -(-length // window) if window else 0
    return count if 2 * window * window * count < length * length else 0
