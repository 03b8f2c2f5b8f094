"""The gated MLP, W_down((x W_up^T) * act(x W_gate^T)), as one autograd node where kernels apply the gate inside its
products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..common import full_precision_backward
from .linear import (
    beside,
    cast,
    casts,
    dtype_of,
    fused_gated_linear,
    fused_linear,
    hopper_products,
    product_in,
    weights_of,
)

GATES = ("", "silu")


def gated_mlp(x: Tensor, up: nn.Module, gate: nn.Module, down: nn.Module, kind: str = "") -> Tensor:
    """down(up(x) * gate(x)), or with kind "silu" down(up(x) * silu(gate(x))), for x [.., d].

    On a Hopper GPU, where autocast casts weights without biases to bf16, the gate is applied inside the products up to
    a width of 1,024: forward in the one that makes its operands, backward in the one that makes its gradient."""
    weights = weights_of(x, (up, gate, down))
    if not (weights and kind in GATES and casts(x, weights) and gates_inside(x, weights)):
        return fused_linear(fused_gated_linear(x, up, gate, kind), down)[0]
    return _GatedMLP.apply(x, kind, *weights)


def gates_inside(x: Tensor, weights: list[Tensor]) -> bool:
    """Whether the kernels take x and weights (up, gate, down) of these sizes, and run here: two groups in turn need two
    tiles of columns."""
    hidden = len(weights[0])
    return hidden > 64 and hidden % 8 == 0 and hopper_products(x)


class _GatedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str, up: Tensor, gate: Tensor, down: Tensor) -> Tensor:
        from .triton.mlp import up_and_gate

        rows = x.to(dtype_of(x)).flatten(0, -2)
        (first, of_first), (last, of_last) = cast([up, gate], rows.dtype), cast([down], rows.dtype)
        h, act = up_and_gate(rows, first, kind)
        ctx.save_for_backward(rows, h, act, *of_last, *of_first)
        ctx.kind, ctx.shape, ctx.dtype, ctx.weights = kind, x.shape, x.dtype, up.dtype
        return (act @ last.T).view(x.shape)

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from .triton.mlp import gradients_of_gate

        rows, h, act, last, *first = ctx.saved_tensors
        d_out = grads[0].flatten(0, -2)
        needed = ctx.needs_input_grad
        d_h = gradients_of_gate(d_out, beside([last], rows.dtype), h, ctx.kind) if any(needed[:4]) else None
        d_x = None
        if d_h is not None and needed[0]:
            d_x = (d_h @ beside(first, rows.dtype)).view(ctx.shape).to(ctx.dtype)
        d_first: tuple[Tensor | None, ...] = (None, None)
        if d_h is not None and any(needed[2:4]):
            d_first = product_in(ctx.weights, d_h.T, rows).chunk(2)
        d_last = product_in(ctx.weights, d_out.T, act) if needed[4] else None
        return d_x, None, *(d if wanted else None for d, wanted in zip(d_first, needed[2:4], strict=True)), d_last
