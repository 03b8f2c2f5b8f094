"""Several linear maps of one tensor, as a GPU does them fastest: as few passes over gradients as there are products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .common import full_precision_backward
from .pointwise import uses_kernels


def linears(x: Tensor, *modules: nn.Module) -> tuple[Tensor, ...]:
    """What each of the modules makes of x [.., d], in autocast's dtype or x's.

    On a GPU, where all are nn.Linear without biases, one node for autograd: the gradient of x is summed inside the
    products (in fp32, rounded once more for each module), and those of the weights come from the products in the
    weights' own dtype, where autocast would add, round and copy in passes of their own.
    """
    # without gradients autocast's cast weights serve again
    alike = torch.is_grad_enabled() and all(isinstance(m, nn.Linear) and m.bias is None for m in modules)
    if not uses_kernels(x) or not alike:
        return tuple(module(x) for module in modules)
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    return _Linears.apply(x, dtype, *(module.weight for module in modules))


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        rows, matrices = x.to(dtype).flatten(0, -2), [weight.to(dtype) for weight in weights]
        ctx.save_for_backward(rows, *matrices)
        ctx.shape, ctx.dtype, ctx.dtypes = x.shape, x.dtype, [weight.dtype for weight in weights]
        return tuple((rows @ matrix.T).unflatten(0, x.shape[:-1]) for matrix in matrices)

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, *matrices = ctx.saved_tensors
        d_rows: Tensor | None = None
        d_weights: list[Tensor | None] = []
        for index, (grad, matrix, dtype) in enumerate(zip(grads, matrices, ctx.dtypes, strict=True)):
            d_out = grad.flatten(0, -2)
            if ctx.needs_input_grad[0]:
                d_rows = d_out @ matrix if d_rows is None else d_rows.addmm_(d_out, matrix)
            d_weights.append(product_in(dtype, d_out.T, rows) if ctx.needs_input_grad[2 + index] else None)
        return None if d_rows is None else d_rows.view(ctx.shape).to(ctx.dtype), None, *d_weights


def product_in(dtype: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    """a @ b as `dtype`: on a GPU without rounding to the operands' dtype first."""
    if a.is_cuda and dtype == torch.float32 != a.dtype:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)
