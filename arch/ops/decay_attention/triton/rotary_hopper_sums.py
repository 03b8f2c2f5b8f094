"""What segments add to the state of `decay_attention` with angles and without decays, for Hopper."""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import load_tile, operand, product
from .rotary_angles import cosines, state_rows
from .rotary_hopper_keys import both_rows


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def rotary_hopper_sums(
    x, y, theta_high, theta_low, positions, sums, T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, REVERSE: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The sum of rotated x_t^T y_t over each segment of PER_SEGMENT chunks but the one that comes last, which nothing
    reads, of BK channels: sums [BH, SEGMENTS, 2 DK, DV], fp32, cosines' rows, then sines'.

    x: k (REVERSE: q), y: v (dO), descriptors in blocks of [1, C, BK] and [1, C, DV].
    """
    tile, bh = tl.program_id(0), tl.program_id(2)
    segment = tl.program_id(1) + (1 if REVERSE else 0)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    column = head // (H // G) * DK + tile * BK
    rows = tl.arange(0, C)
    high = tl.load(theta_high + column + tl.arange(0, BK))[:, None]
    low = tl.load(theta_low + column + tl.arange(0, BK))[:, None]
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    # a chunk's positions are loaded a chunk ahead, so that nothing waits for them
    places = positions + batch * POSITION_STRIDE
    ahead = tl.load(places + first * C + rows, mask=rows < T - first * C, other=0)
    tl.assume(first < last)  # or ptxas, which sees the zeros leave without a product, waits for each product by itself
    state = tl.zeros([2 * BK, DV], tl.float32)
    for chunk in tl.range(first, last):
        row = chunk * C
        z = tl.trans(load_tile(x, batch, row, column, C, BK)).to(tl.float32)
        value = load_tile(y, batch, row, head * DV, C, DV)
        position = ahead.to(tl.float32)[None, :]
        ahead = tl.load(places + row + C + rows, mask=rows < T - row - C, other=0)
        cos, sin = cosines(position, high, low, FAST)
        state += product(both_rows(operand(z * cos, EXACT), operand(z * sin, EXACT)), value, EXACT)
    place = sums + (bh * SEGMENTS + segment) * 2 * DK * DV
    tl.store(place + state_rows(tile * BK, DK, BK)[:, None] * DV + tl.arange(0, DV)[None, :], state)
