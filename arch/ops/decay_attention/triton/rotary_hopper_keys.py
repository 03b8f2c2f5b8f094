"""Gradients of keys and queries that angles rotate, without decays, for Hopper: one sequential kernel, two runs.

    out_i = rotated back by the angles of i: sum over j <= i (REVERSE: j >= i) of (a_i . b_j) rotated c_j

is dq for (a, b, c) = (dO, v, k), and backwards in time dk for (v, dO, q). As in attend_hopper.py the state, the sum of
rotated c_j^T b_j, stays in registers and nothing but the sums of segments is written; state and result lie on their
side, [channels, ..], so that the left operands come from registers and the right ones are what was loaded.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as nnf
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ...triton.descriptors import blocks
from ...triton.tiles import in_registers, laid_as, load_tile, product, silu
from .rotary_angles import cosines, state_rows


@triton.jit
def both_rows(x, y):
    """[2 ROWS, C] of x and y [ROWS, C]: eight rows of x, eight of y, and so on. In the layout of a product's result,
    and of a left operand in registers, a thread has both numbers of a channel."""
    ROWS: tl.constexpr = x.shape[0]
    both = tl.permute(tl.reshape(tl.join(x, y), [ROWS // 8, 8, x.shape[1], 2]), [0, 3, 1, 2])
    return tl.reshape(both, [2 * ROWS, x.shape[1]])


@triton.jit
def row_halves(x):
    """x and y of `both_rows`."""
    both = tl.permute(tl.reshape(x, [x.shape[0] // 16, 2, 8, x.shape[1]]), [0, 2, 3, 1])
    return tl.split(tl.reshape(both, [x.shape[0] // 2, x.shape[1], 2]))


@triton.jit
def kept(x, counted, EXACT: tl.constexpr):
    """x where counted, -1 or 0 as int16, as an operand; of two numbers at once."""
    if EXACT:
        return tl.where(counted != 0, x, 0.0)
    else:
        return tl.inline_asm_elementwise(
            "and.b32 $0, $1, $2;", "=r,r,r", [x.to(tl.bfloat16), counted], dtype=tl.bfloat16, is_pure=True, pack=2
        )


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "PER_SEQUENCE"])
def rotary_hopper_keys(
    a, b, c, own, theta_high, theta_low, positions, initial, sums, out, d_angles,
    T, H, G, N, SEGMENTS, PER_SEGMENT, PER_SEQUENCE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    REVERSE: tl.constexpr, START: tl.constexpr, SILU: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One segment of PER_SEGMENT chunks, TILE channels of `out` [B, T, H, DK].

    a, b [B, T, H, DV], c, own [B, T, G, DK] and out are descriptors of [B, T, columns] in blocks of [1, C, DV or TILE].
    own: what out is the gradient of, q or k; with SILU what silu is taken of, while c is silu already.
    theta_high + theta_low [G, DK]: theta / 2 pi. positions: fp32, a descriptor of [B, T] in blocks of [1, C], or of
    [1, T] if not PER_SEQUENCE.
    The state [2 DK, DV] at the start, cosines' rows, then sines', is that of initial [BH, 2 DK, DV] with START and of
    the segments before (REVERSE: behind), sums [BH, SEGMENTS, 2 DK, DV]. d_angles [BH, SEGMENTS, DK]: the segment's
    part of the angles' gradient.
    """
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    shared = head // (H // G)
    rows = tl.arange(0, C)
    channels = tile * TILE + tl.arange(0, TILE)
    block = state_rows(tile * TILE, DK, TILE)[:, None] * DV + tl.arange(0, DV)[None, :]
    size = 2 * DK * DV
    if START:
        state = tl.load(initial + bh * size + block)
    else:
        state = tl.zeros([2 * TILE, DV], tl.float32)
    for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
        other = bh * SEGMENTS + (SEGMENTS - 1 - step if REVERSE else step)
        state += tl.load(sums + other * size + block)
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    high = tl.load(theta_high + shared * DK + channels)[:, None]
    low = tl.load(theta_low + shared * DK + channels)[:, None]
    if REVERSE:
        counted = rows[:, None] <= rows[None, :]
    else:
        counted = rows[:, None] >= rows[None, :]
    counted = tl.where(counted, -1, 0).to(tl.int16)
    angles = tl.zeros([TILE], tl.float32)
    for step in tl.range(0, last - first, num_stages=STAGES):
        chunk = last - 1 - step if REVERSE else first + step
        row = chunk * C
        x = load_tile(a, batch, row, head * DV, C, DV)
        y = load_tile(b, batch, row, head * DV, C, DV)
        score = product(in_registers(x, EXACT), tl.trans(y), EXACT)
        # across the chunk's start (REVERSE: end)
        result = product(state, tl.trans(x), EXACT)
        position = tl.reshape(positions.load([batch * PER_SEQUENCE, row]), [1, C])
        cos, sin = cosines(position, high, low, FAST)
        z = load_tile(c, batch, row, shared * DK + tile * TILE, C, TILE)
        # in the layout of the result, in which the angles are wanted again
        z = laid_as(row_halves(result)[0], tl.trans(z).to(tl.float32), FAST)
        if EXACT:
            rotated = both_rows(z * cos, z * sin)
        else:
            rotated = both_rows((z * cos).to(tl.bfloat16), (z * sin).to(tl.bfloat16))
        # inside it
        result += product(rotated, tl.trans(kept(score, counted, EXACT)), EXACT)
        # to the next chunk
        state += product(rotated, y, EXACT)
        upper, lower = row_halves(result)
        gradient = upper * cos + lower * sin
        primal = load_tile(own, batch, row, shared * DK + tile * TILE, C, TILE)
        primal = tl.trans(primal).to(tl.float32)
        if SILU:
            primal, slope = silu(primal, FAST)
            gradient *= slope
        angles += tl.sum(primal * (lower * cos - upper * sin) * position, 1)
        out.store([batch, row, head * DK + tile * TILE], tl.reshape(tl.trans(gradient).to(out.dtype), [1, C, TILE]))
    tl.store(d_angles + (bh * SEGMENTS + segment) * DK + channels, angles)


def run_keys(
    a: Tensor, b: Tensor, c: Tensor, own: Tensor, high: Tensor, low: Tensor, positions: Tensor, initial: Tensor | None,
    sums: Tensor, out: Tensor, d_angles: Tensor, sizes: tuple[int, ...], reverse: bool, silu: bool, flags: dict[str,
    Any],
) -> None:  # fmt: skip
    """`rotary_hopper_keys` of all tensors, of `as_rows`. sizes: T, H, G, N, SEGMENTS, PER_SEGMENT; flags: C, DK, DV,
    EXACT, FAST, and how it is launched: TILE, STAGES, num_warps."""
    chunk, tile, width = flags["C"], flags["TILE"], a.shape[3]
    grid = (c.shape[3] // tile, sizes[4], a.shape[0] * a.shape[2])
    places = positions.reshape(-1, sizes[0])
    if sizes[0] % 4 or places.data_ptr() % 16:  # the copy engine asks for rows that begin at whole 16 bytes
        places = nnf.pad(places, (0, -sizes[0] % 4))
    rotary_hopper_keys[grid](
        blocks(a, chunk, width), blocks(b, chunk, width), blocks(c, chunk, tile), blocks(own, chunk, tile), high, low,
        TensorDescriptor.from_tensor(places, [1, chunk]), initial, sums, blocks(out, chunk, tile), d_angles,
        *sizes, int(positions.dim() == 2), REVERSE=reverse, START=initial is not None, SILU=silu, **flags,
    )  # fmt: skip
