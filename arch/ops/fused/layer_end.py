"""What follows a layer's token mixing, as one autograd node where kernels take norms inside products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...kernel_config import SUM_NORM_ROWS, sum_norm_stages
from ..common import full_precision_backward
from .gated_mlp import GATES, gates_inside
from .linear import cast, casts, dtype_of, product_in, weights_of


class Scale(NamedTuple):
    """Of a norm x / sqrt(mean(x^2) + eps) [* weight]."""

    weight: Tensor | None
    eps: float


def takes_layer_end(x: Tensor, matrices: Sequence[nn.Module], kind: str, scales: Sequence[Scale]) -> bool:
    """Whether `layer_end` runs on a residual stream like x [.., d] with these matrices (out, up, gate, down), this kind
    of gate and these norms: where the gate is inside the MLP's products (`gated_mlp`), with the stream in autocast's
    dtype, up to a width of 256 and from 16,384 tokens on."""
    weights, width = weights_of(x, tuple(matrices)), x.shape[-1]
    if not weights or kind not in GATES or not casts(x, weights) or x.dtype != dtype_of(x):
        return False
    if x.numel() < SUM_NORM_ROWS * width:
        return False
    if sum_norm_stages(width) is None or weights[0].shape[1] % 8 or not gates_inside(x, weights[1:]):
        return False
    norms = [scale.weight for scale in scales if scale.weight is not None]
    return all(w.shape == (width,) for w in norms) and all(w.device == x.device for w in (*weights, *norms))


def layer_end(
    x: Tensor, mixed: Tensor, matrices: Sequence[nn.Module], kind: str, norm: Scale, next_norm: Scale
) -> tuple[Tensor, Tensor]:
    """y = s + down(up(n) f(gate(n))), with s = x + out(mixed) and n its norm; and the next norm of y. x [.., d], mixed
    [.., any width]; matrices and kind as `takes_layer_end` was given them. Every product and sum is rounded to bf16."""
    out, up, gate, down = (matrix.weight for matrix in matrices)
    return _LayerEnd.apply(x, mixed, out, norm.weight, up, gate, down, next_norm.weight, kind, norm.eps, next_norm.eps)


class _LayerEnd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mixed: Tensor, out: Tensor, weight: Tensor | None, up: Tensor, gate: Tensor, down: Tensor,
        next_weight: Tensor | None, kind: str, eps: float, next_eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        from .triton.mlp import up_and_gate
        from .triton.sum_norm import product_with_norm

        rows = mixed.to(x.dtype).flatten(0, -2)
        last, first, behind = (cast(weights, x.dtype)[0] for weights in ([out], [up, gate], [down]))
        total, normed = product_with_norm(rows, last, x.flatten(0, -2), weight, eps)
        h, act = up_and_gate(normed, first, kind)
        y, next_normed = product_with_norm(act, behind, total, next_weight, next_eps)
        ctx.save_for_backward(rows, last, total, normed, first, h, act, behind, y, weight, next_weight)
        ctx.kind, ctx.eps, ctx.next_eps, ctx.weights = kind, eps, next_eps, up.dtype
        ctx.shapes, ctx.mixed = (x.shape, mixed.shape), mixed.dtype
        ctx.set_materialize_grads(False)
        return y.view(x.shape), next_normed.view(x.shape)

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from .triton.mlp import gradients_of_gate
        from .triton.rows import norm_gradients
        from .triton.sum_norm import gradients_with_norm

        if all(d is None for d in grads):
            return (None,) * len(ctx.needs_input_grad)
        rows, last, total, normed, first, h, act, behind, y, weight, next_weight = ctx.saved_tensors
        d_y, d_next = (None if d is None else d.flatten(0, -2) for d in grads)
        d_next_weight = None
        if d_next is not None:
            d_y, _, d_next_weight = norm_gradients(d_next, y, None, next_weight, ctx.next_eps, d_y)
        assert d_y is not None
        d_h = gradients_of_gate(d_y, behind, h, ctx.kind)
        d_x, d_weight = gradients_with_norm(d_h, first, total, d_y, weight, ctx.eps)
        _, mixed, out, _, up, gate, down, *_ = ctx.needs_input_grad
        d_up, d_gate = product_in(ctx.weights, d_h.T, normed).chunk(2) if up or gate else (None, None)
        d_down = product_in(ctx.weights, d_y.T, act) if down else None
        del d_h, d_y, d_next, grads  # the last two products need their memory
        return (
            d_x.view(ctx.shapes[0]),
            (d_x @ last).view(ctx.shapes[1]).to(ctx.mixed) if mixed else None,
            product_in(ctx.weights, d_x.T, rows) if out else None,
            None if weight is None else d_weight.to(weight.dtype),
            d_up if up else None,
            d_gate if gate else None,
            d_down,
            d_next_weight,
            *(None, None, None),
        )
