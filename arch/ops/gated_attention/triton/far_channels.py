"""Channels of a chunk of `gated_attention` that are not referred to its middle, for their decays are too strong.

Their references are the chunk's start (q) and its end (k). Exponents are sums outward from the two, each of its own
terms alone: a difference of two sums keeps the rounding of what both hold, 1e-5 of a result where that is a reset.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import gates_of, load_gates, matrix, power, row_sums, silu, store_rows


@triton.jit
def some_far(decays, bh, columns, first, last, N, DK: tl.constexpr, MOST: tl.constexpr):
    """Whether one of the channels `columns` is not referred to the middle, in the chunks from `first` to before `last`,
    which are at most MOST."""
    chunks = first + tl.arange(0, MOST)
    through = decays + bh * N * 3 * DK + 2 * DK + columns[None, :]
    found = tl.load(through + chunks[:, None] * 3 * DK, mask=chunks[:, None] < last, other=0.0)
    return tl.min(tl.min(found, 1), 0) < 0


@triton.jit
def chunk_tile(q, key, gate, bound, cut, inside, S, head, k0, C: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr,
               LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, FAST: tl.constexpr,
               SILU: tl.constexpr):  # fmt: skip
    """q, k and log2 f of BK channels from k0 on, fp32 [C, BK]; pointers are the chunk's, rows lie S apart; with SILU
    q's silu."""
    columns = k0 + tl.arange(0, BK)
    offsets = tl.arange(0, C)[:, None] * S + columns[None, :]
    lower = tl.zeros([1, BK], tl.float32)
    if LOGITS:
        lower = tl.load(bound + head * DK + columns)[None, :]
    log_f, k = gates_of(
        load_gates(gate, offsets, inside[:, None], LOGITS).to(tl.float32), lower, cut, LOGITS, RESET, FAST
    )
    if KEY:
        k = tl.load(key + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
    query = tl.load(q + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
    if SILU:
        query, _ = silu(query, FAST)
    return query, k, log_f


@triton.jit
def half_sums(log_f, later, AXIS: tl.constexpr):
    """Sums over a chunk's earlier rows and over those that are `later`, neither of them as what the other leaves."""
    return tl.sum(tl.where(later, 0.0, log_f), AXIS), tl.sum(tl.where(later, log_f, 0.0), AXIS)


@triton.jit
def outward(inner, outer, early, late, later, near):
    """log2 of the decays from q's reference to every row, and from every row to k's; channels that are `near` have the
    chunk's middle as both.

    inner: sums from the middle to a row, with -1 before it; outer: from the nearer end of the chunk, the first half's
    with the row itself (table's matrices 4 and 6); early, late: of `half_sums`, [1, BK] beside tiles [C, BK].
    """
    until, after = tl.where(later, early + inner, outer), tl.where(later, outer, late - inner)
    return tl.where(near, inner, until), tl.where(near, -inner, after)


@triton.jit
def far_operands(
    q, key, gate, bound, reset, table, queries, keys, decays, T, H, N, S,
    C: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr, PART: tl.constexpr, LOGITS: tl.constexpr, KEY: tl.constexpr,
    RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """What `gated_operands` writes, of a tile some of whose channels are not referred to the middle, PART of them at a
    time. Everything is loaded again: what it kept would cost the other tiles registers."""
    bh, chunk = tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    inside = chunk * C + rows < T
    token = batch * T + chunk * C
    first, given = (token * H + head) * DK, token * S + head * DK
    later = rows[:, None] >= C // 2
    cut = inside[:, None]
    if RESET:
        cut = tl.load(reset + token + rows, mask=inside, other=0)[:, None] != 0
    for k0 in range(tl.program_id(0) * BK, (tl.program_id(0) + 1) * BK, PART):
        query, k, log_f = chunk_tile(
            q + given, key + given, gate + given, bound, cut, inside, S, head, k0, C, DK, PART, LOGITS, KEY, RESET,
            FAST, SILU,
        )  # fmt: skip
        early, late = half_sums(log_f, later, 0)
        near = tl.load(decays + (bh * N + chunk) * 3 * DK + 2 * DK + k0 + tl.arange(0, PART)) == 0
        until, after = outward(
            row_sums(matrix(table, 4, C), log_f, EXACT), row_sums(matrix(table, 6, C), log_f, EXACT),
            early[None, :], late[None, :], later, near[None, :],
        )  # fmt: skip
        store_rows(queries + first, query * power(until, FAST), rows, inside, H * DK, k0, PART)
        store_rows(keys + first, k * power(after, FAST), rows, inside, H * DK, k0, PART)
