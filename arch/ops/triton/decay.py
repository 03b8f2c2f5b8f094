"""`decay_attention` by the kernels, as custom operators with fake kernels, gradients and FLOP formulas."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .decay_backward import decay_backward
from .decay_kernels import decay_output, decay_states
from .knobs import decay_knobs
from .launch import interpreted, operand_dtype, state_pass


def attend(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor | None, positions: Tensor | None,
    initial: Tensor | None, counted: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs [B, T, H, d_v] and the final state [B, H, d_k, d_v], fp32, of q, k [B, T, G, d_k], v [B, T, H, d_v], G
    dividing H; decay: fp32, None, [H] (no gradient), or [B, T, H]; widths powers of two from 16. With theta [G, d_k],
    fp32, and positions, int, [T] or [B, T], q and k are doubled by cosines and sines, and the state has 2 d_k rows.
    counted: the chunk size whose FLOPs the FLOP counter is told."""
    dtype = operand_dtype(q, k, v)
    chunk = decay_knobs(q.shape[-1], v.shape[-1], theta is not None, dtype != torch.bfloat16).chunk
    if positions is not None:
        positions = positions.to(torch.int32)
    out, final, _ = _forward(q.to(dtype), k.to(dtype), v.to(dtype), decay, theta, positions, initial, chunk, counted)
    return out, final


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(
        self, q: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor | None, positions: Tensor | None, chunk: int
    ):
        self.batch, self.length, self.groups, self.key_dim = q.shape
        self.heads, self.value_dim = v.shape[2:]
        self.wide = self.key_dim * (1 if theta is None else 2)
        self.rows, self.chunks = self.batch * self.heads, -(-self.length // chunk)
        exact = q.dtype != torch.bfloat16
        self.knobs = decay_knobs(self.key_dim, self.value_dim, theta is not None, exact)
        high = low = stride = None
        if theta is not None and positions is not None:
            turn = theta.double() / (2 * math.pi)
            high = turn.float()
            low = (turn - high).float()
            positions = positions.contiguous()
            stride = self.length if positions.dim() == 2 else 0
        self.turn = (decay, high, low, positions)
        self.flags = dict(
            C=chunk, DK=self.key_dim, DV=self.value_dim, MODE=0 if decay is None else 1 if decay.dim() == 1 else 2,
            TURN=theta is not None, EXACT=exact, FAST=not interpreted(),
        )  # fmt: skip
        self.sizes = (self.length, self.heads, self.groups, self.chunks)
        self.stride = stride or 0
        self.grid = (self.rows, self.chunks)

    def states(self, x: Tensor, v: Tensor, initial: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
        return state_pass(
            decay_states, (x, v, *self.turn), self.flags, self.knobs, initial, reverse, v,
            (self.rows, self.chunks, self.wide, self.value_dim), lambda length: (*self.sizes, length, self.stride),
            v.dtype,
        )  # fmt: skip


@torch.library.custom_op("arch::decay_attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor | None, positions: Tensor | None,
    initial: Tensor | None, chunk: int, counted: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs, final state, and states before every chunk."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    decay = None if decay is None else decay.contiguous()
    initial = None if initial is None else initial.contiguous()
    call = _Call(q, v, decay, theta, positions, chunk)
    states, final = call.states(k, v, initial, reverse=False)
    out = torch.empty_like(v)
    tile = call.knobs.output_tile
    decay_output[(*call.grid, call.value_dim // tile[1])](
        q, k, v, *call.turn, states, out, *call.sizes, call.stride, **call.flags, BK=tile[0], BV=tile[1],
        num_warps=call.knobs.output_warps, maxnreg=call.knobs.output_registers, num_stages=1, **call.knobs.target,
    )  # fmt: skip
    return out, final.view(call.batch, call.heads, call.wide, call.value_dim), states


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor | None, positions: Tensor | None,
      initial: Tensor | None, chunk: int, counted: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, heads, width = v.shape
    wide = q.shape[-1] * (1 if theta is None else 2)
    return (
        v.new_empty(v.shape),
        v.new_empty(batch, heads, wide, width, dtype=torch.float32),
        v.new_empty(batch * heads, (length + chunk - 1) // chunk, wide, width),
    )


@torch.library.custom_op("arch::decay_attention_backward", mutates_args=())
def _backward(
    d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor | None,
    positions: Tensor | None, states: Tensor, chunk: int, counted: int, learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, the log-decays and theta (empty without), and the initial state."""
    q, k, v, d_out = (x.contiguous() for x in (q, k, v, d_out))
    d_final = None if d_final is None else d_final.contiguous()
    decay = None if decay is None else decay.contiguous()
    call = _Call(q, v, decay, theta, positions, chunk)
    d_states, d_initial = call.states(q, d_out, d_final, reverse=True)
    d_v = torch.empty_like(v)
    # every head of v has its own share of its key head's gradient: they are added afterwards, in a fixed order
    shared = call.heads != call.groups
    shape = (call.batch, call.length, call.heads, call.key_dim)
    d_q, d_k = (q.new_empty(shape, dtype=torch.float32 if shared else q.dtype) for _ in range(2))
    d_decay = v.new_empty(call.batch, call.length, call.heads if learned else 0, dtype=torch.float32)
    turned = 0 if theta is None else call.key_dim
    partial = v.new_empty(call.batch, call.heads, call.chunks, turned, dtype=torch.float32)
    tile = call.knobs.backward_tile
    decay_backward[call.grid](
        q, k, v, *call.turn, d_out, states, d_states, d_q, d_k, d_v, d_decay, partial, *call.sizes, call.stride,
        **call.flags, LEARNED=learned, BK=tile[0], BV=tile[1], num_warps=call.knobs.backward_warps,
        maxnreg=call.knobs.backward_registers, num_stages=1, **call.knobs.target,
    )  # fmt: skip
    d_theta = partial.sum((0, 2))
    if shared:
        d_q, d_k = (x.unflatten(2, (call.groups, -1)).sum(3).to(q.dtype) for x in (d_q, d_k))
        d_theta = d_theta.unflatten(0, (call.groups, -1)).sum(1)
    return d_q, d_k, d_v, d_decay, d_theta, d_initial.view(call.batch, call.heads, call.wide, call.value_dim)


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None,
      theta: Tensor | None, positions: Tensor | None, states: Tensor, chunk: int, counted: int,
      learned: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, heads, _ = v.shape
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        v.new_empty(batch, length, heads if learned else 0, dtype=torch.float32),
        v.new_empty(q.shape[2], 0 if theta is None else q.shape[3], dtype=torch.float32),
        v.new_empty(batch, heads, q.shape[3] * (1 if theta is None else 2), v.shape[3], dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, decay, theta, positions, initial, ctx.chunk, ctx.counted = inputs
    ctx.save_for_backward(q, k, v, decay, theta, positions, output[2])
    ctx.has_initial = initial is not None
    ctx.set_materialize_grads(False)  # or the saved outputs would get gradients of zeros as large as they are


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    q, k, v, decay, theta, positions, states = ctx.saved_tensors
    learned = ctx.needs_input_grad[3]
    d_out = torch.zeros_like(v) if d_out is None else d_out
    d_q, d_k, d_v, d_decay, d_theta, d_initial = _backward(
        d_out, d_final, q, k, v, decay, theta, positions, states, ctx.chunk, ctx.counted, learned
    )
    return (
        d_q,
        d_k,
        d_v,
        d_decay if learned else None,
        None if theta is None else d_theta,
        None,
        d_initial if ctx.has_initial else None,
        None,
        None,
    )


_forward.register_autograd(_gradients, setup_context=_save)


def _flops(q: torch.Size, v: torch.Size, theta: torch.Size | None, counted: int) -> int:
    """The chunk form's: q k^T, scores v, q S and k^T v."""
    wide, total = q[3] * (1 if theta is None else 2), 0
    for rows, count in ((counted, q[1] // counted), (q[1] % counted, 1)):
        total += count * rows * (2 * rows * (wide + v[3]) + 4 * wide * v[3])
    return v[0] * v[2] * total


@register_flop_formula(torch.ops.arch.decay_attention)
def _(q: Any, k: Any, v: Any, decay: Any, theta: Any, positions: Any, initial: Any, chunk: int, counted: int,
      *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return _flops(q, v, theta, counted)


@register_flop_formula(torch.ops.arch.decay_attention_backward)
def _(d_out: Any, d_final: Any, q: Any, k: Any, v: Any, decay: Any, theta: Any, positions: Any, states: Any,
      chunk: int, counted: int, learned: bool, *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return 2 * _flops(q, v, theta, counted)
