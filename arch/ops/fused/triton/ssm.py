"""Launches of ssm_kernels.py with their gradients; see rows.py for why they are plain autograd functions."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...joint_rows import gradients_of
from ...triton.column_sums import column_sums
from ...triton.launch import contiguous, on_its_device
from .ssm_kernels import (
    skip_backward,
    skip_forward,
    softplus_backward,
    softplus_forward,
)

TILE, CHANNELS = 2048, 512  # numbers of a program's tile, and how wide it is at most
SHARES = 528  # programs along the rows at most that add up a parameter's gradient


def _apart(x: Tensor) -> tuple[Tensor, int]:
    """x [B, T, C], copied unless its rows lie evenly apart, and how far they do."""
    even = x.stride(2) == 1 and (x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1))
    # a copy where only the strides of a single token are odd, which `contiguous` would keep
    x = x if even else x.clone(memory_format=torch.contiguous_format)
    return x, x.stride(1)


def _tiles(x: Tensor) -> tuple[tuple[int, int], int, int, dict[str, int]]:
    """Rows and columns of x [B, T, C], the tiles that each of them are cut into, and the kernel's constants."""
    rows, columns = x.shape[0] * x.shape[1], x.shape[2]
    block = min(CHANNELS, triton.next_power_of_2(columns))
    constants = {"R": TILE // block, "BLOCK": block}
    return (rows, columns), triton.cdiv(rows, TILE // block), triton.cdiv(columns, block), constants


class Softplus(torch.autograd.Function):
    """softplus(x + bias) [B, T, C], fp32, of x [B, T, C] and bias [C], fp32."""

    @staticmethod
    @on_its_device
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        x, stride = _apart(x)
        sizes, tiles, across, constants = _tiles(x)
        out = x.new_empty(x.shape, dtype=torch.float32)
        ctx.save_for_backward(out)  # not x: whoever reads the result keeps that anyway
        ctx.dtype = x.dtype
        softplus_forward[(tiles, across)](x, bias, out, *sizes, stride, **constants)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (out,) = ctx.saved_tensors
        sizes, tiles, across, constants = _tiles(out)
        programs = min(tiles, SHARES)
        d_x, shares = out.new_empty(out.shape, dtype=ctx.dtype), out.new_empty(programs, sizes[1])
        softplus_backward[(programs, across)](grads[0].contiguous(), out, d_x, shares, *sizes, tiles, **constants)
        return d_x, column_sums(shares)


class Skip(torch.autograd.Function):
    """(o + skip v) silu(z) in o's dtype, o silu(z) without v: o, v, z [B, T, C] of one dtype, skip [C], fp32; with eps
    over its root mean square, times a weight [C], fp32, where there is one."""

    @staticmethod
    @on_its_device
    def forward(
        ctx: Any, o: Tensor, v: Tensor | None, z: Tensor, skip: Tensor | None, weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:  # fmt: skip
        o, (z, beside), (skip,) = o.contiguous(), _apart(z), contiguous(skip)
        v, apart = (None, 0) if v is None else _apart(v)
        ctx.save_for_backward(o, v, z, skip, weight)
        ctx.eps = eps
        sizes, tiles, constants = _rows(o)
        out = torch.empty_like(o)
        skip_forward[(tiles,)](
            o, v, z, skip, weight, out, eps, *sizes, apart, beside, NORM=eps is not None, WEIGHT=weight is not None,
            **constants,
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        o, v, z, skip, weight = ctx.saved_tensors
        sizes, tiles, constants = _rows(o)
        programs = min(tiles, SHARES)
        (d_z,) = gradients_of(z)
        d_o, d_v = torch.empty_like(o), None if v is None else torch.empty_like(o)
        shares, scales = (
            None if x is None else o.new_empty(programs, sizes[1], dtype=torch.float32) for x in (skip, weight)
        )
        skip_backward[(programs,)](
            grads[0].contiguous(), o, v, z, skip, weight, d_o, d_v, d_z, shares, scales, ctx.eps, *sizes,
            0 if v is None else v.stride(1), z.stride(1), d_z.stride(1), tiles, NORM=ctx.eps is not None,
            WEIGHT=weight is not None, **constants,
        )  # fmt: skip
        return d_o, d_v, d_z, *(None if x is None else column_sums(x) for x in (shares, scales)), None


def _rows(x: Tensor) -> tuple[tuple[int, int], int, dict[str, int]]:
    """Rows and columns of x [B, T, C], the tiles of whole rows that they are cut into, and the kernel's constants."""
    rows, block = x.shape[0] * x.shape[1], triton.next_power_of_2(x.shape[2])
    count = max(1, TILE // block)
    return (rows, x.shape[2]), triton.cdiv(rows, count), {"R": count, "BLOCK": block, "num_warps": 8}
