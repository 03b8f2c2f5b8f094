"""Products that end in a norm, or in one's gradient, as custom operators with fake kernels and FLOP formulas."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ....kernel_config import sum_norm_stages
from ...triton.column_sums import column_sums
from ...triton.launch import on_its_device
from .mlp import INNER, ROWS, blocks, grid_of
from .sum_norm_kernel import product_norm_gradients, product_sum_norm

HALF = ROWS // 2  # of a group of warps


def sizes_of(a: Tensor, width: int) -> tuple[int, int, dict[str, int]]:
    """Tiles of rows of a [N, inner], columns of a block, and the kernels' constants."""
    stages = sum_norm_stages(width)
    assert stages is not None, "the caller asks first"
    constants = {"D": width, "K": triton.cdiv(a.shape[1], INNER), "STAGES": stages, "num_warps": 4}
    return triton.cdiv(len(a), ROWS), max(64, triton.next_power_of_2(width)), constants


@torch.library.custom_op("arch::product_sum_norm", mutates_args=())
@on_its_device
def product_with_norm(a: Tensor, w: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """total = x + a w^T, the product rounded first, and total / rms(total) [* weight], like x [N, D]: a [N, inner],
    w [D, inner], bf16, weight [D] or None."""
    a, w, x = a.contiguous(), w.contiguous(), x.contiguous()
    tiles, block, constants = sizes_of(a, x.shape[1])
    total, out = torch.empty_like(x), torch.empty_like(x)
    product_sum_norm[grid_of(a, tiles)](
        blocks(a, HALF, INNER), blocks(w, block, INNER), *(blocks(y, HALF, block) for y in (x, total, out)),
        x if weight is None else weight, eps, tiles, WEIGHT=weight is not None, **constants,
    )  # fmt: skip
    return total, out


@product_with_norm.register_fake
def _(a: Tensor, w: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("arch::product_norm_gradients", mutates_args=())
@on_its_device
def gradients_with_norm(
    a: Tensor, w: Tensor, x: Tensor, d_total: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """d_total + the gradient of x [N, D], where x / rms(x) [* weight] has the gradient a w, rounded, a [N, inner], w
    [inner, D], bf16; and that of the weight [D] in fp32, empty where there is none."""
    a, w, x, d_total = a.contiguous(), w.contiguous(), x.contiguous(), d_total.contiguous()
    tiles, block, constants = sizes_of(a, x.shape[1])
    d_x, parts = torch.empty_like(x), 0 if weight is None else 2 * tiles
    shares = x.new_empty(parts, x.shape[1], dtype=torch.float32)
    product_norm_gradients[grid_of(a, tiles)](
        blocks(a, HALF, INNER), *(blocks(y, HALF, block) for y in (w, x, d_total, d_x)),
        x if weight is None else weight, shares, eps, tiles, WEIGHT=weight is not None, **constants,
    )  # fmt: skip
    return d_x, shares.view(-1) if weight is None else column_sums(shares)


@gradients_with_norm.register_fake
def _(a: Tensor, w: Tensor, x: Tensor, d_total: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0 if weight is None else x.shape[1], dtype=torch.float32)


@register_flop_formula(torch.ops.arch.product_sum_norm)
def _(a: Any, w: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * a[0] * a[1] * w[0]


@register_flop_formula(torch.ops.arch.product_norm_gradients)
def _(a: Any, w: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * a[0] * a[1] * w[1]
