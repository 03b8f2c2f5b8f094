"""The run of `decay_attention` with angles and without decays over values, for Hopper: outputs, and their gradient.

    out_i = sum over j <= i (REVERSE: j >= i) of (rotated a_i . rotated b_j) c_j

is the output for (a, b, c) = (q, k, v) and dv, backwards in time, for (k, q, dO). As in attend_hopper.py the state
stays in registers, on its side. A chunk's cosines and sines are computed once, for a and b.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import in_registers, load_tile, product
from .rotary_angles import doubled, load_theta, state_rows, waves


@triton.jit
def state_block(first, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr):
    """Where the state on its side, [DV, 2 BK] with the columns of `doubled`, lies in [2 DK, DV]."""
    return state_rows(first, DK, BK)[None, :] * DV + tl.arange(0, DV)[:, None]


@triton.jit
def state_before(
    initial, sums, block, segment, bh, size, SEGMENTS, START: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The first state and what the segments before (REVERSE: behind) add, at `block` of initial."""
    if START:
        state = tl.load(initial + block)
    else:
        state = tl.zeros(block.shape, tl.float32)
    for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
        other = bh * (SEGMENTS - 1) + (SEGMENTS - 1 - step if REVERSE else step)
        state += tl.load(sums + other * size + block)
    return state


@triton.jit
def piece(
    a, b, theta_high, theta_low, position, value, state, score, result, T, batch, row, column,
    C: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """What BK channels, from `column` on, add to their part of the state, to scores [j, i], and to the result."""
    x = load_tile(a, batch, row, column, C, BK)
    y = load_tile(b, batch, row, column, C, BK)
    high, low = load_theta(theta_high, theta_low, column, 0, BK)
    _, cos, sin = waves(position, high, low, FAST)
    x, y = doubled(x, cos, sin, EXACT), doubled(y, cos, sin, EXACT)
    result += product(state, tl.trans(x), EXACT)
    # a condition that always holds: where the compiler sees a product's result go into another product, it lays all
    # warps along its rows, of which there are enough for half of eight
    if T > 0:
        score += product(y, tl.trans(x), EXACT)
    state += product(value, y, EXACT)
    return state, score, result


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def rotary_hopper_values(
    a, b, c, theta_high, theta_low, positions, initial, sums, out, final,
    T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, REVERSE: tl.constexpr, START: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One segment of PER_SEGMENT chunks of `out` [B, T, H, DV].

    a, b [B, T, G, DK], c [B, T, H, DV] and out are descriptors of [B, T, columns] in blocks of [1, C, DK / 4 or DV].
    The state at the start is that of initial [BH, 2 DK, DV], cosines' rows first, and of the segments before, sums
    [BH, SEGMENTS, 2 DK, DV]; the last one is written to final [BH, 2 DK, DV]. It is in four parts, of a quarter of the
    channels each, which take turns, so that few cosines are there at a time.
    """
    BK: tl.constexpr = DK // 4
    segment, bh = tl.program_id(0), tl.program_id(1)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    shared = head // (H // G)
    rows = tl.arange(0, C)
    size = 2 * DK * DV
    block0 = bh * size + state_block(0, DK, DV, BK)
    block1 = bh * size + state_block(BK, DK, DV, BK)
    block2 = bh * size + state_block(2 * BK, DK, DV, BK)
    block3 = bh * size + state_block(3 * BK, DK, DV, BK)
    state0 = state_before(initial, sums, block0, segment, bh, size, SEGMENTS, START, REVERSE)
    state1 = state_before(initial, sums, block1, segment, bh, size, SEGMENTS, START, REVERSE)
    state2 = state_before(initial, sums, block2, segment, bh, size, SEGMENTS, START, REVERSE)
    state3 = state_before(initial, sums, block3, segment, bh, size, SEGMENTS, START, REVERSE)
    if REVERSE:
        counted = rows[:, None] >= rows[None, :]
    else:
        counted = rows[:, None] <= rows[None, :]
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    # a chunk's positions are loaded a chunk ahead, so that nothing waits for them
    places = positions + batch * POSITION_STRIDE
    row = (last - 1 if REVERSE else first) * C
    ahead = tl.load(places + row + rows, mask=rows < T - row, other=0)
    column = shared * DK
    for step in tl.range(0, last - first):
        row = (last - 1 - step if REVERSE else first + step) * C
        value = in_registers(tl.trans(load_tile(c, batch, row, head * DV, C, DV)), EXACT)
        position = ahead
        after = tl.maximum(row - C, 0) if REVERSE else row + C
        ahead = tl.load(places + after + rows, mask=rows < T - after, other=0)
        score, result = tl.zeros([C, C], tl.float32), tl.zeros([DV, C], tl.float32)
        state0, score, result = piece(
            a,
            b,
            theta_high,
            theta_low,
            position,
            value,
            state0,
            score,
            result,
            T,
            batch,
            row,
            column,
            C,
            BK,
            EXACT,
            FAST,
        )
        state1, score, result = piece(
            a, b, theta_high, theta_low, position, value, state1, score, result, T, batch, row, column + BK,
            C, BK, EXACT, FAST,
        )  # fmt: skip
        state2, score, result = piece(
            a, b, theta_high, theta_low, position, value, state2, score, result, T, batch, row, column + 2 * BK,
            C, BK, EXACT, FAST,
        )  # fmt: skip
        state3, score, result = piece(
            a, b, theta_high, theta_low, position, value, state3, score, result, T, batch, row, column + 3 * BK,
            C, BK, EXACT, FAST,
        )  # fmt: skip
        result += product(value, tl.where(counted, score, 0.0), EXACT)
        out.store([batch, row, head * DV], tl.reshape(tl.trans(result).to(out.dtype), [1, C, DV]))
    if segment == (0 if REVERSE else SEGMENTS - 1):
        tl.store(final + block0, state0)
        tl.store(final + block1, state1)
        tl.store(final + block2, state2)
        tl.store(final + block3, state3)
