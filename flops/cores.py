"""Matrix products of the sequence operations: one layer's, for one sequence of T tokens. Imports no torch.

FLOP counts are floats, two for each multiply-add, of the chunk forms in arch/ops, which the tests hold against torch's
FLOP counter. Names as in entry.py. The *_core functions give the forward pass. The backward pass has two products for
each of them but for what the *_excess functions give: products more (or, negative, fewer) than twice the forward's.
README.md derives each.
"""

from __future__ import annotations

from arch.config import ModelConfig


def chunks(context: int, size: int) -> list[tuple[int, int]]:
    """(rows, how many) of the whole chunks of a sequence and of the shorter one left over, as arch/ops cuts it."""
    return [(rows, count) for rows, count in ((size, context // size), (context % size, 1)) if rows and count]


def power_of_two(rows: int) -> int:
    """The next power of two from `rows` up."""
    return 1 << (rows - 1).bit_length()


def unread(parts: list[tuple[int, int]]) -> tuple[int, int]:
    """Rows whose state products have no gradient in the backward pass: (of reads q S, one product each for S, which is
    a constant 0 before the first chunk; of updates k^T v, two products each, counted twice, as no later chunk reads the
    last one).

    A part, `chunks`, is one product: a gradient that one of its chunks needs is computed for all of them.
    """
    reads = updates = 0
    for index, (rows, count) in enumerate(parts):
        reads += rows * count if index == 0 and count == 1 else 0
        updates += 2 * rows * count if index == len(parts) - 1 and count == 1 else 0
    return reads, updates


def decay_core(cfg: ModelConfig, context: int, key_dim: int, value_dim: int | None = None) -> dict[str, float]:
    """decay_attention in chunks. A chunk of C rows and a head have, with keys k wide and values p wide (default: d/h):

    inside the chunk q k^T 2CCk and (q k^T) v 2CCp; through the state q S 2Ckp and k^T v 2Ckp.
    """
    k, p, inside, state = float(key_dim), float(value_dim or cfg.head_dim), 0.0, 0.0
    for rows, count in chunks(context, cfg.chunk_size):
        inside += cfg.n_heads * count * 2.0 * rows * rows * (k + p)
        state += cfg.n_heads * count * 4.0 * rows * k * p
    return {"mixer.inside": inside, "mixer.state": state}


def decay_excess(cfg: ModelConfig, context: int, key_dim: int, value_dim: int | None = None) -> dict[str, float]:
    product = 2.0 * cfg.n_heads * key_dim * (value_dim or cfg.head_dim)
    reads, updates = unread(chunks(context, cfg.chunk_size))
    return {"mixer.state.unread": -product * (reads + updates)}


def gated_core(cfg: ModelConfig, context: int, key_dim: int | None = None) -> dict[str, float]:
    """gated_attention in chunks, the scores by halves; values are p wide, keys k (default: as wide).

    The scores of a chunk of C rows come from blocks of m = 1, 2, 4 .. C/2 rows: at each level C/2m products of m late
    queries with m early keys, 2mmk each, so Cmk a level and C(C-1)k in all (the diagonal is an element-wise product).
    Then scores v 2CCp, q S 2Ckp and k^T v 2Ckp. A shorter last chunk is filled up to a power of two.
    """
    p, h = float(cfg.head_dim), float(cfg.n_heads)
    k = float(key_dim or p)
    inside = state = padding = 0.0
    for size, count in chunks(context, cfg.chunk_size):
        rows = power_of_two(size)
        each = (rows - 1.0) * k + 2.0 * rows * p
        inside += h * count * size * each
        state += h * count * 4.0 * size * k * p
        padding += h * count * (rows - size) * (each + 4.0 * k * p)
    return {"mixer.inside": inside, "mixer.state": state, "mixer.padding": padding}


def gated_excess(cfg: ModelConfig, context: int, key_dim: int | None = None) -> dict[str, float]:
    parts = [(power_of_two(rows), count) for rows, count in chunks(context, cfg.chunk_size)]
    reads, updates = unread(parts)
    product = 2.0 * cfg.n_heads * (key_dim or cfg.head_dim) * cfg.head_dim
    return {"mixer.state.unread": -product * (reads + updates)}


def delta_core(cfg: ModelConfig, context: int, key_dim: int, value_dim: int, by_channel: bool) -> dict[str, float]:
    """gated_delta in chunks. A chunk of C rows and a head have, with keys k wide and values p wide:

    inside the chunk the scores q k^T and k k^T, 4CCk, by channel 2C(C-1)k as in `gated_core`, and those of q with the
    rows written 2CCp; a triangular solve for k + p columns, C(C-1) each; W S, q S and k^T U, 2Ckp each. By channel a
    shorter last chunk is filled up to a power of two.
    """
    k, p = float(key_dim), float(value_dim)
    lines = dict.fromkeys(("mixer.inside", "mixer.solve", "mixer.state"), 0.0)
    for rows, count in delta_chunks(cfg, context, by_channel):
        each = cfg.n_heads * count * rows
        lines["mixer.inside"] += each * ((2 * (rows - 1) if by_channel else 4 * rows) * k + 2 * rows * p)
        lines["mixer.solve"] += each * (rows - 1) * (k + p)
        lines["mixer.state"] += each * 6 * k * p
    return lines


def delta_chunks(cfg: ModelConfig, context: int, by_channel: bool) -> list[tuple[int, int]]:
    """The `chunks` that gated_delta computes."""
    parts = chunks(context, cfg.chunk_size)
    return [(power_of_two(rows), count) for rows, count in parts] if by_channel else parts


def delta_excess(cfg: ModelConfig, context: int, key_dim: int, value_dim: int, by_channel: bool) -> dict[str, float]:
    """The solve's gradient is a solve and a product of the whole square. The products with the state are chunk by chunk
    (q S aside): the first W S has no gradient of S, the last k^T U none at all."""
    parts = delta_chunks(cfg, context, by_channel)
    square = sum(cfg.n_heads * count * rows * (rows + 1.0) * (key_dim + value_dim) for rows, count in parts)
    unneeded = parts[0][0] + 2 * parts[-1][0] + unread(parts)[0]
    return {
        "mixer.solve.masked": square,
        "mixer.state.unread": -2.0 * cfg.n_heads * key_dim * value_dim * unneeded,
    }
