"""`gated_attention` by the kernels, as custom operators with fake kernels, gradients and FLOP formulas."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ....kernel_config import GatedConfig, gated_chunk
from ...common import no_second_derivative
from ...joint_rows import as_rows, gradients_of, row_stride
from ...triton.column_sums import column_sums
from ...triton.device_config import gated_for_device
from ...triton.launch import contiguous, interpreted, on_its_device, operand_dtype
from .backward_kernels import gated_backward, gated_values
from .far_channels import far_gradients, far_scores
from .forward_kernels import gated_operands, gated_output
from .state_pass import run_pass, state_pass


def attend(
    q: Tensor, key: Tensor | None, v: Tensor, gate: Tensor, bound: Tensor | None, initial: Tensor | None,
    reset: Tensor | None, counted: int, silu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs [B, T, H, d_v] and the final state [B, H, d_k, d_v], fp32, of q, key, gate [B, T, H, d_k], v
    [B, T, H, d_v]; gate: log f, or logits with a bound [H, d_k]; key None for 1 - f; widths powers of two from 16.
    counted: the chunk size whose FLOPs the FLOP counter is told; silu: q is given before its silu."""
    dtype = operand_dtype(q, key, v)
    chunk = gated_chunk(dtype != torch.bfloat16)
    key = None if key is None else key.to(dtype)
    out, final, *_ = _forward(q.to(dtype), key, v.to(dtype), gate, bound, initial, reset, chunk, counted, silu)
    return out, final


def _rows(q: Tensor, key: Tensor | None, v: Tensor, gate: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """`as_rows` with one stride for q, key and gate, as the kernels take them."""
    q, key, v, gate = as_rows(q, key, v, gate)
    if len({row_stride(x) for x in (q, key, gate) if x is not None}) > 1:
        q, key, gate = contiguous(q, key, gate)
    return q, key, v, gate


@lru_cache(maxsize=32)
def sum_matrices(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Matrices of 0 and 1 [5 + levels, size, size] that sum rows s for row t: s <= t, s > t; from the chunk's
    middle to t, with -1 before it; t alone; from the middle of t's half of the chunk to t, with -1 before it; and, for
    blocks of 1, 2, 4, ... rows joined in pairs, the rows between t and the midpoint of its pair."""
    rows = torch.arange(size)
    row, column = rows[:, None], rows[None, :]
    matrices = [column <= row, column > row]
    middle = size // 2
    matrices.append(_outward(row, column, middle))
    matrices.append(column == row)
    own = (row < middle) == (column < middle)
    matrices.append(torch.where(own, _outward(row % middle, column % middle, middle // 2), 0.0))
    for level in range(size.bit_length() - 1):
        late = ((row >> level) & 1) == 1
        matrices.append(((row >> level) == (column >> level)) & torch.where(late, column <= row, column > row))
    return torch.stack([x.float() for x in matrices]).to(dtype).to(device)


def _outward(row: Tensor, column: Tensor, middle: int) -> Tensor:
    """1 from the middle to a row behind it, -1 from a row before it to the middle."""
    return ((column >= middle) & (column <= row)).float() - ((column < middle) & (column > row)).float()


def _config(q: Tensor, v: Tensor) -> GatedConfig:
    return gated_for_device(q.shape[-1], v.shape[-1], q.dtype != torch.bfloat16)


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(
        self, q: Tensor, key: Tensor | None, v: Tensor, bound: Tensor | None, reset: Tensor | None, chunk: int,
        silu: bool,
    ):  # fmt: skip
        self.batch, self.length, self.heads, self.key_dim = q.shape
        self.value_dim = v.shape[-1]
        self.rows, self.chunks = self.batch * self.heads, -(-self.length // chunk)
        self.exact = q.dtype != torch.bfloat16
        self.config = _config(q, v)
        self.own_instructions = self.config.arch is None  # Hopper's; by those of sm80 the kernels would spill
        self.reset = None if reset is None else reset.contiguous().view(torch.int8)
        self.table = sum_matrices(chunk, q.dtype, q.device)
        self.plain = dict(C=chunk, DK=self.key_dim, DV=self.value_dim, RESET=reset is not None, EXACT=self.exact)
        self.gates = dict(
            C=chunk, DK=self.key_dim, EXACT=self.exact, LOGITS=bound is not None, KEY=key is not None,
            RESET=reset is not None, FAST=not interpreted(), SILU=silu,
        )  # fmt: skip
        self.tiles = self.key_dim // self.config.operands_tile  # whose far channels are counted
        self.far = dict(LEVELS=chunk.bit_length() - 1, TILES=self.tiles)
        self.sizes = (self.length, self.heads, self.chunks)
        self.stride, self.value_stride = row_stride(q), row_stride(v)
        self.grid = (self.rows, self.chunks)


@torch.library.custom_op("arch::gated_attention", mutates_args=())
@on_its_device
def _forward(
    q: Tensor, key: Tensor | None, v: Tensor, gate: Tensor, bound: Tensor | None, initial: Tensor | None,
    reset: Tensor | None, chunk: int, counted: int, silu: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs and final state; then what the backward needs: q and k with their decays, the decays between chunks'
    references, how many channels of a tile are far, states and scores of every chunk."""
    q, key, v, gate = _rows(q, key, v, gate)
    bound, initial = contiguous(bound, initial)
    call = _Call(q, key, v, bound, reset, chunk, silu)
    config, first = call.config, q if key is None else key
    queries, keys = q.new_empty(q.shape), q.new_empty(q.shape)
    decays = q.new_empty(call.rows, call.chunks, 3, call.key_dim, dtype=torch.float32)
    ways = q.new_empty(call.rows, call.chunks, call.tiles, dtype=torch.int32)
    gated_operands[call.tiles, *call.grid](
        q, first, gate, bound, call.reset, call.table, queries, keys, decays, ways, *call.sizes, call.stride,
        **call.gates, BK=config.operands_tile, PRODUCTS=call.own_instructions, num_warps=config.operands_warps,
        maxnreg=config.operands_registers, num_stages=1, **config.target,
    )  # fmt: skip
    out, scores = v.new_empty(v.shape), v.new_empty(call.rows, call.chunks, chunk, chunk)
    far_scores[call.grid](
        q, first, gate, bound, call.reset, call.table, decays, ways, scores, *call.sizes, call.stride,
        **call.gates, **call.far, num_warps=4, num_stages=1, maxnreg=config.far_registers[0], **config.target,
    )  # fmt: skip
    if config.sequential:
        states, final = run_pass(
            queries, keys, v, call.reset, decays, ways, scores, out, initial, False, config, call.exact
        )
    else:
        states, final = state_pass(keys, v, call.reset, decays, initial, False, config, call.exact)
        gated_output[call.grid](
            v, call.reset, queries, keys, ways, states, out, scores, *call.sizes, call.value_stride, **call.plain,
            BK=config.output_tile[0], TILES=call.tiles, num_warps=config.output_warps,
            maxnreg=config.output_registers, num_stages=1, **config.target,
        )  # fmt: skip
    final = final.view(call.batch, call.heads, call.key_dim, call.value_dim)
    return out, final, queries, keys, decays, ways, states, scores


@_forward.register_fake
def _(q: Tensor, key: Tensor | None, v: Tensor, gate: Tensor, bound: Tensor | None, initial: Tensor | None,
      reset: Tensor | None, chunk: int, counted: int, silu: bool = False) -> tuple[Tensor, ...]:  # fmt: skip
    batch, length, heads, key_dim = q.shape
    rows, chunks = batch * heads, (length + chunk - 1) // chunk
    return (
        v.new_empty(v.shape),
        v.new_empty(batch, heads, key_dim, v.shape[-1], dtype=torch.float32),
        q.new_empty(q.shape),
        q.new_empty(q.shape),
        v.new_empty(rows, chunks, 3, key_dim, dtype=torch.float32),
        v.new_empty(rows, chunks, key_dim // _config(q, v).operands_tile, dtype=torch.int32),
        v.new_empty(rows, chunks, key_dim, v.shape[-1]),
        v.new_empty(rows, chunks, chunk, chunk),
    )


@torch.library.custom_op("arch::gated_attention_backward", mutates_args=("d_q", "d_key", "d_v", "d_gate"))
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, q: Tensor, key: Tensor | None, v: Tensor, gate: Tensor, bound: Tensor | None,
    reset: Tensor | None, queries: Tensor, keys: Tensor, decays: Tensor, ways: Tensor, states: Tensor, scores: Tensor,
    d_q: Tensor, d_key: Tensor | None, d_v: Tensor, d_gate: Tensor, chunk: int, counted: int, silu: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of q, key, v and gate, all of `_rows`, into d_q, d_key, d_v and d_gate, which are laid as they are;
    those of bound (empty without) and of the initial state."""
    d_out, d_final, bound = contiguous(d_out, d_final, bound)
    call = _Call(q, key, v, bound, reset, chunk, silu)
    bounds = call.heads * call.key_dim if bound is not None else 0
    partial = q.new_empty(call.batch * call.chunks, bounds, dtype=torch.float32)
    config, first, d_first = call.config, q if key is None else key, d_q if d_key is None else d_key
    if config.sequential:
        d_states, d_initial = run_pass(
            keys, queries, d_out, call.reset, decays, ways, scores, d_v, d_final, True, config, call.exact
        )
    else:
        d_states, d_initial = state_pass(queries, d_out, call.reset, decays, d_final, True, config, call.exact)
        gated_values[call.grid](
            keys, call.reset, d_out, d_states, scores, d_v, *call.sizes, call.value_stride, **call.plain,
            BK=config.values_tile, num_warps=config.values_warps, num_stages=1, **config.target,
        )  # fmt: skip
    width = config.backward_tile[0]
    gated_backward[call.key_dim // width, *call.grid](
        q, first, v, gate, bound, call.reset, call.table, queries, keys, decays, d_out, states, d_states, d_q, d_first,
        d_gate, partial, *call.sizes, call.stride, call.value_stride, **call.gates, DV=call.value_dim, BK=width,
        PRODUCTS=call.own_instructions and silu, num_warps=config.backward_warps, maxnreg=config.backward_registers,
        num_stages=1, **config.target,
    )  # fmt: skip
    far_gradients[call.grid](
        q, first, v, gate, bound, call.reset, call.table, decays, ways, d_out, d_q, d_first, d_gate, partial,
        *call.sizes, call.stride, call.value_stride, **call.gates, **call.far, DV=call.value_dim,
        num_warps=4, num_stages=1, maxnreg=config.far_registers[1], **config.target,
    )  # fmt: skip
    d_initial = d_initial.view(call.batch, call.heads, call.key_dim, call.value_dim)
    return column_sums(partial).view(call.heads, -1) if bounds else partial.new_empty(call.heads, 0), d_initial


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, q: Tensor, key: Tensor | None, v: Tensor, gate: Tensor,
      bound: Tensor | None, reset: Tensor | None, queries: Tensor, keys: Tensor, decays: Tensor, ways: Tensor,
      states: Tensor, scores: Tensor, d_q: Tensor, d_key: Tensor | None, d_v: Tensor, d_gate: Tensor, chunk: int,
      counted: int, silu: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    return (
        q.new_empty(q.shape[2], 0 if bound is None else q.shape[3], dtype=torch.float32),
        v.new_empty(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, key, v, gate, bound, initial, reset, *ctx.options = inputs
    ctx.save_for_backward(q, key, v, gate, bound, reset, *output[2:])
    ctx.has_initial = initial is not None
    ctx.set_materialize_grads(False)  # or the saved outputs would get gradients of zeros as large as they are


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    no_second_derivative("gated_attention")
    q, key, v, gate, bound, reset, *made = ctx.saved_tensors
    d_out = v.new_zeros(v.shape) if d_out is None else d_out
    q, key, v, gate = _rows(q, key, v, gate)
    gradients = gradients_of(q, key, v, gate)
    d_bound, d_initial = _backward(d_out, d_final, q, key, v, gate, bound, reset, *made, *gradients, *ctx.options)
    return (
        *gradients,
        None if bound is None else d_bound,
        d_initial if ctx.has_initial else None,
        None,
        *[None] * len(ctx.options),
    )


_forward.register_autograd(_gradients, setup_context=_save)


def _flops(q: torch.Size, v: torch.Size, counted: int) -> int:
    """The chunk backend's: scores by halves, scores v, q S and k^T v; a shorter last chunk is a power of two."""
    total = 0
    for rows, count in ((counted, q[1] // counted), (q[1] % counted, 1)):
        if rows:
            rows = 1 << (rows - 1).bit_length()
            inside = (rows - 1) * q[3] + 2 * rows * v[3]
            total += count * rows * (inside + 4 * q[3] * v[3])
    return q[0] * q[2] * total


@register_flop_formula(torch.ops.arch.gated_attention)
def _(q: Any, key: Any, v: Any, gate: Any, bound: Any, initial: Any, reset: Any, chunk: int, counted: int,
      *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return _flops(q, v, counted)


@register_flop_formula(torch.ops.arch.gated_attention_backward)
def _(d_out: Any, d_final: Any, q: Any, key: Any, v: Any, gate: Any, bound: Any, reset: Any, queries: Any,
      keys: Any, decays: Any, ways: Any, states: Any, scores: Any, d_q: Any, d_key: Any, d_v: Any, d_gate: Any,
      chunk: int, counted: int, *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return 2 * _flops(q, v, counted)
