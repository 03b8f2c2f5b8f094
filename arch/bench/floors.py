"""The least time each case of `python -m arch.bench` could take on an H200, by its bytes and by its matrix products.

The two bounds of a roofline. Bytes: every activation is read or written once, at the speed of a copy. Products: those
of the chunk backend with chunks of 64 rows, as torch's FLOP counter counts them (softmax: the causal half of them), at
the nominal bf16 peak. Exponentials and sums are in neither.
"""

from __future__ import annotations

from collections.abc import Callable

COPY = 4.27e12  # bytes/s of a device-to-device copy, measured
PEAK = 989e12  # FLOP/s, dense
CHUNK = 64
Products = Callable[..., tuple[float, float]]  # of (B, T, H, D): FLOP of the forward, and of forward and backward


def none(batch: int, length: int, heads: int, width: int) -> tuple[float, float]:
    return 0.0, 0.0


def softmax(batch: int, length: int, heads: int, width: int) -> tuple[float, float]:
    """Two products forward, and five backward, which computes the scores again."""
    forward = 2.0 * batch * heads * length * length * width
    return forward, 3.5 * forward


def decayed(times: int = 1, keys: int | None = None) -> Products:
    """Of `decay_attention` with keys so wide, or so many times as wide as values: q k^T, scores v, q S and k^T v."""

    def products(batch: int, length: int, heads: int, width: int) -> tuple[float, float]:
        wide = keys or times * width
        forward = batch * length * heads * (2.0 * CHUNK * (wide + width) + 4 * wide * width)
        return forward, 3 * forward

    return products


def gated(batch: int, length: int, heads: int, width: int) -> tuple[float, float]:
    """Of `gated_attention`: the scores by halves, scores v, q S and k^T v."""
    forward = batch * length * heads * ((CHUNK - 1.0) * width + 2 * CHUNK * width + 4 * width * width)
    return forward, 3 * forward


def delta(by_channel: bool = False) -> Products:
    """Of `gated_delta`: q k^T and k k^T, by channel by halves, scores of the rows written, W S, q S and k^T U; not the
    solve, whose gradient is a product of the whole square. The first state has no gradient, the last no reader."""

    def products(batch: int, length: int, heads: int, width: int) -> tuple[float, float]:
        tokens, state = batch * length * heads, batch * heads * CHUNK * width * width
        scores = 2.0 * (CHUNK - 1) if by_channel else 4.0 * CHUNK
        forward = tokens * ((scores + 2 * CHUNK) * width + 6 * width * width)
        return forward, 3 * forward + tokens * 4 * CHUNK * width - 6 * state

    return products


def selective(states: int) -> Products:
    """Of `selective_scan`: a sum over states; backward the gradients of C, B and dt x."""

    def products(batch: int, length: int, heads: int, width: int) -> tuple[float, float]:
        forward = 2.0 * batch * length * states * heads * width
        return forward, 4 * forward

    return products


def filtered(batch: int, length: int, heads: int, width: int) -> tuple[float, float]:
    """Of `causal_filter` with `width` poles: its own matrix, then by chunk update and reading of the states and the
    product inside, which alone has two operands with gradients."""
    channels = heads * width
    matrix, states = 2.0 * channels * CHUNK * width, 4.0 * CHUNK * width
    chunks = batch * length / CHUNK * channels
    forward = matrix + chunks * (states + 2 * CHUNK * CHUNK)
    return forward, forward + matrix + chunks * (states + 4 * CHUNK * CHUNK)


def floors(activations: tuple[float, float], products: Products, shape: tuple[int, ...]) -> dict[str, float]:
    """ms by bytes (`floor_*`) and by products (`matrix_*`), forward and forward + backward, at shape B, T, H, D."""
    batch, length, heads, width = shape
    moved = [count * 2 * batch * length * heads * width for count in activations]
    row = {}
    for name, size, flop in zip(("forward", "both"), moved, products(*shape), strict=True):
        row[f"floor_{name}_ms"] = round(1e3 * size / COPY, 4)
        row[f"matrix_{name}_ms"] = round(1e3 * flop / PEAK, 4)
    return row
