"""Launches of short_conv_kernels.py with their gradients; see rows.py for why they are plain autograd functions."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...triton.launch import on_its_device
from .short_conv_kernels import conv_backward, conv_forward, conv_gradients

TAPS = 4  # at most
ROWS, CHANNELS = 8, 128  # of a program's tile
TILES = 16  # of a program that adds up the gradients of the taps


class ShortConv(torch.autograd.Function):
    """silu(bias + sum over taps) [B, T, C] of x [B, T, C], weight [C, W], W <= TAPS, bias [C]; past [B, W - 1, C]
    without gradient, or None; ages: int [B, T] or [T], a token's index in its document, or None: there is one."""

    @staticmethod
    @on_its_device
    def forward(ctx: Any, x: Tensor, past: Tensor | None, weight: Tensor, bias: Tensor, ages: Tensor | None) -> Tensor:
        x = x if x.stride(2) == 1 else x.contiguous()
        past, ages = (None if t is None else t.contiguous() for t in (past, ages))
        ctx.save_for_backward(x, past, weight, bias, ages)
        out = x.new_empty(x.shape)
        constants = _constants(weight, past, ages)
        conv_forward[_grid(x, ROWS)](x, past, weight, bias, ages, out, *_sizes(x, ages), **constants)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, past, weight, bias, ages = ctx.saved_tensors
        width, sizes = weight.shape[1], _sizes(x, ages)
        d_out, d_x = grads[0].contiguous(), x.new_empty(x.shape)
        d_z = x.new_empty(x.shape, dtype=torch.float32)
        grid = _grid(x, ROWS * TILES)
        shares = d_z.new_empty(grid[2] * grid[0], 8, x.shape[2])
        conv_gradients[grid](
            d_out, x, past, weight, bias, ages, d_z, shares, *sizes, TILES, **_constants(weight, past, ages)
        )
        conv_backward[_grid(x, ROWS)](
            d_z, weight, ages, d_x, *sizes[:2], sizes[-1], W=width, R=ROWS, BLOCK=CHANNELS, AGES=ages is not None
        )
        total = shares.sum(0)
        return d_x, None, total[:width].flip(0).T.to(weight.dtype), total[TAPS].to(bias.dtype), None


def _grid(x: Tensor, rows: int) -> tuple[int, int, int]:
    return triton.cdiv(x.shape[1], rows), triton.cdiv(x.shape[2], CHANNELS), x.shape[0]


def _sizes(x: Tensor, ages: Tensor | None) -> tuple[int, ...]:
    """T, C, and the strides of x and the ages."""
    return x.shape[1], x.shape[2], x.stride(0), x.stride(1), 0 if ages is None or ages.dim() == 1 else ages.stride(0)


def _constants(weight: Tensor, past: Tensor | None, ages: Tensor | None) -> dict[str, Any]:
    shape = {"W": weight.shape[1], "R": ROWS, "BLOCK": CHANNELS}
    return {**shape, "PAST": past is not None, "AGES": ages is not None, "num_warps": 4}
