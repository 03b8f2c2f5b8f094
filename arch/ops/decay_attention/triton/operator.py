"""`decay_attention` without angles by the kernels: custom operators with fake kernels, gradients and FLOP formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ....kernel_config import decay_config, decay_segments
from ...common import lost_by_rounding, no_second_derivative
from ...joint_rows import as_rows, gradients_of, row_stride, silu_of
from ...triton.device_config import decay_by_hopper_here
from ...triton.launch import contiguous, decay_table_shape, interpreted, on_its_device, operand_dtype
from .attend_portable import decay_attend
from .kernels import activate, add_heads, decay_rows, decay_sums
from .tma import tma_attend, tma_sums

TINY = torch.finfo(torch.float32).tiny
ACTIVATED, SUMMED = 4096, 2048  # numbers of a program of `activate` and, at a time, of `add_heads`


def attend(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, initial: Tensor | None, counted: int, silu: bool = False,
    gain: Tensor | None = None, skip: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs [B, T, H, d_v] and the final state [B, H, d_k, d_v], fp32, of q, k [B, T, G, d_k], v [B, T, H, d_v], G
    dividing H; decay: fp32, None, [H] (no gradient), or [B, T, H]; widths powers of two from 16.
    counted: the chunk size whose FLOPs the FLOP counter is told; silu: of q and k, which are given before it; gain
    [B, T, H], with decays of that shape, and skip [H]: of `decay_attention`, fp32."""
    dtype = operand_dtype(q, k, v)
    shape = q.shape[-1], v.shape[-1], dtype != torch.bfloat16
    config = decay_config(*shape)
    if silu and (decay is None or decay.dim() > 1 or not decay_by_hopper_here(config, *shape)):
        q, k, silu = nnf.silu(q), nnf.silu(k), False
    chunks = -(-q.shape[1] // config.chunk)
    count = decay_segments(config, v.shape[0] * v.shape[2], v.shape[-1], chunks)
    out, final, *_ = _forward(
        q.to(dtype), k.to(dtype), v.to(dtype), decay, initial, config.chunk, count, counted, silu, gain, skip
    )  # fmt: skip
    return out, final


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(
        self, q: Tensor, v: Tensor, table: Tensor, count: int, constant: bool, silu: bool, skip: Tensor | None
    ):
        batch, self.length, self.groups, self.key_dim = q.shape
        self.heads, self.value_dim = v.shape[2:]
        self.rows = batch * self.heads
        exact = q.dtype != torch.bfloat16
        self.config = decay_config(self.key_dim, self.value_dim, exact)
        self.chunks = -(-self.length // self.config.chunk)
        self.count = count
        self.sizes = (self.length, self.heads, self.groups, self.chunks, count, -(-self.chunks // count))
        self.table, self.constant, self.silu, self.skip = table, constant, silu, skip
        self.tma = decay_by_hopper_here(self.config, self.key_dim, self.value_dim, exact)
        self.flags = dict(
            C=self.config.chunk, DK=self.key_dim, DV=self.value_dim, DECAY=table.numel() > 0, GAIN=len(table) == 5,
            EXACT=exact, FAST=not interpreted(), **({} if self.tma and not exact else self.config.target),
        )  # fmt: skip

    def decays(self, decay: Tensor, gain: Tensor | None) -> None:
        """Fills the table of decays inside chunks. Constant ones Hopper's kernels read from its first chunk alone."""
        chunks = 1 if self.tma and self.constant else self.chunks
        decay_rows[(self.rows, chunks)](
            decay.contiguous(), gain, self.table, self.length, self.heads, self.chunks, C=self.config.chunk,
            PER_STEP=not self.constant, GAIN=gain is not None, EXACT=self.flags["EXACT"], num_warps=2,
        )  # fmt: skip

    def sums(self, x: Tensor, y: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
        """What every segment adds to the state, and its decay."""
        shape = (self.rows, self.count if self.count > 1 else 0)
        sums = y.new_empty(*shape, self.key_dim, self.value_dim, dtype=torch.float32)
        totals = y.new_empty(*shape, dtype=torch.float32)
        if self.count > 1 and self.tma:
            tma_sums(
                x, y, self.table, sums, totals, self.sizes, min(self.key_dim, 64), reverse, self.constant, self.flags
            )
        elif self.count > 1:
            tile = self.config.sum_tile
            grid = (self.key_dim // tile[0] * (self.value_dim // tile[1]), self.count - 1, self.rows)
            decay_sums[grid](
                x, y, self.table, sums, totals, *self.sizes, row_stride(x), row_stride(y), BK=tile[0], BV=tile[1],
                REVERSE=reverse, num_warps=self.config.sum_warps, num_stages=self.config.sum_stages, **self.flags,
            )  # fmt: skip
        return sums, totals

    def run(
        self, a: Tensor, b: Tensor, c: Tensor, own: Tensor | None, initial: Tensor | None,
        sums: tuple[Tensor, Tensor], out: Tensor, final: Tensor | None, reverse: bool,
        states: Tensor | None = None, entering: Tensor | None = None,
        gradients: Sequence[Tensor | None] = (None, None, None),
    ) -> None:  # fmt: skip
        config, keys = self.config, own is not None
        if keys:
            stages = config.key_stages if states is None else config.learned_stages
            tile, warps = config.key_tile, config.key_warps
        else:
            tile, warps, stages = config.tile, config.warps, config.stages
        if self.tma:
            tma_attend(
                a, b, c, own, self.table, self.skip, initial, sums, states, entering, out, final, gradients, self.rows,
                self.sizes, tile, reverse, self.constant, self.silu, self.flags,
            )  # fmt: skip
            return
        decay_attend[((self.key_dim if keys else self.value_dim) // tile, self.count, self.rows)](
            a, b, c, own, self.table, self.skip, initial, *sums, states, entering, out, final, *gradients, *self.sizes,
            *(0 if x is None else row_stride(x) for x in (a, b, c, own, out)),
            TILE=tile, KEYS=keys, REVERSE=reverse, START=initial is not None,
            FINAL=final is not None, LEARNED=states is not None, SKIP=self.skip is not None, num_warps=warps,
            num_stages=stages, **self.flags,
        )  # fmt: skip


def activated(q: Tensor, k: Tensor, silu: bool) -> tuple[Tensor, Tensor]:
    """silu of q and k: what their product left with them, else made by one launch. Without `silu`, nothing."""
    if not silu:
        return q.new_empty(0), k.new_empty(0)
    if (pair := silu_of(q, k)) is not None:
        active_q, active_k = pair
        return active_q, active_k
    active = q.new_empty(q.shape), k.new_empty(k.shape)
    activate[(-(-q.numel() // ACTIVATED), 2)](
        q, k, *active, q.numel(), row_stride(q), row_stride(k), WIDTH=q.shape[2] * q.shape[3], BLOCK=ACTIVATED,
        FAST=not interpreted(),
    )  # fmt: skip
    return active


def head_shares(d_q: Tensor, d_k: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Where each of v's `heads` leaves its share of the gradients of q and k [B, T, G, d_k]: themselves where no heads
    share their keys, else [B, T, H, d_k] of the same dtype, for `add_shares`: a share's rounding to bf16 is that of its
    products' operands once more, and in fp32 shares are most of what the backward moves."""
    if d_q.shape[2] == heads:
        return d_q, d_k
    shape = *d_q.shape[:2], heads, d_q.shape[3]
    return d_q.new_empty(shape), d_k.new_empty(shape)


def add_shares(d_q: Tensor, d_k: Tensor, shares: tuple[Tensor, Tensor]) -> None:
    """Adds the heads' shares up in fp32, in a fixed order."""
    if shares[0] is d_q:
        return
    batch, length, groups, width = d_q.shape
    count, rows = batch * length * groups, max(1, SUMMED // width)
    add_heads[(-(-count // rows), 2)](
        d_q, d_k, *shares, count, groups, row_stride(d_q), row_stride(d_k), HEADS=shares[0].shape[2] // groups,
        WIDTH=width, ROWS=rows,
    )  # fmt: skip


@torch.library.custom_op("arch::decay_attention", mutates_args=())
@on_its_device
def _forward(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, initial: Tensor | None, chunk: int, count: int, counted: int,
    silu: bool = False, gain: Tensor | None = None, skip: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs, final state, what each of `count` > 1 segments adds to the state, its decay, decays in chunks, and what
    `silu` says q and k are given before (else empty); the backward takes its derivative where dq and dk are stored."""
    q, k, v = as_rows(q, k, v)
    initial, gain, skip = contiguous(initial, gain, skip)
    active = activated(q, k, silu)
    if silu:
        q, k = active
    table = v.new_empty(decay_table_shape(v, decay, chunk, gain), dtype=torch.float32)
    call = _Call(q, v, table, count, decay is not None and decay.dim() == 1, silu, skip)
    if decay is not None:
        call.decays(decay, gain)
    sums, totals = call.sums(k, v, reverse=False)
    out = v.new_empty(v.shape)
    final = v.new_empty(v.shape[0], call.heads, call.key_dim, call.value_dim, dtype=torch.float32)
    call.run(q, k, v, None, initial, (sums, totals), out, final, reverse=False)
    return out, final, sums, totals, table, *active


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, initial: Tensor | None, chunk: int, count: int,
      counted: int, silu: bool = False, gain: Tensor | None = None, skip: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    batch, _, heads, width = v.shape
    shape = (batch * heads, count if count > 1 else 0)
    return (
        v.new_empty(v.shape),
        v.new_empty(batch, heads, q.shape[-1], width, dtype=torch.float32),
        v.new_empty(*shape, q.shape[-1], width, dtype=torch.float32),
        v.new_empty(*shape, dtype=torch.float32),
        v.new_empty(decay_table_shape(v, decay, chunk, gain), dtype=torch.float32),
        *(x.new_empty(x.shape if silu else 0) for x in (q, k)),
    )


@torch.library.custom_op("arch::decay_attention_backward", mutates_args=("d_q", "d_k", "d_v"))
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, initial: Tensor | None, sums: Tensor,
    totals: Tensor, table: Tensor, active_q: Tensor, active_k: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor,
    count: int, counted: int, learned: bool, constant: bool, silu: bool, gain: Tensor | None, skip: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, all of `as_rows`, into d_q, d_k and d_v, which are laid as they are; those of the
    log-decays and the gain (empty unless learned), of the initial state and of the skip (empty without it)."""
    d_out, d_final, initial, skip = contiguous(d_out, d_final, initial, skip)
    given_q, given_k = q, k
    if silu:
        q, k = active_q, active_k
    call = _Call(q, v, table, count, constant, silu, skip)
    batch, length, heads = v.shape[:3]
    shares = head_shares(d_q, d_k, heads)
    d_initial = v.new_empty(batch, heads, call.key_dim, call.value_dim, dtype=torch.float32)
    states = entering = d_decay = d_gain = None
    d_skip = v.new_empty(call.rows if skip is not None else 0, count, dtype=torch.float32)
    tiles = call.key_dim // call.config.key_tile
    if learned:
        sides = (call.key_dim, call.value_dim) if call.tma else (call.value_dim, call.key_dim)
        states = v.new_empty(call.rows, call.chunks, *sides)
        entering, d_decay, d_gain = (v.new_empty(tiles, batch, length, heads, dtype=torch.float32) for _ in range(3))
    made = d_decay, d_gain, d_skip
    call.run(d_out, v, k, given_q, initial, (sums, totals), shares[0], None, False, states, entering, made)
    later = call.sums(q, d_out, reverse=True)
    call.run(v, d_out, q, given_k, d_final, later, shares[1], None, True, states, entering, made)
    call.run(k, q, d_out, None, d_final, later, d_v, d_initial, reverse=True)
    add_shares(d_q, d_k, shares)
    none = v.new_empty(batch, length, 0, dtype=torch.float32)
    d_decay = none if d_decay is None else d_decay.sum(0)
    # of its log, over it: a row without gain has none
    d_gain = none.clone() if d_gain is None or gain is None else d_gain.sum(0) / gain.clamp(min=TINY)
    if states is not None and call.chunks == 1 and initial is not None and d_final is not None:
        d_decay += lost_by_rounding(initial, d_final, table[1, :, 0, -1].exp2(), states.dtype, torch.float32)
    return d_decay, d_initial, d_gain, d_skip.view(len(d_skip) // heads, heads, count).sum((0, 2))


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, initial: Tensor | None, sums: Tensor,
      totals: Tensor, table: Tensor, active_q: Tensor, active_k: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor,
      count: int, counted: int, learned: bool, constant: bool, silu: bool, gain: Tensor | None, skip: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, heads, _ = v.shape
    return (
        v.new_empty(batch, length, heads if learned else 0, dtype=torch.float32),
        v.new_empty(batch, heads, q.shape[3], v.shape[3], dtype=torch.float32),
        v.new_empty(batch, length, heads if learned and gain is not None else 0, dtype=torch.float32),
        v.new_empty(heads, dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, decay, initial, _, ctx.count, ctx.counted, ctx.silu, gain, skip = inputs
    ctx.constant = decay is not None and decay.dim() == 1
    ctx.save_for_backward(q, k, v, initial, gain, skip, *output[2:])
    ctx.set_materialize_grads(False)  # or the saved outputs would get gradients of zeros as large as they are


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    no_second_derivative("decay_attention")
    q, k, v, initial, gain, skip, *made = ctx.saved_tensors
    learned = ctx.needs_input_grad[3] or (gain is not None and ctx.needs_input_grad[9])  # cut off where it is None
    d_out = v.new_zeros(v.shape) if d_out is None else d_out
    q, k, v = as_rows(q, k, v)
    gradients = gradients_of(q, k, v)
    d_decay, d_initial, d_gain, d_skip = _backward(
        d_out, d_final, q, k, v, initial, *made, *gradients, ctx.count, ctx.counted, learned, ctx.constant, ctx.silu,
        gain, skip,
    )  # fmt: skip
    return (
        *gradients, d_decay if learned else None, None if initial is None else d_initial, None, None, None, None,
        d_gain if learned and gain is not None else None, None if skip is None else d_skip,
    )  # fmt: skip


_forward.register_autograd(_gradients, setup_context=_save)


def chunk_flops(q: torch.Size, v: torch.Size, wide: int, counted: int) -> int:
    """The chunk backend's, of keys `wide` channels wide: q k^T, scores v, q S and k^T v."""
    total = 0
    for rows, count in ((counted, q[1] // counted), (q[1] % counted, 1)):
        total += count * rows * (2 * rows * (wide + v[3]) + 4 * wide * v[3])
    return v[0] * v[2] * total


@register_flop_formula(torch.ops.arch.decay_attention)
def _(q: Any, k: Any, v: Any, decay: Any, initial: Any, chunk: int, count: int, counted: int, *args: Any,
      **kwargs: Any) -> int:  # fmt: skip
    return chunk_flops(q, v, q[3], counted)


@register_flop_formula(torch.ops.arch.decay_attention_backward)
def _(d_out: Any, d_final: Any, q: Any, k: Any, v: Any, initial: Any, sums: Any, totals: Any, table: Any,
      active_q: Any, active_k: Any, d_q: Any, d_k: Any, d_v: Any, count: int, counted: int, *args: Any,
      **kwargs: Any) -> int:  # fmt: skip
    return 2 * chunk_flops(q, v, q[3], counted)
