"""`selective_scan` chunk by chunk, in plain PyTorch: the backend on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common import full_precision_backward
from ..scan.chunk import scan_rows


class SelectiveScan(torch.autograd.Function):
    """The chunk backend: `scan_rows` inside a chunk, one chunk after the other.

    Its gradient is the same recurrence backwards in time, G_t = C_t dL/dy_t + exp(dt_{t+1} A) G_{t+1}; that of dt A
    is the product of G_t, exp(dt_t A) and h_{t-1}, never a difference of states. States are [B, C, N, D] in here: the
    axis of channels last, where it runs fast. At a document's start the step size in exp(dt A), and there alone, is
    infinite.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        x: Tensor,
        state: Tensor,
        chunk_size: int,
        document_starts: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        span, rate = _decays(dt, A, document_starts)
        state = state.transpose(1, 2).contiguous()
        outputs, states = [], []
        for length, (dt_c, span_c, B_c, C_c, x_c) in _chunks(chunk_size, dt, span, B, C, x):
            states.append(state)
            h = _states(span_c, rate, B_c, dt_c * x_c, state)
            outputs.append((C_c[:, :, None] @ h)[:, :length, 0])
            state = h[:, -1].clone()  # a view would keep the chunk's states alive
        ctx.save_for_backward(dt, A, B, C, x, document_starts, *states)
        ctx.chunk_size = chunk_size
        return torch.cat(outputs, 1), state.transpose(1, 2)

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dt, A, B, C, x, document_starts, *states = ctx.saved_tensors
        span, rate = _decays(dt, A, document_starts)
        d_rate = torch.zeros_like(rate)
        d_state = grads[1].transpose(1, 2)
        chunks: list[tuple[Tensor, ...]] = []
        parts = list(_chunks(ctx.chunk_size, dt, span, B, C, x, grads[0]))
        for length, (dt_c, span_c, B_c, C_c, x_c, d_y) in reversed(parts):
            before = states.pop()
            u = dt_c * x_c
            h = _states(span_c, rate, B_c, u, before)
            d_C = (d_y[:, :, None] @ h.mT)[:, :, 0]
            # backwards in time each row reads the decay of the row after it, the last row none
            later = torch.cat([torch.zeros_like(dt_c[:, :1]), span_c[:, 1:].flip(1)], 1)
            d_h = _states(later, rate, C_c.flip(1), d_y.flip(1), d_state).flip(1)
            d_B = (u[:, :, None] @ d_h.mT)[:, :, 0]
            d_u = (B_c[:, :, None] @ d_h)[:, :, 0]
            decay = (span_c[:, :, None] * rate).exp_()
            d_state = decay[:, 0] * d_h[:, 0]
            d_exponent = d_h.mul_(decay)
            d_exponent[:, 1:] *= h[:, :-1]
            d_exponent[:, 0] *= before
            d_rate += torch.mul(d_exponent, dt_c[:, :, None], out=h).sum((0, 1))
            d_dt = d_exponent.mul_(rate).sum(2).addcmul_(d_u, x_c)
            chunks.append(tuple(d[:, :length] for d in (d_dt, d_B, d_C, d_u * dt_c)))
        d_dt, d_B, d_C, d_x = (torch.cat(rows, 1) for rows in zip(*reversed(chunks), strict=True))
        return d_dt, d_rate.t(), d_B, d_C, d_x, d_state.transpose(1, 2), None, None


def _decays(dt: Tensor, A: Tensor, document_starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """The two factors of the exponents: step sizes [B, T, D], infinite at document starts, and rates [N, D], A
    transposed."""
    rate = A.t().contiguous()
    if document_starts is None:
        return dt, rate
    # a rate of 0 times an infinite step is no number; the smallest one decays by 1 over any other step
    return dt.masked_fill(document_starts[..., None], float("inf")), rate.clamp(max=-torch.finfo(rate.dtype).tiny)


def _chunks(size: int, *tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """[B, T, ..] tensors cut along T into chunks, each with its length; the last, if shorter, is padded with zeros to a
    power of two (dt = 0 keeps the state)."""
    for start in range(0, tensors[0].shape[1], size):
        parts = tuple(x[:, start : start + size] for x in tensors)
        length = parts[0].shape[1]
        rows = 1 << (length - 1).bit_length()
        yield length, tuple(nnf.pad(x, (0, 0, 0, rows - length)) for x in parts) if rows > length else parts


def _states(dt: Tensor, rate: Tensor, B: Tensor, u: Tensor, before: Tensor) -> Tensor:
    """All h [B, C, N, D] of a chunk from the state before it: h_t = exp(dt_t rate) h_{t-1} + B_t u_t."""
    h = B[..., None] * u[:, :, None]
    h[:, 0].addcmul_((dt[:, 0, None] * rate).exp_(), before)
    scan_rows(h, dt.clone(), rate)
    return h
