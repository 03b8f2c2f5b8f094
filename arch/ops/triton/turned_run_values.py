"""The run of `decay_attention` with angles and without decays over values, for Hopper: outputs, and their gradient.

    out_i = sum over j <= i (REVERSE: j >= i) of (a_i cos . b_j cos + a_i sin . b_j sin) c_j

is the output for (a, b, c) = (q, k, v) and dv, backwards in time, for (k, q, dO). As in decay_plain.py the state stays
in registers, on its side; it is in two parts, cosines' and sines', and so nothing has to be put together or apart. A
chunk's cosines and sines are computed once, for a and b.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decay_plain import load_tile
from .tiles import operand, product
from .turned_angles import turns, waves


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def turned_run_values(
    a, b, c, turn_high, turn_low, positions, initial, sums, out, final,
    T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, REVERSE: tl.constexpr,
    START: tl.constexpr, FINAL: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One segment of PER_SEGMENT chunks, TILE columns of `out` [B, T, H, DV].

    a, b [B, T, G, DK], c [B, T, H, DV] and out are descriptors of [B, T, columns] in blocks of [1, C, DK or TILE].
    The state at the start is that of initial [BH, 2 DK, DV], cosines' rows first, and of the segments before, sums
    [BH, SEGMENTS, 2 DK, DV]; with FINAL the last one is written to final [BH, 2 DK, DV].
    """
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    shared = head // (H // G)
    rows = tl.arange(0, C)
    size = 2 * DK * DV
    block = tl.arange(0, DK)[None, :] * DV + (tile * TILE + tl.arange(0, TILE))[:, None]
    if START:
        upper = tl.load(initial + bh * size + block)
        lower = tl.load(initial + bh * size + DK * DV + block)
    else:
        upper, lower = tl.zeros([TILE, DK], tl.float32), tl.zeros([TILE, DK], tl.float32)
    for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
        other = sums + (bh * SEGMENTS + (SEGMENTS - 1 - step if REVERSE else step)) * size
        upper += tl.load(other + block)
        lower += tl.load(other + DK * DV + block)
    high, low = turns(turn_high, turn_low, shared * DK, 0, DK)
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
        x = load_tile(a, batch, row, shared * DK, C, DK)
        y = load_tile(b, batch, row, shared * DK, C, DK)
        z = load_tile(c, batch, row, head * DV + tile * TILE, C, TILE)
        position = ahead
        next_row = row - C if REVERSE else row + C
        ahead = tl.load(places + next_row + rows, mask=(rows < T - next_row) & (rows >= -next_row), other=0)
        _, cos, sin = waves(position, high, low, FAST)
        x_cos, x_sin = operand(x * cos, EXACT), operand(x * sin, EXACT)
        y_cos, y_sin = operand(y * cos, EXACT), operand(y * sin, EXACT)
        score = product(y_cos, tl.trans(x_cos), EXACT)  # [j, i]
        score += product(y_sin, tl.trans(x_sin), EXACT)
        result = product(upper, tl.trans(x_cos), EXACT)
        result += product(lower, tl.trans(x_sin), EXACT)
        value = tl.trans(z)
        result += product(value, tl.where(counted, score, 0.0), EXACT)
        upper += product(value, y_cos, EXACT)
        lower += product(value, y_sin, EXACT)
        place = head * DV + tile * TILE
        out.store([batch, row, place], tl.reshape(tl.trans(result).to(out.dtype), [1, C, TILE]))
    if FINAL and segment == (0 if REVERSE else SEGMENTS - 1):
        tl.store(final + bh * size + block, upper)
        tl.store(final + bh * size + DK * DV + block, lower)
