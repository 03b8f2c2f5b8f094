"""Several linear layers of one tensor, fused for autograd: no passes over gradients beside the matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..common import full_precision_backward
from .pointwise import gated_product, uses_kernels


def fused_linear(x: Tensor, *modules: nn.Module) -> tuple[Tensor, ...]:
    """The outputs of the modules for x [.., d], in autocast's dtype or x's.

    On a GPU, where all are nn.Linear without biases, they are one autograd node: its products accumulate the gradient
    of x (in fp32, rounded once more for each module) and write the gradients of the weights in the weights' own dtype.
    Under autocast PyTorch would add, round and copy them in further passes.
    """
    if not _can_fuse(x, modules):
        return tuple(module(x) for module in modules)
    return _FusedLinear.apply(x, _dtype(x), *(module.weight for module in modules))


def fused_gated_linear(x: Tensor, up: nn.Module, gate: nn.Module, kind: str = "") -> Tensor:
    """`gated_product` of the outputs of two modules of one width for x [.., d].

    On a GPU, under the conditions of `fused_linear` and where autocast casts the weights anyway, one product with the
    concatenated weights, whose halves a kernel multiplies in place: half as many products, each of twice the size.
    """
    dtypes = {getattr(module.weight, "dtype", None) for module in (up, gate)}
    if not _can_fuse(x, (up, gate)) or len(dtypes) > 1 or _dtype(x) in dtypes:
        a, b = fused_linear(x, up, gate)
        return gated_product(a, b, kind)
    from .triton.rows import HalvesProduct

    return HalvesProduct.apply(_ConcatenatedLinear.apply(x, _dtype(x), up.weight, gate.weight), kind)


def _can_fuse(x: Tensor, modules: tuple[nn.Module, ...]) -> bool:
    # without gradients autocast keeps the weights it has cast
    alike = torch.is_grad_enabled() and all(isinstance(m, nn.Linear) and m.bias is None for m in modules)
    return alike and uses_kernels(x)


def _dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class _FusedLinear(torch.autograd.Function):
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


class _ConcatenatedLinear(torch.autograd.Function):
    """The outputs of two linear layers side by side: one product, and one for each gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, up: Tensor, gate: Tensor) -> Tensor:
        rows, width = x.to(dtype).flatten(0, -2), len(up)
        matrix = up.new_empty(2 * width, up.shape[1], dtype=dtype)
        matrix[:width], matrix[width:] = up, gate
        ctx.save_for_backward(rows, matrix)
        ctx.shape, ctx.dtype, ctx.weights = x.shape, x.dtype, up.dtype
        return (rows @ matrix.T).unflatten(0, x.shape[:-1])

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, matrix = ctx.saved_tensors
        d_out, needed = grads[0].flatten(0, -2), ctx.needs_input_grad[2:]
        d_x = (d_out @ matrix).view(ctx.shape).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        if all(needed):
            return d_x, None, *product_in(ctx.weights, d_out.T, rows).chunk(2)
        halves = zip(d_out.chunk(2, 1), needed, strict=True)
        return d_x, None, *(product_in(ctx.weights, half.T, rows) if wanted else None for half, wanted in halves)


def product_in(dtype: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    """a @ b as `dtype`: on a GPU without rounding to the operands' dtype first."""
    if a.is_cuda and dtype == torch.float32 != a.dtype:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)
