"""`decay_attention` with angles by the kernels, as custom operators with fake kernels, gradients and FLOP formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ....kernel_config import rotary_segments
from ...common import lost_by_rounding, no_second_derivative
from ...joint_rows import as_rows, gradients_of, row_stride
from ...triton.device_config import rotary_for_device
from ...triton.launch import contiguous, decay_table_shape, interpreted, on_its_device, operand_dtype
from .kernels import decay_rows
from .operator import activated, add_shares, chunk_flops, head_shares
from .rotary_angles import rotary_parts
from .rotary_hopper import attend_runs
from .rotary_portable import rotary_backward, rotary_output, rotary_states

PARTS = 512  # numbers of a program of `rotary_parts`


def attend_rotary(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor, positions: Tensor, initial: Tensor | None,
    counted: int, silu: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs [B, T, H, d_v] and the final state [B, H, 2 d_k, d_v], fp32, of q, k [B, T, G, d_k], v [B, T, H, d_v], G
    dividing H, q and k doubled by cosines and sines of positions, int, [T] or [B, T], times theta [G, d_k], fp32;
    decay: fp32, None, [H] (no gradient), or [B, T, H]; widths powers of two from 16.
    counted: the chunk size whose FLOPs the FLOP counter is told; silu: of q and k, which are given before it."""
    dtype = operand_dtype(q, k, v)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    high, low, steps = _parts(theta.detach(), positions)
    config = rotary_for_device(q.shape[-1], v.shape[-1], dtype != torch.bfloat16)
    if config.sequential and decay is None:
        return attend_runs(q, k, v, theta, high, low, steps, initial, counted, silu, config)
    chunks = -(-q.shape[1] // config.chunk)
    count = rotary_segments(config, v.shape[0] * v.shape[2], q.shape[-1], v.shape[-1], chunks)
    out, final, *_ = _forward(q, k, v, decay, theta, high, low, steps, initial, config.chunk, count, counted, silu)
    return out, final


@torch.library.custom_op("arch::rotary_parts", mutates_args=())
@on_its_device
def _parts(theta: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """theta / 2 pi in two fp32 parts, and the positions in fp32, as which the kernels take them anyway."""
    (positions,) = contiguous(positions)
    high, low = (theta.new_empty(theta.shape) for _ in range(2))
    steps = theta.new_empty(positions.shape)
    programs = -(-max(theta.numel(), positions.numel()) // PARTS)
    rotary_parts[(programs,)](
        theta, positions, high, low, steps, theta.numel(), positions.numel(), *theta.stride(), DK=theta.shape[1],
        BLOCK=PARTS,
    )  # fmt: skip
    return high, low, steps


@_parts.register_fake
def _(theta: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return theta.new_empty(theta.shape), theta.new_empty(theta.shape), theta.new_empty(positions.shape)


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(self, q: Tensor, v: Tensor, table: Tensor, high: Tensor, low: Tensor, positions: Tensor, count: int):
        batch, self.length, self.groups, self.key_dim = q.shape
        self.heads, self.value_dim = v.shape[2:]
        self.rows = batch * self.heads
        exact = q.dtype != torch.bfloat16
        self.config = rotary_for_device(self.key_dim, self.value_dim, exact)
        self.chunks = -(-self.length // self.config.chunk)
        self.count = count
        self.stride = self.length if positions.dim() == 2 else 0
        self.around = (table, *contiguous(high, low), positions)
        self.sizes = (self.length, self.heads, self.groups, self.chunks)
        self.flags = dict(
            C=self.config.chunk, DK=self.key_dim, DV=self.value_dim, DECAY=table.numel() > 0, EXACT=exact,
            FAST=not interpreted(), **self.config.target,
        )  # fmt: skip

    def states(self, x: Tensor, y: Tensor, initial: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
        """The states before (reverse: after) every chunk, and the last one."""
        config, size = self.config, (2 * self.key_dim, self.value_dim)
        segments = self.count if self.count > 1 else 0
        sums = y.new_empty(self.rows, segments, *size, dtype=torch.float32)
        totals = y.new_empty(self.rows, segments, dtype=torch.float32)
        states = y.new_empty(self.rows, self.chunks, size[1], size[0])
        final = y.new_empty(y.shape[0], self.heads, *size, dtype=torch.float32)
        tile = config.state_tile
        tiles = self.key_dim // tile[0] * (self.value_dim // tile[1])
        for store in (False, True):
            if count := self.count - (not store):
                rotary_states[(tiles, count, self.rows)](
                    x, y, *self.around, initial, sums, totals, states, final, *self.sizes, self.count,
                    -(-self.chunks // self.count), self.stride, row_stride(x), row_stride(y), BK=tile[0], BV=tile[1],
                    START=initial is not None, STORE=store, REVERSE=reverse, num_warps=config.state_warps,
                    num_stages=config.state_stages, **self.flags,
                )  # fmt: skip
        return states, final


@torch.library.custom_op("arch::rotary_attention", mutates_args=())
@on_its_device
def _forward(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor, high: Tensor, low: Tensor,
    positions: Tensor, initial: Tensor | None, chunk: int, count: int, counted: int, silu: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs, final state, the states before every chunk, decays in chunks, and silu of q and k, as in operator.py.

    theta is there for its gradient; the kernels read theta / 2 pi, high + low, and positions in fp32.
    """
    q, k, v = as_rows(q, k, v)
    positions, initial = contiguous(positions, initial)
    active = activated(q, k, silu)
    if silu:
        q, k = active
    table = v.new_empty(decay_table_shape(v, decay, chunk), dtype=torch.float32)
    call = _Call(q, v, table, high, low, positions, count)
    if decay is not None:
        decay_rows[(call.rows, call.chunks)](
            decay.contiguous(), None, table, call.length, call.heads, call.chunks, C=chunk,
            PER_STEP=decay.dim() == 3, GAIN=False, EXACT=False, num_warps=2,
        )  # fmt: skip
    states, final = call.states(k, v, initial, reverse=False)
    config, out = call.config, v.new_empty(v.shape)
    rotary_output[(call.chunks, call.rows)](
        q, k, v, *call.around, states, out, *call.sizes, call.stride, *map(row_stride, (q, k, v, out)),
        BK=config.output_tile, STAGES=config.output_stages, num_warps=config.warps, **call.flags,
    )  # fmt: skip
    return out, final, states, table, *active


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor, high: Tensor, low: Tensor,
      positions: Tensor, initial: Tensor | None, chunk: int, count: int, counted: int,
      silu: bool = False) -> tuple[Tensor, ...]:  # fmt: skip
    batch, length, heads, width = v.shape
    wide = 2 * q.shape[-1]
    return (
        v.new_empty(v.shape),
        v.new_empty(batch, heads, wide, width, dtype=torch.float32),
        v.new_empty(batch * heads, (length + chunk - 1) // chunk, width, wide),
        v.new_empty(decay_table_shape(v, decay, chunk), dtype=torch.float32),
        *(x.new_empty(x.shape if silu else 0) for x in (q, k)),
    )


@torch.library.custom_op("arch::rotary_attention_backward", mutates_args=("d_q", "d_k", "d_v"))
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, high: Tensor, low: Tensor,
    positions: Tensor, initial: Tensor | None, states: Tensor, table: Tensor, active_q: Tensor, active_k: Tensor,
    d_q: Tensor, d_k: Tensor, d_v: Tensor, count: int, counted: int, learned: bool, silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, all of `as_rows`, into d_q, d_k and d_v, which are laid as they are; those of the
    log-decays (empty unless learned), of theta and of the initial state."""
    d_out, d_final, positions, initial = contiguous(d_out, d_final, positions, initial)
    given_q, given_k = q, k
    if silu:
        q, k = active_q, active_k
    call = _Call(q, v, table, high, low, positions, count)
    batch, length, heads = v.shape[:3]
    d_states, d_initial = call.states(q, d_out, d_final, reverse=True)
    shares = head_shares(d_q, d_k, heads)
    d_angles = v.new_empty(2, batch, heads, call.chunks, call.key_dim, dtype=torch.float32)
    d_decay = v.new_empty(2, batch, length, heads if learned else 0, dtype=torch.float32)
    config = call.config
    rotary_backward[(3 * call.chunks, call.rows)](
        q, k, given_q, given_k, v, d_out, *call.around, states, d_states, *shares, d_v, d_angles, d_decay, *call.sizes,
        call.stride, *map(row_stride, (q, k, given_q, given_k, v, d_out, *shares)), BK=config.key_tile,
        STAGES=config.key_stages, VALUE_BK=config.value_tile, VALUE_STAGES=config.value_stages, LEARNED=learned,
        SILU=silu, num_warps=config.warps, maxnreg=None if learned else config.registers, **call.flags,
    )  # fmt: skip
    add_shares(d_q, d_k, shares)
    d_theta = d_angles.sum((0, 1, 3)).unflatten(0, (call.groups, -1)).sum(1)
    d_decay = d_decay.sum(0)
    if learned and call.chunks == 1 and initial is not None and d_final is not None:
        d_decay += lost_by_rounding(initial, d_final, table[1, :, 0, -1].exp2(), states.dtype, states.dtype)
    return d_decay, d_theta, d_initial


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, high: Tensor, low: Tensor,
      positions: Tensor, initial: Tensor | None, states: Tensor, table: Tensor, active_q: Tensor, active_k: Tensor,
      d_q: Tensor, d_k: Tensor, d_v: Tensor, count: int, counted: int, learned: bool,
      silu: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, heads, width = v.shape
    return (
        v.new_empty(batch, length, heads if learned else 0, dtype=torch.float32),
        v.new_empty(q.shape[2:], dtype=torch.float32),
        v.new_empty(batch, heads, 2 * q.shape[3], width, dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, _, _, high, low, positions, initial, _, ctx.count, ctx.counted, ctx.silu = inputs
    ctx.save_for_backward(q, k, v, high, low, positions, initial, *output[2:])
    ctx.set_materialize_grads(False)  # or the saved outputs would get gradients of zeros as large as they are


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    no_second_derivative("decay_attention")
    (q, k, v, *made), learned = ctx.saved_tensors, ctx.needs_input_grad[3]
    d_out = v.new_zeros(v.shape) if d_out is None else d_out
    q, k, v = as_rows(q, k, v)
    gradients = gradients_of(q, k, v)
    d_decay, d_theta, d_initial = _backward(
        d_out, d_final, q, k, v, *made, *gradients, ctx.count, ctx.counted, learned, ctx.silu
    )
    unread = (None,) * 3
    return (
        *(*gradients, d_decay if learned else None, d_theta),
        *unread,
        None if made[3] is None else d_initial,
        *(None,) * 4,
    )


_forward.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.arch.rotary_attention)
def _(q: Any, k: Any, v: Any, decay: Any, theta: Any, high: Any, low: Any, positions: Any, initial: Any, chunk: int,
      count: int, counted: int, *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return chunk_flops(q, v, 2 * q[3], counted)


@register_flop_formula(torch.ops.arch.rotary_attention_backward)
def _(d_out: Any, d_final: Any, q: Any, k: Any, v: Any, high: Any, low: Any, positions: Any, initial: Any,
      states: Any, table: Any, active_q: Any, active_k: Any, d_q: Any, d_k: Any, d_v: Any, count: int, counted: int,
      *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return 2 * chunk_flops(q, v, 2 * q[3], counted)
