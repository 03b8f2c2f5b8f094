"""`selective_scan` by the kernels, as a custom operator with fake kernels, gradients and FLOP formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ....kernel_config import SELECTIVE_SCAN
from ...triton.launch import interpreted, on_its_device
from .kernels import selective_backward, selective_forward


def mixed(
    dt: Tensor, A: Tensor, B: Tensor, C: Tensor, x: Tensor, initial: Tensor | None, reset: Tensor | None, counted: int
) -> tuple[Tensor, Tensor]:
    """Outputs in x's shape and dtype and the final state [B, D, N], fp32, of dt, x [B, T, D], A [D, N], B, C
    [B, T, N]; initial: [B, D, N], fp32; reset: bool [B, T]. counted: the chunk size whose FLOPs are told."""
    out, final, _ = _forward(dt, A, B, C, x, initial, reset, counted)
    return out, final


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(self, A: Tensor, x: Tensor, reset: Tensor | None, direction: int):
        self.batch, self.length, self.width = x.shape
        self.states = A.shape[1]
        channels = SELECTIVE_SCAN.channels[direction]
        self.count = -(-self.length // SELECTIVE_SCAN.rows)
        self.sizes = (self.length, self.count)
        self.reset = None if reset is None else reset.contiguous().view(torch.int8)
        self.programs = -(-self.width // channels)
        self.grid = (self.programs, self.batch)
        self.flags = dict(
            D=self.width, N=self.states, WIDE=max(16, 1 << (self.states - 1).bit_length()), BD=channels,
            R=SELECTIVE_SCAN.rows, STORED=SELECTIVE_SCAN.stored, RESET=reset is not None, FAST=not interpreted(),
            num_warps=SELECTIVE_SCAN.warps[direction],
            EVEN=self.length % SELECTIVE_SCAN.rows == 0 and self.width % channels == 0, num_stages=1,
        )  # fmt: skip


def _starts(length: int) -> int:
    return -(-length // (SELECTIVE_SCAN.rows * SELECTIVE_SCAN.stored))


@torch.library.custom_op("arch::selective_scan", mutates_args=())
@on_its_device
def _forward(
    dt: Tensor, A: Tensor, B: Tensor, C: Tensor, x: Tensor, initial: Tensor | None, reset: Tensor | None, counted: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the final state, and the states that the backward starts from."""
    dt, A, B, C, x = (y.contiguous() for y in (dt, A, B, C, x))
    call = _Call(A, x, reset, 0)
    out = torch.empty_like(x)
    final = x.new_empty(call.batch, call.width, call.states, dtype=torch.float32)
    starts = final.new_empty(call.batch, _starts(call.length), call.width, call.states)
    selective_forward[call.grid](
        dt, A, B, C, x, call.reset, None if initial is None else initial.contiguous(), out, starts, final,
        *call.sizes, START=initial is not None, **call.flags,
    )  # fmt: skip
    return out, final, starts


@_forward.register_fake
def _(dt: Tensor, A: Tensor, B: Tensor, C: Tensor, x: Tensor, initial: Tensor | None, reset: Tensor | None,
      counted: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, width = x.shape
    return (
        x.new_empty(x.shape),
        x.new_empty(batch, width, A.shape[1], dtype=torch.float32),
        x.new_empty(batch, _starts(length), width, A.shape[1], dtype=torch.float32),
    )


@torch.library.custom_op("arch::selective_scan_backward", mutates_args=())
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, x: Tensor,
    reset: Tensor | None, starts: Tensor, counted: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of dt, A, B, C, x and the initial state."""
    dt, A, B, C, x, d_out = (y.contiguous() for y in (dt, A, B, C, x, d_out))
    call = _Call(A, x, reset, 1)
    d_dt, d_x = torch.empty_like(dt), torch.empty_like(x)
    d_A, d_initial = (starts.new_empty(call.batch, call.width, call.states) for _ in range(2))
    d_B, d_C = (starts.new_empty(call.batch, call.programs, call.length, call.states) for _ in range(2))
    selective_backward[call.grid](
        dt, A, B, C, x, call.reset, starts, d_out, None if d_final is None else d_final.contiguous(), d_dt, d_A, d_B,
        d_C, d_x, d_initial, *call.sizes, FINAL=d_final is not None, **call.flags,
    )  # fmt: skip
    return d_dt, d_A.sum(0).to(A.dtype), d_B.sum(1).to(B.dtype), d_C.sum(1).to(C.dtype), d_x, d_initial


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, x: Tensor,
      reset: Tensor | None, starts: Tensor,
      counted: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    d_initial = x.new_empty(x.shape[0], *A.shape, dtype=torch.float32)
    return *(y.new_empty(y.shape) for y in (dt, A, B, C, x)), d_initial  # type: ignore[return-value]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, initial, reset, ctx.counted = inputs
    ctx.save_for_backward(*tensors, reset, output[2])
    ctx.has_initial = initial is not None
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    *tensors, reset, starts = ctx.saved_tensors
    d_out = torch.zeros_like(tensors[-1]) if d_out is None else d_out
    *grads, d_initial = _backward(d_out, d_final, *tensors, reset, starts, ctx.counted)
    return *grads, d_initial if ctx.has_initial else None, None, None


_forward.register_autograd(_gradients, setup_context=_save)


def _flops(x: torch.Size, states: int, counted: int) -> int:
    """One product of [rows, N] and [N, D] a chunk in the chunk backend, token by token: C_t . h_t. A shorter last chunk
    is a power of two there."""
    length = x[1]
    whole, rest = length // counted * counted, length % counted
    rows = whole + (1 << (rest - 1).bit_length() if rest else 0)
    return 2 * x[0] * rows * states * x[2]


@register_flop_formula(torch.ops.arch.selective_scan)
def _(dt: Any, A: Any, B: Any, C: Any, x: Any, initial: Any, reset: Any, counted: int, *args: Any,
      **kwargs: Any) -> int:  # fmt: skip
    return _flops(x, A[1], counted)


@register_flop_formula(torch.ops.arch.selective_scan_backward)
def _(d_out: Any, d_final: Any, dt: Any, A: Any, B: Any, C: Any, x: Any, reset: Any, starts: Any, counted: int,
      *args: Any, **kwargs: Any) -> int:  # fmt: skip
    """Three such products: the gradients of C, B and dt x."""
    return 3 * _flops(x, A[1], counted)
