"""`scan` by doubling inside chunks, in plain PyTorch: the backend on CPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common import carry_states, chunk_parts, full_precision_backward, halves, levels
from .parts import rotate


def chunk(log_a: Tensor, b: Tensor, theta: Tensor | None, state: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
    """`scan_rows` inside chunks of `chunk_size` rows, all chunks at once, and a recurrence over the chunks' states.

    For use without autograd (it works in place, on copies); shapes as in `naive`.
    """
    if theta is not None:
        angles = theta.double().cumsum(1)
        cos, sin = angles.cos().to(b.dtype), angles.sin().to(b.dtype)
        b = rotate(b, cos, -sin)
    outputs = []
    for size, (log_c, b_c) in chunk_parts(chunk_size, log_a, b):
        # a copy, and the last, shorter chunk is padded to a power of two with b = log a = 0
        rows = 1 << (size - 1).bit_length()
        sums = nnf.pad(log_c, (0, 0, 0, rows - size)).reshape(-1, rows, *log_c.shape[2:])
        h = nnf.pad(b_c, (0, 0, 0, 0, 0, rows - size)).reshape(-1, rows, *b_c.shape[2:])
        scan_rows(h, sums)
        h, decay = (x.unflatten(0, (b.shape[0], -1)) for x in (h, sums.exp_()[:, :, None]))  # [B, N, C, .., D]
        state, states = carry_states(state, decay[:, :, -1].unbind(1), h[:, :, -1].unbind(1))
        h.addcmul_(decay, torch.stack(states, 1)[:, :, None])
        outputs.append(h.flatten(1, 2)[:, : log_c.shape[1]])
    out = torch.cat(outputs, 1)
    if theta is not None:
        return rotate(out, cos, sin), rotate(state, cos[:, -1], sin[:, -1])
    return out, state


def scan_rows(h: Tensor, sums: Tensor, rate: Tensor | None = None) -> None:
    """In place: from h = b to the recurrence along the rows of h [M, C, K, D], C a power of two.

    log a is `sums` [M, C, D] (for all K), or with a `rate` [K, D] sums x rate. `sums` becomes its sums from the first
    row to each. Blocks of m = 1, 2, 4, ... rows are joined in pairs: the later block takes the earlier one's last row,
    decayed by the exp of a sum of logarithms from the midpoint on: never a positive exponent, nor a difference.
    """
    for m in levels(h.shape[1]):
        early, late = halves(h, m)
        early_sums, late_sums = halves(sums, m)
        exponent = late_sums[..., None, :]
        gate = exponent.exp() if rate is None else (exponent * rate).exp_()
        late.addcmul_(gate, early[:, :, -1:])
        late_sums += early_sums[:, :, -1:]


class Scan(torch.autograd.Function):
    """`chunk` with its gradient: the same recurrence backwards in time, G_t = dL/dh_t + conj(a_{t+1}) G_{t+1}.

    dL/db_t = G_t, and log lam_t and theta_t take the two parts of conj(G_t) a_t h_{t-1}, a product: small where a_t is
    small, 0 where it is 0. Differentiating `chunk` itself would keep every level and find them as sums that cancel.
    """

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, b: Tensor, theta: Tensor | None, state: Tensor, chunk_size: int
    ) -> tuple[Tensor, Tensor]:
        out, last = chunk(log_a, b, theta, state, chunk_size)
        ctx.save_for_backward(log_a, theta, state, out)
        ctx.chunk_size = chunk_size
        return out, last

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        log_a, theta, initial, h = ctx.saved_tensors
        angles = None if theta is None else _to_later(theta).neg_()
        d_b = chunk(_to_later(log_a), grads[0].flip(1), angles, grads[1], ctx.chunk_size)[0].flip(1)
        # a_t h_{t-1}
        kept = torch.cat([initial[:, None], h[:, :-1]], 1)
        if theta is not None:
            kept = rotate(kept, theta.cos(), theta.sin())
        decay = log_a.exp()
        kept *= decay[:, :, None]
        d_log_a = (d_b * kept).sum(2)
        d_state = decay[:, 0, None] * d_b[:, 0]
        if theta is None:
            return d_log_a, d_b, None, d_state, None
        d_theta = d_b[:, :, 1] * kept[:, :, 0] - d_b[:, :, 0] * kept[:, :, 1]
        d_state = rotate(d_state, theta[:, 0].cos(), -theta[:, 0].sin())
        return d_log_a, d_b, d_theta.sum_to_size(theta.shape), d_state, None


def _to_later(x: Tensor) -> Tensor:
    """Reversed in time and one step late, as the backward recurrence reads decays: 0, x_{T-1}, ..., x_1."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:].flip(1)], 1)
