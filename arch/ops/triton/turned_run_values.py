"""The run of `decay_attention` with angles and without decays over values, for Hopper: outputs, and their gradient.

    out_i = sum over j <= i (REVERSE: j >= i) of (turned a_i . turned b_j) c_j

is the output for (a, b, c) = (q, k, v) and dv, backwards in time, for (k, q, dO). As in decay_plain.py the state stays
in registers, on its side. A chunk's cosines and sines are computed once, for a and b.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decay_plain import load_tile
from .tiles import product
from .turned_angles import doubled, turns, waves


@triton.jit
def state_block(first, tile, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, TILE: tl.constexpr):
    """Where the state on its side, [TILE, 2 BK] with the columns of `doubled`, lies in [2 DK, DV]."""
    columns = tl.arange(0, 2 * BK)
    rows = first + columns // 16 * 8 + columns % 8 + columns // 8 % 2 * DK
    return rows[None, :] * DV + (tile * TILE + tl.arange(0, TILE))[:, None]


@triton.jit
def state_before(
    initial, sums, block, segment, bh, size, SEGMENTS, START: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The first state and what the segments before (REVERSE: behind) add."""
    if START:
        state = tl.load(initial + bh * size + block)
    else:
        state = tl.zeros(block.shape, tl.float32)
    for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
        other = bh * SEGMENTS + (SEGMENTS - 1 - step if REVERSE else step)
        state += tl.load(sums + other * size + block)
    return state


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def turned_run_values(
    a, b, c, turn_high, turn_low, positions, initial, sums, out, final,
    T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, REVERSE: tl.constexpr,
    START: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One segment of PER_SEGMENT chunks, TILE columns of `out` [B, T, H, DV].

    a, b [B, T, G, DK], c [B, T, H, DV] and out are descriptors of [B, T, columns] in blocks of [1, C, DK / 2 or TILE].
    The state at the start is that of initial [BH, 2 DK, DV], cosines' rows first, and of the segments before, sums
    [BH, SEGMENTS, 2 DK, DV]; the last one is written to final [BH, 2 DK, DV]. The channels' halves take turns, so that
    few cosines are there at a time: each has its part of the state, and adds to scores and result.
    """
    HALF: tl.constexpr = DK // 2
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    shared = head // (H // G)
    rows = tl.arange(0, C)
    size = 2 * DK * DV
    near = state_block(0, tile, DK, DV, HALF, TILE)
    far = state_block(HALF, tile, DK, DV, HALF, TILE)
    upper = state_before(initial, sums, near, segment, bh, size, SEGMENTS, START, REVERSE)
    lower = state_before(initial, sums, far, segment, bh, size, SEGMENTS, START, REVERSE)
    places = positions + batch * POSITION_STRIDE
    if REVERSE:
        counted = rows[:, None] >= rows[None, :]
    else:
        counted = rows[:, None] <= rows[None, :]
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    row = (last - 1 if REVERSE else first) * C
    ahead = tl.load(places + row + rows, mask=rows < T - row, other=0)
    for step in tl.range(0, last - first):
        row = (last - 1 - step if REVERSE else first + step) * C
        x = load_tile(a, batch, row, shared * DK, C, HALF)
        y = load_tile(b, batch, row, shared * DK, C, HALF)
        value = tl.trans(load_tile(c, batch, row, head * DV + tile * TILE, C, TILE))
        position = ahead
        next_row = tl.maximum(row - C, 0) if REVERSE else row + C
        ahead = tl.load(places + next_row + rows, mask=rows < T - next_row, other=0)
        high, low = turns(turn_high, turn_low, shared * DK, 0, HALF)
        _, cos, sin = waves(position, high, low, FAST)
        x, y = doubled(x, cos, sin, EXACT), doubled(y, cos, sin, EXACT)
        result = product(upper, tl.trans(x), EXACT)
        # a condition that always holds: where the compiler sees a product's result go into another product, it lays all
        # warps along its rows, of which there are enough for half of them only
        if T > 0:
            score = product(y, tl.trans(x), EXACT)  # [j, i]
        else:
            score = tl.zeros([C, C], tl.float32)
        upper += product(value, y, EXACT)
        x_far = load_tile(a, batch, row, shared * DK + HALF, C, HALF)
        y_far = load_tile(b, batch, row, shared * DK + HALF, C, HALF)
        high, low = turns(turn_high, turn_low, shared * DK, HALF, HALF)
        _, cos, sin = waves(position, high, low, FAST)
        x, y = doubled(x_far, cos, sin, EXACT), doubled(y_far, cos, sin, EXACT)
        result += product(lower, tl.trans(x), EXACT)
        if T > 0:
            score += product(y, tl.trans(x), EXACT)
        lower += product(value, y, EXACT)
        result += product(value, tl.where(counted, score, 0.0), EXACT)
        place = head * DV + tile * TILE
        out.store([batch, row, place], tl.reshape(tl.trans(result).to(out.dtype), [1, C, TILE]))
    if segment == (0 if REVERSE else SEGMENTS - 1):
        tl.store(final + bh * size + near, upper)
        tl.store(final + bh * size + far, lower)
