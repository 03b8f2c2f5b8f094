# ruff: noqa: RUF005 (tuples are added: Triton does not know the star)
"""Kernels of the short causal convolution with silu behind it: x [B, T, C], each channel alone, W <= 4 taps.

Tap i meets the token W - 1 - i before. With PAST, tokens before the first come from past [B, W - 1, C]; with AGES, a
tap counts only where the token's index in its document, age [B or 1, T], reaches that far back.

A program takes ROWS tokens of BLOCK channels one after the other, for the gradients backwards in time, and keeps the
last few in registers: each number is read once and written once. AHEAD tokens are asked for at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _row(x, past, t, columns, T, C, XS, W: tl.constexpr, PAST: tl.constexpr):
    """Token t of a sequence [BLOCK], 0 where there is none; x and past: the sequence's."""
    row = tl.load(x + t.to(tl.int64) * XS + columns, mask=(columns < C) & (t >= 0) & (t < T), other=0.0)
    if PAST:
        before = t + W - 1
        row += tl.load(past + before * C + columns, mask=(columns < C) & (t < 0) & (before >= 0), other=0.0)
    return row


@triton.jit
def _rows(x, past, t, columns, T, C, XS, COUNT: tl.constexpr, W: tl.constexpr, PAST: tl.constexpr):
    """COUNT tokens from t on."""
    rows = ()
    for r in tl.static_range(COUNT):
        rows = rows + (_row(x, past, t + r, columns, T, C, XS, W, PAST),)
    return rows


@triton.jit
def _tap(weight, columns, C, lag: tl.constexpr, W: tl.constexpr):
    """The weights of the token `lag` before."""
    if lag < W:
        return tl.load(weight + columns * W + W - 1 - lag, mask=columns < C, other=0.0).to(tl.float32)
    else:
        return tl.zeros(columns.shape, tl.float32)


@triton.jit
def _age(ages, t, T, AGES: tl.constexpr):
    """A token's index in its document, as far as taps ask for it."""
    if AGES:
        return tl.load(ages + t, mask=t < T, other=0).to(tl.int32)
    else:
        return 3


@triton.jit
def _since(x, age, lag: tl.constexpr, AGES: tl.constexpr):
    """x in fp32, of the token `lag` before one of this age, 0 where that is another document's."""
    x = x.to(tl.float32)
    return tl.where(age >= lag, x, 0.0) if AGES else x


@triton.jit
def conv_forward(
    x, past, weight, bias, ages, out, T, C, XB, XS, AB, W: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK: tl.constexpr, PAST: tl.constexpr, AGES: tl.constexpr,
):  # fmt: skip
    """out = silu(bias + sum over taps)."""
    batch, start = tl.program_id(2), tl.program_id(0) * ROWS
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x += batch.to(tl.int64) * XB
    out += batch.to(tl.int64) * T * C
    if PAST:
        past += batch * (W - 1) * C
    if AGES:
        ages += batch * AB
    w0, w1 = _tap(weight, columns, C, 0, W), _tap(weight, columns, C, 1, W)
    w2, w3 = _tap(weight, columns, C, 2, W), _tap(weight, columns, C, 3, W)
    b = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)
    x1, x2 = _row(x, past, start - 1, columns, T, C, XS, W, PAST), _row(x, past, start - 2, columns, T, C, XS, W, PAST)
    x3 = _row(x, past, start - 3, columns, T, C, XS, W, PAST)
    for step in range(0, tl.cdiv(tl.minimum(ROWS, T - start), AHEAD)):
        first = start + step * AHEAD
        rows = _rows(x, past, first, columns, T, C, XS, AHEAD, W, PAST)
        for r in tl.static_range(AHEAD):
            age = _age(ages, first + r, T, AGES)
            z = b + w0 * rows[r].to(tl.float32) + w1 * _since(x1, age, 1, AGES)
            z += w2 * _since(x2, age, 2, AGES) + w3 * _since(x3, age, 3, AGES)
            z *= tl.sigmoid(z)
            at = (first + r).to(tl.int64) * C + columns
            tl.store(out + at, z.to(out.dtype.element_ty), mask=(columns < C) & (first + r < T))
            x3, x2, x1 = x2, x1, rows[r]


@triton.jit
def conv_backward(
    d_out, x, past, weight, bias, ages, d_x, shares, T, C, XB, XS, DB, DS, AB, W: tl.constexpr, ROWS: tl.constexpr,
    AHEAD: tl.constexpr, BLOCK: tl.constexpr, PAST: tl.constexpr, AGES: tl.constexpr,
):  # fmt: skip
    """The gradient of x, to rows DS apart, and a share of the taps' and the bias's [5, C]: of the tap that meets the
    token itself, of those before it, and, last, of the bias."""
    batch, start = tl.program_id(2), tl.program_id(0) * ROWS
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    stop = tl.minimum(start + ROWS, T)
    x += batch.to(tl.int64) * XB
    d_x += batch.to(tl.int64) * DB
    d_out += batch.to(tl.int64) * T * C
    if PAST:
        past += batch * (W - 1) * C
    if AGES:
        ages += batch * AB
    w0, w1 = _tap(weight, columns, C, 0, W), _tap(weight, columns, C, 1, W)
    w2, w3 = _tap(weight, columns, C, 2, W), _tap(weight, columns, C, 3, W)
    b = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)
    zero = tl.zeros([BLOCK], tl.float32)
    s0, s1, s2, s3, own = zero, zero, zero, zero, zero
    # what silu's inputs 1 to 3 tokens later leave for the one that is next, by their distance
    d1, d2, d3 = zero, zero, zero
    # the program's last block begins with the tokens behind its own, of which it only needs what they leave
    first = start + tl.cdiv(stop + 3 - start, AHEAD) * AHEAD - AHEAD
    x0 = _row(x, past, first + AHEAD - 1, columns, T, C, XS, W, PAST)
    x1 = _row(x, past, first + AHEAD - 2, columns, T, C, XS, W, PAST)
    x2 = _row(x, past, first + AHEAD - 3, columns, T, C, XS, W, PAST)
    while first >= start:
        rows = _rows(x, past, first - 3, columns, T, C, XS, AHEAD, W, PAST)
        gradients = _rows(d_out, past, first, columns, T, C, C, AHEAD, W, False)
        for r in tl.static_range(AHEAD - 1, -1, -1):
            t = first + r
            age = _age(ages, t, T, AGES)
            y0, y1, y2 = x0.to(tl.float32), _since(x1, age, 1, AGES), _since(x2, age, 2, AGES)
            y3 = _since(rows[r], age, 3, AGES)
            z = b + w0 * y0 + w1 * y1 + w2 * y2 + w3 * y3
            opened = tl.sigmoid(z)
            d = gradients[r].to(tl.float32) * opened * (1 + z * (1 - opened))
            at = t.to(tl.int64) * DS + columns
            tl.store(d_x + at, (w0 * d + d1).to(d_x.dtype.element_ty), mask=(columns < C) & (t < stop))
            d1, d2 = d2 + _since(w1 * d, age, 1, AGES), d3 + _since(w2 * d, age, 2, AGES)
            d3 = _since(w3 * d, age, 3, AGES)
            d = tl.where(t < stop, d, 0.0)
            s0, s1, s2, s3, own = s0 + d * y0, s1 + d * y1, s2 + d * y2, s3 + d * y3, own + d
            x0, x1, x2 = x1, x2, rows[r]
        first -= AHEAD
    share = shares + (batch * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * 5 * C + columns
    tl.store(share, s0, mask=columns < C)
    tl.store(share + C, s1, mask=columns < C)
    tl.store(share + 2 * C, s2, mask=columns < C)
    tl.store(share + 3 * C, s3, mask=columns < C)
    tl.store(share + 4 * C, own, mask=columns < C)
