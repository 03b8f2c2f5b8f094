"""Channels of a chunk of `gated_attention` that are not referred to its middle, for their decays are too strong.

Their references are the chunk's start (q) and its end (k). Exponents are sums outward from the two, each of its own
terms alone: a difference of two sums keeps the rounding of what both hold, 1e-5 of a result where that is a reset.

The gradients of pairs of two rows of a chunk have references of their own, by the tile's way: the chunk's middle
(WHOLE, which needs none of this), the middles of its halves (HALVES), or at every level of halving the middle of a
block (ANY).
Scores (`add_scores`) choose between the latter two for themselves, by the rows that they are made of.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import gates_of, load_gates, matrix, power, product, row_sums, silu, store_rows

REACH = tl.constexpr(
    -80.0
)  # log2 of the strongest decay between a row and a reference that is not behind all its pairs

WHOLE, HALVES, ANY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def some_tile(ways, bh, first, last, N, WAY: tl.constexpr, TILES: tl.constexpr, COUNT: tl.constexpr,
              MOST: tl.constexpr):  # fmt: skip
    """Whether one of COUNT tiles, of the chunks from `first` to before `last`, at most MOST, is of this way or a later
    one. ways: of `gated_operands`, from the first of these tiles on."""
    chunks, tiles = first + tl.arange(0, MOST)[:, None], tl.arange(0, COUNT)[None, :]
    found = tl.load(ways + (bh * N + chunks) * TILES + tiles, mask=chunks < last, other=0)
    return tl.max(tl.max(found, 1), 0) >= WAY


@triton.jit
def way_of(inner, outer, C: tl.constexpr):
    """The way of channels of which some are not referred to the chunk's middle; inner, outer: of `outward`, [C, BK]."""
    rows = tl.arange(0, C)[:, None]
    # in these two rows they are the sums over the four quarters of the chunk
    ends = (rows == C // 4 - 1) | (rows == C - C // 4 - 1)
    quarters = tl.where(ends, tl.minimum(-tl.abs(inner), outer), 0.0)
    return tl.where(tl.min(tl.min(quarters, 1), 0) > REACH, HALVES, ANY)


@triton.jit
def add_scores(
    score, query, k, log_f, table, C: tl.constexpr, LEVELS: tl.constexpr, MIDDLE: tl.constexpr, EXACT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """score [C, C] and, on and below its diagonal, those of channels with any decay; query, k, log_f [C, channels].

    Pairs of a row in the later half of the chunk with one in the earlier half: both are referred to its middle, factors
    of at most 1; one operand, the later rows' q and the earlier rows' k, times itself gives all of them. Pairs of two
    rows of one half: to the middle of that where it is within reach of all rows, else by halves of halves, and so on.
    """
    rows = tl.arange(0, C)
    row, column = rows[:, None], rows[None, :]
    score += tl.where(row == column, tl.sum(query * k, 1)[:, None], 0.0)
    lowest = 0
    if MIDDLE:
        inner = row_sums(matrix(table, 7, C), log_f, EXACT)
        if tl.max(tl.max(tl.abs(inner), 1), 0) < -REACH:
            pairs = product(query * power(inner, FAST), tl.trans(k * power(-inner, FAST)), EXACT)
            score += tl.where(((row >= C // 2) == (column >= C // 2)) & (column < row), pairs, 0.0)
            lowest = LEVELS - 1
    for size in tl.range(lowest, LEVELS, disable_licm=True):
        late = ((row >> size) & 1) == 1
        y = tl.where(late, query, k) * power(row_sums(matrix(table, 8 + size, C), log_f, EXACT), FAST)
        pairs = ((row >> size) ^ (column >> size)) == 1
        score += tl.where(pairs, product(y, tl.trans(y), EXACT), 0.0)
    return score


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
    time; and the tile's way. Everything is loaded again: what it kept would cost the other tiles registers."""
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
    way = HALVES
    for k0 in tl.range(tl.program_id(0) * BK, (tl.program_id(0) + 1) * BK, PART, disable_licm=True):
        query, k, log_f = chunk_tile(
            q + given, key + given, gate + given, bound, cut, inside, S, head, k0, C, DK, PART, LOGITS, KEY, RESET,
            FAST, SILU,
        )  # fmt: skip
        early, late = half_sums(log_f, later, 0)
        near = tl.load(decays + (bh * N + chunk) * 3 * DK + 2 * DK + k0 + tl.arange(0, PART)) == 0
        inner, outer = row_sums(matrix(table, 4, C), log_f, EXACT), row_sums(matrix(table, 6, C), log_f, EXACT)
        until, after = outward(inner, outer, early[None, :], late[None, :], later, near[None, :])
        way = tl.maximum(way, way_of(inner, outer, C))
        store_rows(queries + first, query * power(until, FAST), rows, inside, H * DK, k0, PART)
        store_rows(keys + first, k * power(after, FAST), rows, inside, H * DK, k0, PART)
    return way
