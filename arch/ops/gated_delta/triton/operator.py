"""`gated_delta` by the kernels, as custom operators with fake kernels, gradients and FLOP formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula
from triton.tools.tensor_descriptor import TensorDescriptor

from ...common import lost_by_rounding, no_second_derivative
from ...joint_rows import as_rows, gradients_of, row_stride
from ...triton.descriptors import blocks
from ...triton.device_config import delta_for_device
from ...triton.launch import contiguous, interpreted, on_its_device, operand_dtype
from .channel_kernels import channel_scores
from .gradient_kernel import delta_gradients
from .kernels import delta_operands, delta_run, delta_run_back

Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def attend(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, initial: Tensor | None, counted: int
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, d_v] and the final state [B, H, d_k, d_v], fp32, of q, k [B, T, H, d_k], v [B, T, H, d_v], beta
    [B, T, H] and log_decay [B, T, H] or [B, T, H, d_k], fp32; widths powers of two from 16. counted: the chunk size
    whose FLOPs are counted."""
    dtype = operand_dtype(q, k, v)
    chunk = delta_for_device(q.shape[-1], v.shape[-1], dtype != torch.bfloat16).chunk
    out, final, *_ = _forward(q.to(dtype), k.to(dtype), v.to(dtype), beta, log_decay, initial, chunk, counted)
    return out, final


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, decays: int, chunk: int):
        self.batch, self.length, self.heads, self.key_dim = q.shape
        self.value_dim = v.shape[-1]
        self.rows, self.chunks = self.batch * self.heads, -(-self.length // chunk)
        self.exact = q.dtype != torch.bfloat16
        self.config = delta_for_device(self.key_dim, self.value_dim, self.exact)
        self.sizes = (self.length, self.heads, self.chunks)
        self.strides = tuple(map(row_stride, (q, k, v)))
        self.channel = decays == 4
        self.plain = dict(C=chunk, DK=self.key_dim, EXACT=self.exact, **self.config.target)
        self.flags = dict(DV=self.value_dim, DECAY=decays == 3, **self.plain)
        self.fast = dict(FAST=not interpreted())
        self.run = dict(
            TILE=self.config.run_tile, CHANNEL=self.channel, TMA=self.config.tma, num_warps=self.config.run_warps,
            num_stages=self.config.run_stages,
        )  # fmt: skip
        self.run_grid = (self.value_dim // self.config.run_tile, self.rows)

    def of_rows(self, x: Tensor, width: int) -> Tensor | TensorDescriptor:
        """x [B, T, H, D] as the runs and the gradients take it, for `width` columns at a time."""
        return blocks(x, self.plain["C"], width) if self.config.tma else x

    def own(self, x: Tensor, rows: int, width: int) -> Tensor | TensorDescriptor:
        """The same of a tensor of matrices, for blocks of [rows, width]."""
        return TensorDescriptor.from_tensor(x.flatten(0, 1), [1, rows, width]) if self.config.tma else x


def _decays(log_decay: Tensor | None) -> int:
    """Axes of the decays; 0 without."""
    return 0 if log_decay is None else log_decay.dim()


def _made(q: Tensor, v: Tensor, decays: int, chunk: int) -> Made:
    """What the forward makes: outputs, final state; what the backward needs: the decays' table, keys and scores with
    the inverse, the states before the chunks and the rows written (`delta_run`, `delta_operands`); by channel q and k
    with their decays from the chunk's start."""
    batch, length, heads, key_dim = q.shape
    rows, chunks, value_dim = batch * heads, (length + chunk - 1) // chunk, v.shape[-1]
    table = (rows, chunks, key_dim) if decays == 4 else (4 if decays else 0, rows, chunks, chunk)
    decayed = q.shape if decays == 4 else (0,)
    return (
        v.new_empty(v.shape),
        v.new_empty(batch, heads, key_dim, value_dim, dtype=torch.float32),
        v.new_empty(table, dtype=torch.float32),
        v.new_empty(rows, chunks, chunk, key_dim),
        v.new_empty(rows, chunks, chunk, chunk),
        v.new_empty(rows, chunks, value_dim, key_dim),
        v.new_empty(rows, chunks, value_dim, chunk),
        v.new_empty(decayed),
        v.new_empty(decayed),
    )


@torch.library.custom_op("arch::gated_delta", mutates_args=())
@on_its_device
def _forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, initial: Tensor | None, chunk: int,
    counted: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v = as_rows(q, k, v)
    beta, log_decay, initial = contiguous(beta, log_decay, initial)
    call = _Call(q, k, v, _decays(log_decay), chunk)
    config, tile, key_dim = call.config, call.config.run_tile, call.key_dim
    made = _made(q, v, _decays(log_decay), chunk)
    out, final, table, keys, through, states, written, queries, entering = made
    w, scores, leaving, lower = torch.empty_like(keys), torch.empty_like(through), None, None
    if call.channel:
        leaving, lower = torch.empty_like(entering), torch.empty_like(through, dtype=torch.float32)
        channel_scores[call.rows, call.chunks](
            q, k, beta, log_decay, queries, entering, leaving, table, lower, scores, *call.sizes, *call.strides[:2],
            **call.plain, **call.fast, BK=config.scores_tile, SUB=config.block, num_warps=config.scores_warps,
            num_stages=1,
        )  # fmt: skip
        q, k = queries, entering
    strides = (row_stride(q), row_stride(k), row_stride(v))
    delta_operands[call.rows, call.chunks](
        q, k, leaving, v, beta, log_decay, table, lower, w, written, scores, keys, through, *call.sizes, *strides,
        **call.flags, **call.fast, CHANNEL=call.channel, BK=config.operands_tile[0], BV=config.operands_tile[1],
        SUB=config.block, LEVELS=chunk.bit_length() - 1, SUBLEVELS=config.block.bit_length() - 1,
        num_warps=config.operands_warps, num_stages=1,
    )  # fmt: skip
    k = k if leaving is None else leaving
    rows_written = call.own(written, tile, chunk)  # of M diag(b) V first
    delta_run[call.run_grid](
        call.of_rows(q, key_dim), call.of_rows(k, key_dim), call.own(w, chunk, key_dim), rows_written,
        call.own(scores, chunk, chunk), table, initial, call.own(states, tile, key_dim), rows_written,
        call.of_rows(out, tile), final, *call.sizes, *strides[:2], row_stride(out), **call.flags, **call.run,
        START=initial is not None,
    )  # fmt: skip
    return made


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, initial: Tensor | None, chunk: int,
      counted: int) -> tuple[Tensor, ...]:  # fmt: skip
    return _made(q, v, _decays(log_decay), chunk)


@torch.library.custom_op("arch::gated_delta_backward", mutates_args=("d_q", "d_k", "d_v"))
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None,
    initial: Tensor | None, table: Tensor, keys: Tensor, through: Tensor, states: Tensor, written: Tensor,
    queries: Tensor, entering: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor, chunk: int, counted: int, started: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, all of `as_rows`, into d_q, d_k and d_v, which are laid as they are; those of beta, of
    the log-decays (empty without) and of the initial state. log_decay: by channel alone; started: whether the initial
    state has a gradient."""
    d_out, d_final, beta, log_decay = contiguous(d_out, d_final, beta, log_decay)
    call = _Call(q, k, v, 4 if log_decay is not None else 3 if table.numel() else 0, chunk)
    config, tile, key_dim = call.config, call.config.run_tile, call.key_dim
    d_states, solved = torch.empty_like(states), torch.empty_like(written)
    d_initial = v.new_empty(call.batch, call.heads, key_dim, call.value_dim, dtype=torch.float32)
    at_start = (queries, entering) if call.channel else (q, k)
    delta_run_back[call.run_grid](
        *(call.of_rows(x, key_dim) for x in at_start), call.of_rows(d_out, tile), call.own(keys, chunk, key_dim),
        call.own(through, chunk, chunk), beta, table, d_final, call.own(d_states, tile, key_dim),
        call.own(solved, tile, chunk), d_initial, *call.sizes, *map(row_stride, (*at_start, d_out)), **call.flags,
        **call.run, START=d_final is not None,
    )  # fmt: skip
    channel = call.channel
    width, height = config.channel_tile if channel else config.gradient_tile
    shares = (call.key_dim // width, call.batch, call.length, call.heads)
    d_beta = v.new_empty(shares, dtype=torch.float32)
    if log_decay is not None:
        d_decay = torch.empty_like(log_decay)
    else:
        d_decay = v.new_empty(shares if call.flags["DECAY"] else (0, 0, 0, 0), dtype=torch.float32)
    delta_gradients[shares[0], call.chunks, call.rows](
        q, k, v, beta, log_decay, table, call.of_rows(d_out, height), call.own(written, height, chunk),
        call.own(solved, height, chunk), call.own(states, height, width), call.own(d_states, height, width), d_q, d_k,
        d_v, d_beta, d_decay, *call.sizes, *call.strides, *map(row_stride, (d_out, d_q, d_k, d_v)), **call.flags,
        **call.fast, BK=width, BV=height, SUB=config.block, CHANNEL=channel, TMA=config.tma,
        STAGES=config.channel_stages if channel else config.gradient_stages,
        num_warps=config.channel_warps if channel else config.gradient_warps,
    )  # fmt: skip
    d_decay = d_decay if channel else d_decay.sum(0)
    if d_decay.numel() and call.chunks == 1 and initial is not None and d_final is not None:
        whole = table[:, 0] if call.channel else table[2, :, 0, -1]
        d_decay += lost_by_rounding(initial, d_final, whole, states.dtype, states.dtype)
    return d_beta.sum(0), d_decay, d_initial


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None,
      initial: Tensor | None, table: Tensor, keys: Tensor, through: Tensor, states: Tensor, written: Tensor,
      queries: Tensor, entering: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor, chunk: int, counted: int,
      started: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, heads, key_dim = q.shape
    decays: Any = (batch, length, heads) if table.numel() else (0, 0, 0)
    return (
        v.new_empty(batch, length, heads, dtype=torch.float32),
        v.new_empty(decays if log_decay is None else log_decay.shape, dtype=torch.float32),
        v.new_empty(batch, heads, key_dim, v.shape[-1], dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, beta, log_decay, initial, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, beta, log_decay if _decays(log_decay) == 4 else None, initial, *output[2:])
    ctx.decayed, ctx.has_initial = log_decay is not None, initial is not None
    ctx.set_materialize_grads(False)  # or the saved outputs would get gradients of zeros as large as they are


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    no_second_derivative("gated_delta")
    q, k, v, beta, log_decay, initial, *made = ctx.saved_tensors
    d_out = v.new_zeros(v.shape) if d_out is None else d_out
    q, k, v = as_rows(q, k, v)
    d_q, d_k, d_v = gradients_of(q, k, v)
    d_beta, d_decay, d_initial = _backward(
        d_out, d_final, q, k, v, beta, log_decay, initial, *made, d_q, d_k, d_v, *ctx.options, ctx.needs_input_grad[5]
    )  # fmt: skip
    return (
        d_q, d_k, d_v, d_beta, d_decay if ctx.decayed else None, d_initial if ctx.has_initial else None,
        *[None] * len(ctx.options),
    )  # fmt: skip


_forward.register_autograd(_gradients, setup_context=_save)


def _chunks(length: int, counted: int, by_channel: bool) -> list[tuple[int, int]]:
    """(rows, number) of the whole chunks and of the shorter one left over, by channel a power of two of rows."""
    left = length % counted
    left = 1 << (left - 1).bit_length() if by_channel and left else left
    return [(rows, count) for rows, count in ((counted, length // counted), (left, 1)) if rows and count]


def _flops(q: torch.Size, v: torch.Size, counted: int, by_channel: bool) -> int:
    """The chunk backend's as torch's counter sees them: without its solve, two scores, those of q with the rows
    written, W S, q S and k^T U."""
    each = sum(
        count * rows * ((2 * (rows - 1) if by_channel else 4 * rows) * q[3] + 2 * rows * v[3] + 6 * q[3] * v[3])
        for rows, count in _chunks(q[1], counted, by_channel)
    )
    return q[0] * q[2] * each


@register_flop_formula(torch.ops.arch.gated_delta)
def _(q: Any, k: Any, v: Any, beta: Any, log_decay: Any, initial: Any, chunk: int, counted: int, *args: Any,
      **kwargs: Any) -> int:  # fmt: skip
    return _flops(q, v, counted, log_decay is not None and len(log_decay) == 4)


@register_flop_formula(torch.ops.arch.gated_delta_backward)
def _(d_out: Any, d_final: Any, q: Any, k: Any, v: Any, beta: Any, log_decay: Any, initial: Any, table: Any, keys: Any,
      through: Any, states: Any, written: Any, queries: Any, entering: Any, d_q: Any, d_k: Any, d_v: Any, chunk: int,
      counted: int, started: bool, *args: Any, **kwargs: Any) -> int:  # fmt: skip
    """The solve's gradient is a product of the whole square; without a gradient of its own the first state has none in
    W S."""
    parts = _chunks(q[1], counted, log_decay is not None)
    square = sum(2 * count * rows**2 * (q[3] + v[3]) for rows, count in parts)
    unread = 0 if started else 2 * parts[0][0] * q[3] * v[3]
    return 2 * _flops(q, v, counted, log_decay is not None) + q[0] * q[2] * (square - unread)
