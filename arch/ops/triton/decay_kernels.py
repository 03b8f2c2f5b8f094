"""The parts of `decay_attention`'s kernels: scalar decays inside a chunk, the doubling by angles, and the sum that a
segment of chunks adds to the state.

REVERSE goes backwards in time, from the gradient of the last state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import LOG2E, LOWEST, TWO_PI, block_offsets, cos_sin, load_rows, power, product

ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: a number added to it and taken from it is rounded to a whole one


@triton.jit(do_not_specialize=["T", "N"])
def decay_rows(
    decay, table, T, H, N, C: tl.constexpr, PER_STEP: tl.constexpr,
):  # fmt: skip
    """table [3, BH, N, C]: log2 of every row's decay, at least LOWEST, and their sums from the chunk's start to each
    row and behind each row to the chunk's end; 0 beyond T. decay: [B, T, H], or, not PER_STEP, [H]; natural logarithms.
    """
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = tl.arange(0, C)
    own = row_decays(decay, bh, chunk, 0, T, H, rows, C, PER_STEP)
    place = table + (bh * N + chunk) * C + rows
    size = tl.num_programs(0).to(tl.int64) * N * C
    tl.store(place, own)
    tl.store(place + size, tl.cumsum(own, 0))
    behind = row_decays(decay, bh, chunk, 1, T, H, rows, C, PER_STEP)
    tl.store(place + 2 * size, tl.cumsum(behind, 0, reverse=True))


@triton.jit
def row_decays(decay, bh, chunk, ahead, T, H, rows, C: tl.constexpr, PER_STEP: tl.constexpr):
    """log2 of the decays [C] of a chunk's rows, or of those `ahead` of them in the chunk; 0 beyond its end."""
    index = chunk * C + rows + ahead
    inside = (index < T) & (rows + ahead < C)
    if PER_STEP:
        own = tl.load(decay + (bh // H * T + index) * H + bh % H, mask=inside, other=0.0).to(tl.float32)
    else:
        own = tl.load(decay + bh % H).to(tl.float32)
    return tl.where(inside, tl.maximum(own * LOG2E, LOWEST), 0.0)


@triton.jit
def pair_decays(
    table, size, C: tl.constexpr, DECAY: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr
):  # fmt: skip
    """The decay between two rows [C, C]: from each down to the earlier ones (REVERSE: up to the later ones), else 0.

    table: of `decay_rows`, at the chunk; with EXACT sums outward from each row, else differences of two sums.
    """
    rows = tl.arange(0, C)
    if REVERSE:
        later, earlier = rows[None, :], rows[:, None]
    else:
        later, earlier = rows[:, None], rows[None, :]
    if not DECAY:
        return tl.where(earlier <= later, 1.0, 0.0)
    elif EXACT:
        row, column = rows[:, None], rows[None, :]
        sums = tl.cumsum(tl.where(column < row, tl.load(table + rows)[:, None], 0.0), 0)
        return tl.where(earlier <= later, power(tl.trans(sums) if REVERSE else sums, FAST), 0.0)
    else:
        down, across = tl.load(table + size + rows)[:, None], tl.load(table + size + rows)[None, :]
        if REVERSE:
            between = across - down
        else:
            between = down - across
        return power(tl.where(earlier <= later, between, -float("inf")), FAST)


@triton.jit
def load_columns(pointer, rows, inside, stride, first, WIDTH: tl.constexpr):
    """`load_rows`, transposed: [WIDTH, C]. A tile that is an operand of two products is loaded as both take it."""
    columns = first + tl.arange(0, WIDTH)
    return tl.load(pointer + columns[:, None] + rows[None, :] * stride, mask=inside[None, :], other=0.0)


@triton.jit
def anchored(x, inside):
    """x [C, BK], of rows `inside`. What is computed from it stays in the layout it was loaded in: this mask's origin,
    row numbers, keeps the compiler from computing x cos and x sin again for every product, in each of the threads that
    hold a copy of the operand."""
    return tl.where(inside[:, None], x, 0.0)


@triton.jit
def waves(positions, high, low, FAST: tl.constexpr):
    """Positions [C] as fp32 [C, 1], and the cosines and sines of their angles [C, BK].

    high + low is theta / 2 pi. Whole turns are dropped from their product with a position inside a fused multiply-add,
    before it is rounded: exact to 2^-20 at up to 2^22 turns.
    """
    position = positions.to(tl.float32)[:, None]
    whole = tl.fma(position, high[None, :], ROUNDER) - ROUNDER
    turn = tl.fma(position, low[None, :], tl.fma(position, high[None, :], -whole))
    cos, sin = cos_sin(turn * TWO_PI, FAST)
    return position, cos, sin


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def decay_sums(
    x, y, table, turn_high, turn_low, positions, sums, totals, T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DECAY: tl.constexpr,
    TURN: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """What each segment of PER_SEGMENT chunks alone adds to the state after it (REVERSE: to the gradient before it),
    sums [BH, SEGMENTS, d_k, DV], fp32, and the log2 of its whole decay, totals [BH, SEGMENTS].

    x: k (REVERSE: q) [B, T, G, DK]; y: v (dO) [B, T, H, DV]; with TURN, d_k is 2 DK. Of the segments but the one that
    comes last, whose sum nothing reads.
    """
    WIDE: tl.constexpr = 2 * DK if TURN else DK
    tile, bh = tl.program_id(0), tl.program_id(2).to(tl.int64)
    segment = tl.program_id(1) + (1 if REVERSE else 0)
    k0, v0 = tile % (DK // BK) * BK, tile // (WIDE // BK) * BV
    half = tile // (DK // BK) % (WIDE // DK)  # 1: the sines'
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    size = tl.num_programs(2).to(tl.int64) * N * C
    if TURN:
        channels = shared * DK + k0 + tl.arange(0, BK)
        high, low = tl.load(turn_high + channels), tl.load(turn_low + channels)
    state = tl.zeros([BK, BV], tl.float32)
    total = 0.0
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    if TURN:
        positions += batch * POSITION_STRIDE + rows
        chunk = last - 1 if REVERSE else first
        next_position = tl.load(positions + chunk * C, mask=rows < T - chunk * C, other=0)
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        inside = rows < T - chunk * C
        token = batch * T + chunk * C
        value = load_rows(y + (token * H + head) * DV, rows, inside, H * DV, v0, BV)
        if TURN:
            key = load_rows(x + (token * G + shared) * DK, rows, inside, G * DK, k0, BK)
            _, cos, sin = waves(next_position, high, low, FAST)
            ahead = tl.maximum(chunk - 1, 0) if REVERSE else chunk + 1
            next_position = tl.load(positions + ahead * C, mask=rows < T - ahead * C, other=0)
            key = tl.trans(anchored(key, inside) * tl.where(half == 0, cos, sin))
        else:
            key = load_columns(x + (token * G + shared) * DK, rows, inside, G * DK, k0, BK)
        if DECAY:
            decays = table + (bh * N + chunk) * C
            leave = tl.exp2(tl.load(decays + (1 if REVERSE else 2) * size + rows))
            whole = tl.load(decays + size + C - 1)
            value = value * leave[:, None]
            total += whole
            state = state * tl.exp2(whole)
        state += product(key, value, EXACT)
    tl.store(sums + (bh * SEGMENTS + segment) * WIDE * DV + block_offsets(half * DK + k0, v0, DV, BK, BV), state)
    if tile == 0:
        tl.store(totals + bh * SEGMENTS + segment, total)
