"""`causal_filter` by matrix products inside chunks, in plain PyTorch: the backend on CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common import carry_states, chunk_parts, cuts, full_precision_backward, product


def chunk(
    x: Tensor, mix: Tensor, log_decay: Tensor, state: Tensor, chunk_size: int, document_starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A Toeplitz product per channel inside chunks; state read and update as matrix products with the powers."""
    batch, _, width = x.shape
    outputs = []
    starts = [] if document_starts is None else [document_starts]
    for size, (part, *rest) in chunk_parts(chunk_size, x, *starts):
        x_c = part.reshape(batch, -1, size, width)  # [B, N, C, d]
        steps = torch.arange(size, dtype=x.dtype, device=x.device)
        # where: lam = 0 (-inf) to the power 0 is 1
        powers = torch.where(steps[:, None] > 0, steps[:, None] * log_decay, 0.0).exp()  # [C, e], lam^0 .. lam^(C-1)
        kernel = product(mix, powers.mT)  # [d, C]
        read = powers * log_decay.exp()  # lam^1 .. lam^C
        whole = (size * log_decay).exp()
        if rest:
            passes = cuts(rest[0].reshape(batch, -1, size))
            inside = _WithinDocuments.apply(x_c, kernel, passes.rank)
            updates = product((x_c * passes.last[..., None]).mT, powers.flip(0)) * mix
            state, states = carry_states(state, (passes.whole[..., None, None] * whole).unbind(1), updates.unbind(1))
            outside = passes.first[..., None] * product(read, torch.stack(states, 1).mT)
        else:
            lag = (steps[:, None] - steps[None, :]).long()
            toeplitz = torch.where(lag >= 0, kernel[:, lag.clamp(min=0)], 0.0)  # [d, C, C]
            inside = product(toeplitz, x_c.permute(3, 2, 0, 1).reshape(width, size, -1)).reshape(width, size, batch, -1)
            inside = inside.permute(2, 3, 1, 0)
            updates = product(x_c.mT, powers.flip(0)) * mix  # [B, N, d, e]
            state, states = carry_states(state, [whole] * updates.shape[1], updates.unbind(1))
            outside = product(read, torch.stack(states, 1).mT)
        outputs.append((inside + outside).flatten(1, 2))
    return torch.cat(outputs, 1) if outputs else torch.zeros_like(x), state


class _WithinDocuments(torch.autograd.Function):
    """y_i = sum_k kernel_k x_{i-k} over the rows of i's document in the chunk: x [B, N, C, d], kernel [d, C],
    rank [B, N, C] (see `cuts`). Lag by lag, as masks differ by chunk: no [C, C] matrix per channel and chunk exists."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, rank: Tensor) -> Tensor:
        out = x * kernel[:, 0]
        for k in range(1, x.shape[2]):
            out[:, :, k:].addcmul_(x[:, :, :-k], _same(rank, k) * kernel[:, k])
        ctx.save_for_backward(x, kernel, rank)
        return out

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, kernel, rank = ctx.saved_tensors
        (d_out,) = grads
        d_x = d_out * kernel[:, 0]
        d_kernel = [(d_out * x).sum((0, 1, 2))]
        for k in range(1, x.shape[2]):
            passed = d_out[:, :, k:] * _same(rank, k)
            d_x[:, :, :-k].addcmul_(passed, kernel[:, k])
            d_kernel.append((passed * x[:, :, :-k]).sum((0, 1, 2)))
        return d_x, torch.stack(d_kernel, 1), None


def _same(rank: Tensor, k: int) -> Tensor:
    """Whether a row's document is that of the row k before it: [B, N, C - k, 1]."""
    return (rank[..., k:] == rank[..., :-k])[..., None]
