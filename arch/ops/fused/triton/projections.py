"""A product of which the first columns are also wanted behind silu, as a custom operator with a fake kernel and a FLOP
formula."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ...triton.launch import on_its_device
from .mlp import INNER, ROWS, blocks, config_of, grid_of
from .projections_kernel import project_silu

COLUMNS = 128  # of a tile; it leaves in halves, each of which lies in one tensor
HALF = COLUMNS // 2


@torch.library.custom_op("arch::project_silu", mutates_args=())
@on_its_device
def project_with_silu(x: Tensor, weights: Tensor, first: int, second: int) -> tuple[Tensor, Tensor, Tensor]:
    """out = x weights^T [N, W], rounded, and silu of its columns: of `first` ones and of the `second` ones behind them,
    multiples of 64. x [N, d], weights [W, d], W > 128, bf16."""
    (count, width), (wide, _) = x.shape, weights.shape
    x, weights, config = x.contiguous(), weights.contiguous(), config_of(width)
    outputs = x.new_empty(count, wide), x.new_empty(count, first), x.new_empty(count, second)
    tiles, across = triton.cdiv(count, ROWS), triton.cdiv(wide, COLUMNS)
    project_silu[grid_of(x, tiles if config.resident else tiles * across)](
        blocks(x, ROWS, INNER), blocks(weights[None], 1, COLUMNS, INNER),
        *(blocks(y, ROWS, HALF) for y in outputs), first, first + second, tiles, across,
        K=triton.cdiv(width, INNER), STAGES=config.up_stages, BUFFERS=config.up_buffers, RESIDENT=config.resident,
        num_warps=4,
    )  # fmt: skip
    return outputs


@project_with_silu.register_fake
def _(x: Tensor, weights: Tensor, first: int, second: int) -> tuple[Tensor, Tensor, Tensor]:
    count = x.shape[0]
    return x.new_empty(count, weights.shape[0]), x.new_empty(count, first), x.new_empty(count, second)


@register_flop_formula(torch.ops.arch.project_silu)
def _(x: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * x[0] * x[1] * weights[0]
