"""Launches of short_conv_kernels.py with their gradients; see rows.py for why they are plain autograd functions."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...joint_rows import gradients_of
from ...triton.column_sums import column_sums
from ...triton.launch import on_its_device
from .short_conv_kernels import conv_backward, conv_forward

TAPS = 4  # at most
ROWS, AHEAD, CHANNELS = (64, 128), (8, 8), 64  # tokens of a program and at a time, forward and backward; channels


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
        conv_forward[_grid(x, 0)](
            x,
            past,
            weight,
            bias,
            ages,
            out,
            *x.shape[1:],
            *x.stride()[:2],
            _apart(ages),
            **_constants(weight, past, ages, 0),
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, past, weight, bias, ages = ctx.saved_tensors
        (d_x,), grid = gradients_of(x), _grid(x, 1)
        shares = x.new_empty(grid[2] * grid[0], TAPS + 1, x.shape[2], dtype=torch.float32)
        conv_backward[grid](
            grads[0].contiguous(), x, past, weight, bias, ages, d_x, shares, *x.shape[1:], *x.stride()[:2],
            *d_x.stride()[:2], _apart(ages), **_constants(weight, past, ages, 1),
        )  # fmt: skip
        total = column_sums(shares.flatten(1)).view(TAPS + 1, -1)
        return d_x, None, total[: weight.shape[1]].flip(0).T.to(weight.dtype), total[TAPS].to(bias.dtype), None


def _grid(x: Tensor, direction: int) -> tuple[int, int, int]:
    return triton.cdiv(x.shape[1], ROWS[direction]), triton.cdiv(x.shape[2], CHANNELS), x.shape[0]


def _apart(ages: Tensor | None) -> int:
    """How far the ages of two sequences lie apart."""
    return 0 if ages is None or ages.dim() == 1 else ages.stride(0)


def _constants(weight: Tensor, past: Tensor | None, ages: Tensor | None, direction: int) -> dict[str, Any]:
    sizes = {"W": weight.shape[1], "ROWS": ROWS[direction], "AHEAD": AHEAD[direction], "BLOCK": CHANNELS}
    return {**sizes, "PAST": past is not None, "AGES": ages is not None, "num_warps": 1}
