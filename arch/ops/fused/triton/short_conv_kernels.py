"""Kernels of the short causal convolution with silu behind it: x [B, T, C], each channel alone, W taps.

Tap i meets the token W - 1 - i before. With PAST, tokens before the first come from past [B, W - 1, C]; with AGES, a
tap counts only where the token's index in its document, age [B or 1, T], reaches that far back.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _back(x, past, ages, batch, rows, columns, T, C, XB, XS, AB, LAG: tl.constexpr, W: tl.constexpr,
          PAST: tl.constexpr, AGES: tl.constexpr):  # fmt: skip
    """x of LAG tokens before [R, BLOCK], in fp32, 0 where nothing is."""
    at, inside = (rows - LAG)[:, None], (rows[:, None] < T) & (columns[None, :] < C)
    mask = inside & (at >= 0)
    if AGES:
        mask = mask & (tl.load(ages + batch * AB + rows, mask=rows < T, other=0) >= LAG)[:, None]
    found = tl.load(x + batch.to(tl.int64) * XB + at.to(tl.int64) * XS + columns[None, :], mask=mask, other=0.0)
    if PAST:
        before = past + (batch * (W - 1) + at + W - 1) * C + columns[None, :]
        found += tl.load(before, mask=inside & (at < 0), other=0.0)
    return found.to(tl.float32)


@triton.jit
def _tap(weight, columns, C, number: tl.constexpr, W: tl.constexpr):
    return tl.load(weight + columns * W + number, mask=columns < C, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _convolved(x, past, weight, bias, ages, batch, rows, columns, T, C, XB, XS, AB, W: tl.constexpr,
               PAST: tl.constexpr, AGES: tl.constexpr):  # fmt: skip
    total = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(W):
        total += _tap(weight, columns, C, i, W) * _back(
            x, past, ages, batch, rows, columns, T, C, XB, XS, AB, W - 1 - i, W, PAST, AGES
        )
    return total


@triton.jit
def conv_forward(
    x, past, weight, bias, ages, out, T, C, XB, XS, AB,
    W: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, PAST: tl.constexpr, AGES: tl.constexpr,
):  # fmt: skip
    """out = silu(bias + sum over taps)."""
    batch, rows = tl.program_id(2), tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    z = _convolved(x, past, weight, bias, ages, batch, rows, columns, T, C, XB, XS, AB, W, PAST, AGES)
    at = (batch.to(tl.int64) * T + rows[:, None]) * C + columns[None, :]
    z *= tl.sigmoid(z)
    tl.store(out + at, z.to(out.dtype.element_ty), mask=(rows[:, None] < T) & (columns[None, :] < C))


@triton.jit
def _gathered(sums, number: tl.constexpr, total):
    """sums [SUMS, BLOCK] with the sum over rows of total [R, BLOCK] in row `number`."""
    rows = tl.arange(0, sums.shape[0])[:, None]
    return tl.where(rows == number, tl.sum(total, 0)[None, :], sums)


@triton.jit
def conv_gradients(
    d_out, x, past, weight, bias, ages, d_z, shares, T, C, XB, XS, AB, TILES,
    W: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, PAST: tl.constexpr, AGES: tl.constexpr,
):  # fmt: skip
    """The gradient of what silu read, in fp32, and a share of the taps' and the bias's [8, C] for TILES tiles: of the
    tap that meets the token itself, those before, and, fifth, the bias. W is at most 4."""
    batch, columns = tl.program_id(2), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    s0, s1, s2 = tl.zeros([R, BLOCK], tl.float32), tl.zeros([R, BLOCK], tl.float32), tl.zeros([R, BLOCK], tl.float32)
    s3, own = tl.zeros([R, BLOCK], tl.float32), tl.zeros([R, BLOCK], tl.float32)
    for tile in range(TILES):
        rows = (tl.program_id(0) * TILES + tile) * R + tl.arange(0, R)
        mask = (rows[:, None] < T) & (columns[None, :] < C)
        at = (batch.to(tl.int64) * T + rows[:, None]) * C + columns[None, :]
        x0 = _back(x, past, ages, batch, rows, columns, T, C, XB, XS, AB, 0, W, PAST, AGES)
        x1, x2, x3 = x0, x0, x0
        z = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)[None, :]
        z += _tap(weight, columns, C, W - 1, W) * x0
        if W > 1:
            x1 = _back(x, past, ages, batch, rows, columns, T, C, XB, XS, AB, 1, W, PAST, AGES)
            z += _tap(weight, columns, C, W - 2, W) * x1
        if W > 2:
            x2 = _back(x, past, ages, batch, rows, columns, T, C, XB, XS, AB, 2, W, PAST, AGES)
            z += _tap(weight, columns, C, W - 3, W) * x2
        if W > 3:
            x3 = _back(x, past, ages, batch, rows, columns, T, C, XB, XS, AB, 3, W, PAST, AGES)
            z += _tap(weight, columns, C, W - 4, W) * x3
        opened = tl.sigmoid(z)
        d = tl.load(d_out + at, mask=mask, other=0.0).to(tl.float32) * opened * (1 + z * (1 - opened))
        tl.store(d_z + at, d, mask=mask)
        s0, s1, s2, s3, own = s0 + d * x0, s1 + d * x1, s2 + d * x2, s3 + d * x3, own + d
    sums = tl.zeros([8, BLOCK], tl.float32)
    sums = _gathered(_gathered(_gathered(_gathered(_gathered(sums, 0, s0), 1, s1), 2, s2), 3, s3), 4, own)
    number = tl.arange(0, 8)[:, None]
    share = ((batch * tl.num_programs(0) + tl.program_id(0)) * 8 + number) * C + columns[None, :]
    tl.store(shares + share, sums, mask=columns[None, :] < C)


@triton.jit
def conv_backward(
    d_z, weight, ages, d_x, T, C, AB, W: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, AGES: tl.constexpr
):
    """The gradient of x: every tap's from the token that it served."""
    batch, rows = tl.program_id(2), tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([R, BLOCK], tl.float32)
    for i in tl.static_range(W):
        at = rows + (W - 1 - i)
        mask = (at[:, None] < T) & (columns[None, :] < C)
        if AGES:
            mask = mask & (tl.load(ages + batch * AB + at, mask=at < T, other=0) >= W - 1 - i)[:, None]
        where = (batch.to(tl.int64) * T + at[:, None]) * C + columns[None, :]
        total += _tap(weight, columns, C, i, W) * tl.load(d_z + where, mask=mask, other=0.0)
    at = (batch.to(tl.int64) * T + rows[:, None]) * C + columns[None, :]
    tl.store(d_x + at, total.to(d_x.dtype.element_ty), mask=(rows[:, None] < T) & (columns[None, :] < C))
