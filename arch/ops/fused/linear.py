"""Several linear layers of one tensor, fused for autograd: no passes over gradients beside the matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...kernel_config import mlp_config
from ..common import full_precision_backward
from ..joint_rows import free_for, leave_silu, mark_joint, place_of, share_gradients
from .pointwise import gated_product, uses_kernels
from .weight_casts import cast_before

Group = nn.Module | tuple[nn.Module, ...]


def fused_linear(x: Tensor, *groups: Group, silu: bool = False) -> tuple[Tensor, ...]:
    """The outputs of the modules for x [.., d], in autocast's dtype or x's: of each module, in order, also of those
    that a tuple holds together.

    On a GPU, where all are nn.Linear without biases, they are one autograd node: its products accumulate the gradient
    of x (in fp32, rounded once more for each product) and write the gradients of the weights in the weights' own dtype.
    Under autocast PyTorch would add, round and copy them in further passes.

    Modules of a tuple whose widths are multiples of 16 are one product there, if autocast casts their weights anyway:
    their outputs are columns of one tensor, for readers that take rows at any distance (`joint_rows.as_rows`). So are
    the gradients of readers that make them by `joint_rows.gradients_of`; others are copied to their columns. The
    gradients of the weights share one tensor's memory: dropping one of them frees nothing.

    silu: the first two outputs are read by kernels that take them behind silu too. Where they are columns of one tensor
    it comes from their product on a Hopper GPU, and is left with them for `joint_rows.silu_of`.
    """
    modules = tuple(module for group in groups for module in (group if isinstance(group, tuple) else (group,)))
    weights = weights_of(x, modules)
    if not weights:
        return tuple(module(x) for module in modules)
    products = _products(groups, weights, casts(x, weights))
    silu = silu and any(_takes_silu(x, weights, group) for group in products)
    return _FusedLinear.apply(x, dtype_of(x), products, True, silu, *weights)


def fused_gated_linear(x: Tensor, up: nn.Module, gate: nn.Module, kind: str = "") -> Tensor:
    """`gated_product` of the outputs of two modules of one width for x [.., d].

    On a GPU, under the conditions of `fused_linear` and where autocast casts the weights anyway, one product with the
    concatenated weights, whose halves a kernel multiplies in place: half as many products, each of twice the size.
    """
    weights = weights_of(x, (up, gate))
    if not (weights and casts(x, weights)):
        a, b = fused_linear(x, up, gate)
        return gated_product(a, b, kind)
    from .triton.rows import HalvesProduct

    return HalvesProduct.apply(*_FusedLinear.apply(x, dtype_of(x), [[0, 1]], False, False, *weights), kind)


def columns(x: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
    """x [B, T, W] cut along W. On a GPU for readers that take rows at any distance: those that make their gradients by
    `joint_rows.gradients_of` leave them in one tensor, where PyTorch would join them in a pass."""
    if uses_kernels(x):
        parts: tuple[Tensor, ...] = _Columns.apply(x, tuple(widths))
        return parts
    return tuple(x.split(list(widths), -1))


def weights_of(x: Tensor, modules: tuple[nn.Module, ...]) -> list[Tensor]:
    """The modules' weights, or none where their products with x are left to the modules."""
    # without gradients autocast keeps the weights it has cast
    if not (torch.is_grad_enabled() and uses_kernels(x)):
        return []
    weights: list[Tensor] = []
    for module in modules:
        if not isinstance(module, nn.Linear) or module.bias is not None:
            return []
        weights.append(module.weight)
    return weights


def casts(x: Tensor, weights: list[Tensor]) -> bool:
    """Whether the weights, of one dtype, are cast for the product with x."""
    dtypes = {weight.dtype for weight in weights}
    return len(dtypes) == 1 and dtype_of(x) not in dtypes


def dtype_of(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def hopper_products(x: Tensor) -> bool:
    """Whether Gluon's products (triton/mlp_parts.py) run on rows like x's: in bf16 on Hopper, whose copy engine reads
    rows that begin at whole 16 bytes, up to the width that was measured."""
    width = x.shape[-1]
    if dtype_of(x) != torch.bfloat16 or width % 8 or mlp_config(width) is None:
        return False
    from ..triton.device_config import GLUON, hopper_instructions

    return GLUON and hopper_instructions(exact=False)


def _takes_silu(x: Tensor, weights: list[Tensor], group: list[int]) -> bool:
    """Whether the kernel that also makes silu of the first two weights' outputs takes the product of this group: it
    writes half tiles of 64 columns, and its two groups of warps in turn need two tiles of columns."""
    if group[:2] != [0, 1] or x.numel() == 0 or sum(len(weights[index]) for index in group) <= 128:
        return False
    return len(weights[0]) % 64 == len(weights[1]) % 64 == 0 and hopper_products(x)


def _products(groups: tuple[Group, ...], weights: list[Tensor], join: bool) -> list[list[int]]:
    """The numbers of the weights of each product."""
    products: list[list[int]] = []
    start = 0
    for group in groups:
        stop = start + (len(group) if isinstance(group, tuple) else 1)
        joint = [index for index in range(start, stop) if join and len(weights[index]) % 16 == 0]
        products += [[index] for index in range(start, stop) if index not in joint]
        products += [joint] if joint else []
        start = stop
    return products


class _FusedLinear(torch.autograd.Function):
    """One product for each of the groups, of the weights that have its numbers; their outputs by weight, or (not
    `apart`, of one group) as they come from the product. silu: of the first two weights' outputs, which begin a group,
    is made and left with them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, groups: list[list[int]], apart: bool, silu: bool, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        rows = x.to(dtype).flatten(0, -2)
        ctx.groups, ctx.widths, ctx.apart = groups, [len(weight) for weight in weights], apart
        casts = [cast([weights[index] for index in group], dtype) for group in groups]
        ctx.save_for_backward(rows, *(x for _, kept in casts for x in kept))
        ctx.shape, ctx.dtype, ctx.dtypes = x.shape, x.dtype, [weight.dtype for weight in weights]
        ctx.kept = [len(kept) for _, kept in casts]
        outputs: dict[int, Tensor] = {}
        for group, (matrix, _) in zip(groups, casts, strict=True):
            out, *active = _product(rows, matrix, ctx.widths[:2] if silu and group[:2] == [0, 1] else [])
            out = out.unflatten(0, x.shape[:-1])
            if not apart:
                return (out,)
            if len(group) > 1:
                mark_joint(out)
            if active:
                leave_silu(out, *active)
            outputs |= zip(group, _columns(out, ctx.widths, group), strict=True)
        return tuple(outputs[index] for index in range(len(weights)))

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, *kept = ctx.saved_tensors
        d_rows: Tensor | None = None
        d_weights: list[Tensor | None] = [None] * len(ctx.widths)
        for group, count in zip(ctx.groups, ctx.kept, strict=True):
            own, kept = kept[:count], kept[count:]
            d_out = joined([grads[index] for index in group] if ctx.apart else grads)
            if ctx.needs_input_grad[0]:
                matrix = beside(own, rows.dtype)
                d_rows = d_out @ matrix if d_rows is None else d_rows.addmm_(d_out, matrix)
            wanted = [index for index in group if ctx.needs_input_grad[5 + index]]
            if wanted == group:
                whole = product_in(ctx.dtypes[group[0]], d_out.T, rows)
                parts = dict(zip(group, whole.split([ctx.widths[index] for index in group]), strict=True))
            else:
                columns = dict(zip(group, _columns(d_out, ctx.widths, group), strict=True))
                parts = {index: product_in(ctx.dtypes[index], columns[index].T, rows) for index in wanted}
            for index, part in parts.items():
                d_weights[index] = part
        d_x = None if d_rows is None else d_rows.view(ctx.shape).to(ctx.dtype)
        return d_x, None, None, None, None, *d_weights


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
        x = x.contiguous()
        ctx.shape, ctx.shared = x.shape, share_gradients(mark_joint(x))
        return tuple(x.split(widths, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        whole = joined(grads).view(ctx.shape)
        ctx.shared.clear()
        return whole, None


def _product(rows: Tensor, matrix: Tensor, active: list[int]) -> tuple[Tensor, ...]:
    """rows matrix^T, and silu of its first columns, as many as these numbers (two, or none) say."""
    if not active:
        return (rows @ matrix.T,)
    from .triton.projections import project_with_silu

    return project_with_silu(rows, matrix, *active)


def joined(gradients: Sequence[Tensor]) -> Tensor:
    """The matrix [B T, W] of gradients [B, T, width] side by side. Where `gradients_in` made some of them in rows of W,
    at their columns, it is that tensor, after the others were copied to theirs."""
    if len(gradients) == 1:
        return gradients[0].flatten(0, -2)
    *columns, width = (0, *accumulate(x.shape[-1] for x in gradients))
    places = [place_of(x) if x.dim() == 3 else None for x in gradients]
    memory, first = None, gradients[0]  # that tensor's, and the first of the gradients in it
    missing = []
    for x, place, at in zip(gradients, places, columns, strict=True):
        at_home = place is not None and place.width == width and place.offset == at
        if place is None or not at_home or memory not in (None, place.memory):
            missing.append((x, at))
        elif memory is None:
            memory, first = place.memory, x
    if memory is not None and free_for(first, [range(at, at + x.shape[-1]) for x, at in missing]):
        matrix = first.as_strided((first.shape[0] * first.shape[1], width), (width, 1), 0)
        for x, at in missing:
            _copy(x.flatten(0, -2), matrix[:, at : at + x.shape[-1]])
        return matrix
    return torch.cat([x.flatten(0, -2) for x in gradients], 1)


def _copy(x: Tensor, place: Tensor) -> None:
    """x [N, width] to columns of rows: PyTorch's own kernel for that reads and writes number by number."""
    if not x.is_cuda:
        place.copy_(x)
        return
    from .triton.rows import copy_rows

    copy_rows(x if x.stride(1) == 1 else x.contiguous(), place)


def _columns(x: Tensor, widths: list[int], group: Sequence[int]) -> list[Tensor]:
    """The columns of x that belong to each of the group's weights."""
    return [x] if len(group) == 1 else list(x.split([widths[index] for index in group], -1))


def cast(weights: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """The weights [width, d] as one matrix of that dtype, and what a node keeps to have it from `beside` again: the
    matrix where the whole pass has it, else the weights. So no pass holds copies of a large model's weights, and
    weights that are sharded are gone between a layer's forward and its backward pass."""
    if (matrix := cast_before(weights, dtype)) is not None:
        return matrix, [matrix]
    return beside(weights, dtype), weights


def beside(weights: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The weights [width, d] as one matrix of that dtype."""
    if len(weights) == 1:
        return weights[0].to(dtype)
    matrix = weights[0].new_empty(sum(map(len, weights)), weights[0].shape[1], dtype=dtype)
    for part, weight in zip(matrix.split([len(weight) for weight in weights]), weights, strict=True):
        part.copy_(weight)  # each by itself: PyTorch's kernel for several has too few programs for tensors this small
    return matrix


def product_in(dtype: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    """a @ b as `dtype`: on a GPU without rounding to the operands' dtype first."""
    if a.is_cuda and dtype == torch.float32 != a.dtype:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)
