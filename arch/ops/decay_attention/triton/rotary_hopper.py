"""`decay_attention` with angles and without decays on Hopper: four sequential runs whose states stay in registers.

Outputs and values' gradient by `rotary_hopper_values` or its twin in Gluon, gradients of queries and keys by
`rotary_hopper_keys`; a sequence is cut into segments, whose sums two more launches make. As custom operators with fake
kernels, gradients, FLOP formulas.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ....kernel_config import RotaryConfig, rotary_hopper_segments
from ...common import no_second_derivative
from ...joint_rows import as_rows, gradients_of
from ...triton.descriptors import blocks
from ...triton.device_config import rotary_for_device
from ...triton.launch import contiguous, interpreted, on_its_device
from .operator import activated, add_shares, chunk_flops, head_shares
from .rotary_hopper_keys import run_keys
from .rotary_hopper_sums import rotary_hopper_sums
from .rotary_hopper_values import rotary_hopper_values

# Channels of a program (values: all at once), warps, pipeline stages; docs/research/kernels-decay-attention-angles.md
# has the others that were timed.
SUM_TILE, SUM_WARPS, SUM_STAGES = 32, 4, 3
KEY_TILE, KEY_WARPS, KEY_STAGES = 32, 4, 3
VALUE_WARPS, VALUE_STAGES = 8, 3


def attend_runs(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, high: Tensor, low: Tensor, steps: Tensor, initial: Tensor | None,
    counted: int, silu: bool, config: RotaryConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`attend_rotary` without decays, q, k, v of the operands' dtype, d_k from 32; high + low: theta / 2 pi; steps:
    positions. silu: of q and k, which are given before it."""
    count = rotary_hopper_segments(config, v.shape[0] * v.shape[2], -(-q.shape[1] // config.chunk))
    out, final, *_ = _forward(q, k, v, theta, high, low, steps, initial, count, counted, silu)
    return out, final


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(self, q: Tensor, v: Tensor, high: Tensor, low: Tensor, steps: Tensor, count: int) -> None:
        batch, length, groups, self.key_dim = q.shape
        heads, self.value_dim = v.shape[2:]
        self.rows, self.count = batch * heads, count
        exact = q.dtype != torch.bfloat16
        config = rotary_for_device(self.key_dim, self.value_dim, exact)
        self.chunk, self.gluon = config.chunk, config.gluon
        self.chunks = -(-length // self.chunk)
        self.stride = length if steps.dim() == 2 else 0
        high, low = contiguous(high, low)
        self.angles = high, low, steps
        self.sizes = (length, heads, groups, self.chunks, count, -(-self.chunks // count))
        self.flags = dict(
            C=self.chunk, DK=self.key_dim, DV=self.value_dim, EXACT=exact, FAST=not interpreted(),
        )  # fmt: skip

    def sums(self, x: Tensor, y: Tensor, reverse: bool) -> Tensor:
        """What every segment adds to the state, [BH, segments, 2 d_k, d_v]."""
        segments = self.count if self.count > 1 else 0
        sums = y.new_empty(self.rows, segments, 2 * self.key_dim, self.value_dim, dtype=torch.float32)
        if segments:
            tile = min(self.key_dim, SUM_TILE)
            rotary_hopper_sums[(self.key_dim // tile, segments - 1, self.rows)](
                blocks(x, self.chunk, tile), blocks(y, self.chunk, self.value_dim), *self.angles, sums, *self.sizes,
                self.stride, BK=tile, REVERSE=reverse, num_warps=SUM_WARPS, num_stages=SUM_STAGES, **self.flags,
            )  # fmt: skip
        return sums

    def values(
        self, a: Tensor, b: Tensor, c: Tensor, initial: Tensor | None, sums: Tensor, out: Tensor, final: Tensor,
        reverse: bool,
    ) -> None:  # fmt: skip
        if self.gluon:
            from .rotary_hopper_values_gluon import run_values

            return run_values(
                a, b, c, self.angles, initial, sums, out, final, self.sizes, self.stride, reverse, self.flags
            )
        rotary_hopper_values[(self.count, self.rows)](
            *(blocks(x, self.chunk, self.key_dim // 4) for x in (a, b)), blocks(c, self.chunk, self.value_dim),
            *self.angles, initial, sums, blocks(out, self.chunk, self.value_dim), final, *self.sizes, self.stride,
            REVERSE=reverse, START=initial is not None, num_warps=VALUE_WARPS, num_stages=VALUE_STAGES, **self.flags,
        )  # fmt: skip

    def keys(
        self, a: Tensor, b: Tensor, c: Tensor, own: Tensor, initial: Tensor | None, sums: Tensor, out: Tensor,
        d_angles: Tensor, reverse: bool, silu: bool,
    ) -> None:  # fmt: skip
        flags = self.flags | dict(TILE=min(self.key_dim, KEY_TILE), STAGES=KEY_STAGES, num_warps=KEY_WARPS)
        run_keys(a, b, c, own, *self.angles, initial, sums, out, d_angles, self.sizes, reverse, silu, flags)


@torch.library.custom_op("arch::rotary_hopper", mutates_args=())
@on_its_device
def _forward(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, high: Tensor, low: Tensor, steps: Tensor, initial: Tensor | None,
    count: int, counted: int, silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs, final state, what each of `count` > 1 segments adds to the state, and silu of q and k: operator.py.

    theta is there for its gradient; the kernels read theta / 2 pi, high + low.
    """
    q, k, v = as_rows(q, k, v)
    steps, initial = contiguous(steps, initial)
    active = activated(q, k, silu)
    if silu:
        q, k = active
    call = _Call(q, v, high, low, steps, count)
    sums, out = call.sums(k, v, reverse=False), v.new_empty(v.shape)
    final = v.new_empty(v.shape[0], v.shape[2], 2 * call.key_dim, call.value_dim, dtype=torch.float32)
    call.values(q, k, v, initial, sums, out, final, reverse=False)
    return out, final, sums, *active


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, theta: Tensor, high: Tensor, low: Tensor, steps: Tensor, initial: Tensor | None,
      count: int, counted: int, silu: bool) -> tuple[Tensor, ...]:  # fmt: skip
    batch, _, heads, width = v.shape
    wide = 2 * q.shape[-1]
    return (
        v.new_empty(v.shape),
        v.new_empty(batch, heads, wide, width, dtype=torch.float32),
        v.new_empty(batch * heads, count if count > 1 else 0, wide, width, dtype=torch.float32),
        *(x.new_empty(x.shape if silu else 0) for x in (q, k)),
    )


@torch.library.custom_op("arch::rotary_hopper_backward", mutates_args=("d_q", "d_k", "d_v"))
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, high: Tensor, low: Tensor, steps: Tensor,
    initial: Tensor | None, sums: Tensor, active_q: Tensor, active_k: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor,
    count: int, counted: int, silu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, all of `as_rows`, into d_q, d_k and d_v, which are laid as they are; those of theta and
    of the initial state."""
    d_out, d_final, steps, initial = contiguous(d_out, d_final, steps, initial)
    given_q, given_k = q, k
    if silu:
        q, k = active_q, active_k
    call = _Call(q, v, high, low, steps, count)
    batch, _, heads = v.shape[:3]
    shares = head_shares(d_q, d_k, heads)
    d_initial = v.new_empty(batch, heads, 2 * call.key_dim, call.value_dim, dtype=torch.float32)
    d_angles = v.new_empty(2, batch, heads, count, call.key_dim, dtype=torch.float32)
    call.keys(d_out, v, k, given_q, initial, sums, shares[0], d_angles[0], False, silu)
    later = call.sums(q, d_out, reverse=True)
    call.keys(v, d_out, q, given_k, d_final, later, shares[1], d_angles[1], True, silu)
    call.values(k, q, d_out, d_final, later, d_v, d_initial, reverse=True)
    add_shares(d_q, d_k, shares)
    return d_angles.sum((0, 1, 3)).unflatten(0, (q.shape[2], -1)).sum(1), d_initial


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, high: Tensor, low: Tensor, steps: Tensor,
      initial: Tensor | None, sums: Tensor, active_q: Tensor, active_k: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor,
      count: int, counted: int, silu: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, _, heads, width = v.shape
    return (
        v.new_empty(q.shape[2:], dtype=torch.float32),
        v.new_empty(batch, heads, 2 * q.shape[3], width, dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, _, high, low, steps, initial, *ctx.options = inputs
    ctx.started = initial is not None
    ctx.save_for_backward(q, k, v, high, low, steps, initial, *output[2:])
    ctx.set_materialize_grads(False)  # or the saved outputs would get gradients of zeros as large as they are


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    no_second_derivative("decay_attention")
    q, k, v, *made = ctx.saved_tensors
    d_out = v.new_zeros(v.shape) if d_out is None else d_out
    q, k, v = as_rows(q, k, v)
    gradients = gradients_of(q, k, v)
    d_theta, d_initial = _backward(d_out, d_final, q, k, v, *made, *gradients, *ctx.options)
    return (*gradients, d_theta, None, None, None, d_initial if ctx.started else None, None, None, None)


_forward.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.arch.rotary_hopper)
def _(q: Any, k: Any, v: Any, theta: Any, high: Any, low: Any, steps: Any, initial: Any, count: int, counted: int,
      *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return chunk_flops(q, v, 2 * q[3], counted)


@register_flop_formula(torch.ops.arch.rotary_hopper_backward)
def _(d_out: Any, d_final: Any, q: Any, k: Any, v: Any, high: Any, low: Any, steps: Any, initial: Any, sums: Any,
      active_q: Any, active_k: Any, d_q: Any, d_k: Any, d_v: Any, count: int, counted: int, *args: Any,
      **kwargs: Any) -> int:  # fmt: skip
    return 2 * chunk_flops(q, v, 2 * q[3], counted)
