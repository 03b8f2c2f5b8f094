"""Kernels of what stands around the recurrences of Mamba1 and Mamba2, each tensor read and written once.

Rows are tokens. Inputs that are slices of wider tensors have their rows a stride apart; what is written is contiguous.
Programs of a backward take every so-many-th tile of rows and leave the sums of their own for parameters' gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import complement_of
from .row_kernels import _load, _store


@triton.jit
def _area(tile, N, C, R: tl.constexpr, BLOCK: tl.constexpr):
    """Rows [R, 1] and columns [BLOCK] of a tile, and which of its numbers exist."""
    rows, columns = tile * R + tl.arange(0, R)[:, None], tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return rows.to(tl.int64), columns, (rows < N) & (columns[None, :] < C)


@triton.jit
def _softplus(z):
    """log(1 + e^z), for small e^z too: log(u) e / (u - 1) with u = 1 + e rounded.

    Relative error on a GPU 2e-6, below 0 up to 7.5e-8 |z| more: e^z is 2^(z log2 e), and z log2 e is rounded.
    """
    e = tl.exp(-tl.abs(z))
    u = 1 + e
    return tl.maximum(z, 0.0) + tl.where(u == 1, e, tl.log(u) * e / tl.where(u == 1, 1.0, u - 1))


@triton.jit
def softplus_forward(x, bias, out, N, C, STRIDE, R: tl.constexpr, BLOCK: tl.constexpr):
    """softplus(x + bias) [N, C], fp32."""
    rows, columns, mask = _area(tl.program_id(0), N, C, R, BLOCK)
    z = _load(x, rows * STRIDE + columns, mask)
    z += _load(bias, columns, columns < C)[None, :]
    tl.store(out + rows * C + columns, _softplus(z), mask=mask)


@triton.jit
def softplus_backward(d_out, out, d_x, shares, N, C, TILES, R: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of x, and shares [programs, C] of the bias's: the slope of y = log(1 + e^z) is 1 - e^-y."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([R, BLOCK], tl.float32)
    for tile in range(tl.program_id(0), TILES, tl.num_programs(0)):
        rows, _, mask = _area(tile, N, C, R, BLOCK)
        slope = complement_of(-_load(out, rows * C + columns, mask))
        d = _load(d_out, rows * C + columns, mask) * slope
        _store(d_x, rows * C + columns, d, mask)
        total += d
    tl.store(shares + tl.program_id(0).to(tl.int64) * C + columns, tl.sum(total, 0), mask=columns < C)


@triton.jit
def skip_forward(
    o, v, z, skip, weight, out, eps, N, C, VS, ZS, R: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
    WEIGHT: tl.constexpr,
):  # fmt: skip
    """(o + skip v) silu(z) [N, C], o silu(z) where v is None; with NORM over its root mean square [* weight]; rows of v
    and z are VS and ZS apart. A program has whole rows."""
    rows, columns, mask = _area(tl.program_id(0), N, C, R, BLOCK)
    x = _load(o, rows * C + columns, mask)
    if v is not None:
        x += _load(v, rows * VS + columns, mask) * _load(skip, columns, columns < C)[None, :]
    gate = _load(z, rows * ZS + columns, mask)
    x *= gate * tl.sigmoid(gate)
    if NORM:
        x *= tl.rsqrt(tl.sum(x * x, 1) / C + eps)[:, None]
    if WEIGHT:
        x *= _load(weight, columns, columns < C)[None, :]
    _store(out, rows * C + columns, x, mask)


@triton.jit
def skip_backward(
    d_out, o, v, z, skip, weight, d_o, d_v, d_z, shares, scales, eps, N, C, VS, ZS, DS, TILES, R: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    """Gradients of o, v and z, this to rows DS apart, and shares [programs, C] of skip's and the weight's."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if v is not None:
        factor = _load(skip, columns, columns < C)[None, :]
    total, scale_total = tl.zeros([R, BLOCK], tl.float32), tl.zeros([R, BLOCK], tl.float32)
    if WEIGHT:
        scale = _load(weight, columns, columns < C)[None, :]
    for tile in tl.range(tl.program_id(0), TILES, tl.num_programs(0), num_stages=3):
        rows, _, mask = _area(tile, N, C, R, BLOCK)
        d = _load(d_out, rows * C + columns, mask)
        y = _load(o, rows * C + columns, mask)
        if v is not None:
            x = _load(v, rows * VS + columns, mask)
            y += factor * x
        gate = _load(z, rows * ZS + columns, mask)
        opened = tl.sigmoid(gate)
        if NORM:
            n = y * gate * opened
            inverse = tl.rsqrt(tl.sum(n * n, 1) / C + eps)[:, None]
            n *= inverse
            if WEIGHT:
                scale_total += d * n
                d *= scale
            d = inverse * (d - n * (tl.sum(d * n, 1) / C)[:, None])
        d_gate = d * y * opened * (1 + gate * (1 - opened))
        d *= gate * opened
        _store(d_o, rows * C + columns, d, mask)
        if v is not None:
            _store(d_v, rows * C + columns, d * factor, mask)
            total += d * x
        _store(d_z, rows * DS + columns, d_gate, mask)
    at = tl.program_id(0).to(tl.int64) * C + columns
    if v is not None:
        tl.store(shares + at, tl.sum(total, 0), mask=columns < C)
    if WEIGHT:
        tl.store(scales + at, tl.sum(scale_total, 0), mask=columns < C)
