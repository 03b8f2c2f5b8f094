"""The loss over a large vocabulary from hidden states, without logits of all tokens in memory.

`naive` is the plain loss of all logits at once. `chunk` takes some rows at a time: it computes their logits, the loss
and at once its gradient, which overwrites the logits and is multiplied into the gradients of the hidden states and of
the head; the backward pass only scales those. This is the method of Liger Kernel (Hsu et al. 2024), section 3.2, with
fewer and larger chunks, since each chunk reads and writes the head's gradient. The loss is in fp32; products are in the
operands' dtype, and the head's gradient is summed in fp32. On a GPU a 16-bit head is padded with rows of zeros to a
multiple of ALIGNED: cuBLAS takes slower kernels for other sizes, as the 257 of bytes and end of text.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...errors import InputError
from ...kernel_config import loss_rows
from ..common import accumulator
from .linear import product_in
from .pointwise import uses_kernels

ALIGNED = 16


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, rows: int | None = None, backend: str | None = None
) -> Tensor:
    """Mean loss in nats of logits = hidden weight^T over the targets that are not negative, a scalar in fp32.

    hidden: [N, d]; weight: [V, d]; targets: int64 [N]; rows: of logits at a time (None: loss_rows). The logits have
    hidden's dtype, or autocast's. backend: naive, chunk, or triton: chunk with the logits' losses by a kernel (None:
    the latter where one runs). Where every target is negative the mean is nan and its gradients are zero. Raises
    InputError for shapes that do not fit, and for no rows.
    """
    rows = loss_rows(len(weight)) if rows is None else rows
    _check(hidden, weight, targets, rows)
    device = hidden.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
    with torch.autocast(device, enabled=False):
        hidden = hidden.to(dtype)
        if backend == "naive":
            logits = hidden @ weight.to(dtype).T
            return nnf.cross_entropy(logits.to(accumulator(logits)), targets.clamp(min=-1), ignore_index=-1)
        return _Loss.apply(
            hidden, weight, targets, rows, backend == "triton" or (backend is None and uses_kernels(hidden))
        )


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, rows: int) -> None:
    if hidden.dim() != 2 or weight.shape[1:] != hidden.shape[1:] or targets.shape != hidden.shape[:1]:
        shapes = f"hidden {list(hidden.shape)}, weight {list(weight.shape)}, targets {list(targets.shape)}"
        raise InputError(f"linear_cross_entropy: {shapes} do not fit: pass hidden [N, d], weight [V, d], targets [N]")
    if not len(hidden) or rows < 1:
        raise InputError(
            f"linear_cross_entropy: {len(hidden)} rows, {rows} at a time: a mean needs a row: pass at least one"
        )


def _loss_of_rows(logits: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    """What the kernel computes: losses [N], and with a scale the logits overwritten by it times their gradient."""
    kept = targets >= 0
    at = targets.clamp(min=0)[:, None]
    shares = logits.float().log_softmax(-1)
    losses = -shares.gather(1, at)[:, 0] * kept
    if scale is not None:
        gradient = shares.exp_().scatter_add_(1, at, shares.new_full((), -1.0).expand(at.shape))
        logits.copy_(gradient * (kept * scale)[:, None])
    return losses


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: int, by_kernel: bool) -> Tensor:
        needed, words, matrix = any(ctx.needs_input_grad), len(weight), _filled_up(weight, hidden.dtype)
        if by_kernel:
            from .triton.rows import loss_of_rows
        else:
            loss_of_rows = _loss_of_rows
        count = (targets >= 0).sum().float()
        scale = 1 / count.clamp(min=1)  # of the gradients: zero, not 0 x inf, where no target counts
        d_hidden = torch.empty_like(hidden) if needed else None
        d_weight: Tensor | None = None
        losses = []
        for part in range(0, len(hidden), rows):
            here = slice(part, part + rows)
            logits = hidden[here] @ matrix.T
            losses.append(loss_of_rows(logits[:, :words], targets[here].contiguous(), scale if needed else None))
            if d_hidden is not None:
                torch.mm(logits, matrix, out=d_hidden[here])
                d_weight = _add_product(d_weight, logits.T, hidden[here])
        if needed:
            assert d_weight is not None
            ctx.save_for_backward(d_hidden, d_weight[:words])
            ctx.dtype, ctx.by_kernel = weight.dtype, by_kernel
        return torch.cat(losses).sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        if ctx.by_kernel:
            from .triton.rows import scaled

            d_hidden, d_weight = (scaled(x, grads[0]) for x in (d_hidden, d_weight))
        else:
            d_hidden, d_weight = (x * grads[0] for x in (d_hidden, d_weight))
        return d_hidden, d_weight.to(ctx.dtype), None, None, None


def _filled_up(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """weight [V, d] as `dtype`, on a GPU in 16 bits with rows of zeros up to a multiple of ALIGNED."""
    missing = -len(weight) % ALIGNED
    if not missing or not weight.is_cuda or dtype.itemsize > 2:
        return weight.to(dtype)
    matrix = weight.new_zeros(len(weight) + missing, weight.shape[1], dtype=dtype)
    matrix[: len(weight)] = weight
    return matrix


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b in fp32, in place; the product alone where there is no total yet."""
    dtype = torch.float32
    if not a.is_cuda or a.dtype == torch.float64:
        a, b = a.to(dtype), b.to(dtype)
    if total is None:
        return product_in(dtype, a, b)
    return total.addmm_(a, b) if a.dtype == dtype else torch.addmm(total, a, b, out_dtype=dtype, out=total)
