"""`decay_attention` with angles by the kernels, as custom operators with fake kernels, gradients and FLOP formulas."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .decay import activated, chunk_flops
from .decay_kernels import decay_rows
from .knobs import turned_knobs, turned_segments
from .launch import contiguous, decay_table_shape, forked, interpreted, on_its_device, operand_dtype
from .turned_angles import turned_parts
from .turned_kernels import turned_backward, turned_output, turned_states
from .turned_runs import attend_runs

PARTS = 512  # numbers of a program of `turned_parts`


def attend_turned(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor, positions: Tensor, initial: Tensor | None,
    counted: int, silu: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs [B, T, H, d_v] and the final state [B, H, 2 d_k, d_v], fp32, of q, k [B, T, G, d_k], v [B, T, H, d_v], G
    dividing H, q and k doubled by cosines and sines of positions, int, [T] or [B, T], times theta [G, d_k], fp32;
    decay: fp32, None, [H] (no gradient), or [B, T, H]; widths powers of two from 16.
    counted: the chunk size whose FLOPs the FLOP counter is told; silu: of q and k, which are given before it."""
    dtype = operand_dtype(q, k, v)
    knobs = turned_knobs(q.shape[-1], v.shape[-1], dtype != torch.bfloat16)
    activation = knobs.activation if silu else ""
    if silu and not activation:
        q, k = nnf.silu(q), nnf.silu(k)
    interval = knobs.interval if decay is None else 1
    blocks = -(-q.shape[1] // (interval * knobs.chunk))
    count = turned_segments(knobs, v.shape[0] * v.shape[2], q.shape[-1], v.shape[-1], blocks)
    if knobs.prepared or knobs.runs:
        high, low, steps = _parts(theta.detach(), positions)
    else:
        turn = theta.detach().double() / (2 * math.pi)
        high = turn.float()
        low, steps = (turn - high).float(), positions.to(torch.int32)
    if knobs.runs and decay is None:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        return attend_runs(q, k, v, theta, high, low, steps, initial, counted, activation, knobs)
    kept = knobs.kept and torch.is_grad_enabled()
    out, final, *_ = _forward(
        q.to(dtype), k.to(dtype), v.to(dtype), decay, theta, high, low, steps, initial, knobs.chunk, interval, kept,
        count, counted, activation,
    )  # fmt: skip
    return out, final


@torch.library.custom_op("arch::turned_parts", mutates_args=())
@on_its_device
def _parts(theta: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """theta / 2 pi in two fp32 parts, and the positions in fp32, as which the kernels take them anyway."""
    (positions,) = contiguous(positions)
    high, low = (theta.new_empty(theta.shape) for _ in range(2))
    steps = theta.new_empty(positions.shape)
    programs = -(-max(theta.numel(), positions.numel()) // PARTS)
    turned_parts[(programs,)](
        theta, positions, high, low, steps, theta.numel(), positions.numel(), *theta.stride(), DK=theta.shape[1],
        BLOCK=PARTS,
    )  # fmt: skip
    return high, low, steps


@_parts.register_fake
def _(theta: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return theta.new_empty(theta.shape), theta.new_empty(theta.shape), theta.new_empty(positions.shape)


@functools.lru_cache(maxsize=32)
def unit_table(size: int, device: torch.device) -> Tensor:
    """What `unit_matrix` loads, [size, 2 size]."""
    unit = torch.eye(size, dtype=torch.bfloat16, device=device).view(size, -1, 1, 8)
    return unit.expand(-1, -1, 2, -1).flatten(1)


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(
        self, q: Tensor, v: Tensor, table: Tensor, high: Tensor, low: Tensor, positions: Tensor, interval: int,
        count: int, activation: str,
    ) -> None:  # fmt: skip
        batch, self.length, self.groups, self.key_dim = q.shape
        self.heads, self.value_dim = v.shape[2:]
        self.rows = batch * self.heads
        exact = q.dtype != torch.bfloat16
        self.knobs = turned_knobs(self.key_dim, self.value_dim, exact)
        self.chunks = -(-self.length // self.knobs.chunk)
        self.blocks, self.interval, self.count = -(-self.chunks // interval), interval, count
        self.stride = self.length if positions.dim() == 2 else 0
        self.around = (table, *contiguous(high, low), positions)
        self.sizes = (self.length, self.heads, self.groups)
        self.flags = dict(
            DK=self.key_dim, DV=self.value_dim, DECAY=table.numel() > 0, EXACT=exact,
            FAST=not interpreted(), ACTIVATION=activation, **self.knobs.target,
        )  # fmt: skip

    def state_tensors(self, y: Tensor) -> tuple[Tensor, ...]:
        """What `states` fills: sums of segments, their decays, the states before (after) every block, the last one."""
        size, segments = (2 * self.key_dim, self.value_dim), self.count if self.count > 1 else 0
        return (
            y.new_empty(self.rows, segments, *size, dtype=torch.float32),
            y.new_empty(self.rows, segments, dtype=torch.float32),
            y.new_empty(self.rows, self.blocks, size[1], size[0]),
            y.new_empty(y.shape[0], self.heads, *size, dtype=torch.float32),
        )

    def states(
        self, x: Tensor, y: Tensor, initial: Tensor | None, found: tuple[Tensor, ...], reverse: bool,
        piece: tuple[int, int],
    ) -> None:  # fmt: skip
        """Into `found` the states before (reverse: after) all blocks of `interval` chunks of a piece, and behind it."""
        knobs, tile = self.knobs, self.knobs.state_tile
        tiles = self.key_dim // tile[0] * (self.value_dim // tile[1])
        for store in (False, True):
            if count := self.count - (not store):
                turned_states[(tiles, count, self.rows)](
                    x, y, *self.around, initial, *found, *self.sizes, self.blocks, *piece, self.count,
                    -(-self.blocks // self.count), self.stride, C=self.interval * knobs.chunk, BK=tile[0], BV=tile[1],
                    START=initial is not None, STORE=store, REVERSE=reverse, num_warps=knobs.state_warps,
                    num_stages=knobs.state_stages, maxnreg=knobs.state_registers, **self.flags,
                )  # fmt: skip

    def by_pieces(
        self, x: Tensor, y: Tensor, initial: Tensor | None, found: tuple[Tensor, ...], reverse: bool,
        use: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """`states`, and `use` of the chunks from a first to before a last one. In pieces the states, which are one long
        chain, go on a stream of their own, and first where there is room for either."""
        count = min(self.knobs.pieces, self.blocks) if self.count == 1 else 1
        length = -(-self.blocks // count)
        pieces = [(first, min(first + length, self.blocks)) for first in range(0, self.blocks, length)]
        if count == 1:
            self.states(x, y, initial, found, reverse, pieces[0])
            return use(0, self.chunks)
        pieces = pieces[::-1] if reverse else pieces
        with forked(y, -1) as side:
            ready = []
            with torch.cuda.stream(side):
                for piece in pieces:
                    self.states(x, y, initial, found, reverse, piece)
                    initial = found[-1]
                    ready.append(side.record_event() if side else None)
            for (first, last), event in zip(pieces, ready, strict=True):
                if event:
                    torch.cuda.current_stream().wait_event(event)
                use(first * self.interval, min(last * self.interval, self.chunks))


@torch.library.custom_op("arch::turned_attention", mutates_args=())
@on_its_device
def _forward(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor, high: Tensor, low: Tensor,
    positions: Tensor, initial: Tensor | None, chunk: int, interval: int, kept: bool, count: int, counted: int,
    activation: str = "",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs, final state, the states before every block of `interval` chunks, scores (empty unless kept), decays in
    chunks, and silu of q and k, as in decay.py.

    theta is there for its gradient; the kernels read theta / 2 pi, high + low.
    """
    q, k, v, positions, initial = contiguous(q, k, v, positions, initial)
    table = v.new_empty(decay_table_shape(v, decay, chunk), dtype=torch.float32)
    active = activated(q, k, activation)
    if activation == "gradient":
        q, k = active
    call = _Call(q, v, table, high, low, positions, interval, count, activation)
    if decay is not None:
        decay_rows[(call.rows, call.chunks)](
            decay.contiguous(), table, call.length, call.heads, call.chunks, C=chunk, PER_STEP=decay.dim() == 3,
            num_warps=2,
        )  # fmt: skip
    *_, states, final = found = call.state_tensors(v)
    knobs, out = call.knobs, torch.empty_like(v)
    scores = v.new_empty(call.rows, score_count(call.length, chunk, interval, kept), chunk, chunk)

    def use(first: int, last: int) -> None:
        turned_output[(last - first, call.rows)](
            q, k, v, *call.around, states, scores, out, *call.sizes, call.chunks, first, call.stride,
            ORDER=-1 if knobs.timewise else 0, INTERVAL=interval, C=chunk, BK=knobs.output_tile,
            STAGES=knobs.output_stages, KEPT=kept, num_warps=knobs.warps, maxnreg=knobs.output_registers, **call.flags,
        )  # fmt: skip

    call.by_pieces(k, v, initial, found, False, use)
    return out, final, states, scores, table, *active


def score_count(length: int, chunk: int, interval: int, kept: bool) -> int:
    """Matrices of scores that are kept of a sequence: `score_place`."""
    chunks = (length + chunk - 1) // chunk
    return 0 if not kept else chunks if interval == 1 else chunks + chunks // 2


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, theta: Tensor, high: Tensor, low: Tensor,
      positions: Tensor, initial: Tensor | None, chunk: int, interval: int, kept: bool, count: int,
      counted: int, activation: str = "") -> tuple[Tensor, ...]:  # fmt: skip
    batch, length, heads, width = v.shape
    wide = 2 * q.shape[-1]
    return (
        v.new_empty(v.shape),
        v.new_empty(batch, heads, wide, width, dtype=torch.float32),
        v.new_empty(batch * heads, (length + interval * chunk - 1) // (interval * chunk), width, wide),
        v.new_empty(batch * heads, score_count(length, chunk, interval, kept), chunk, chunk),
        v.new_empty(decay_table_shape(v, decay, chunk), dtype=torch.float32),
        *(x.new_empty(x.shape if activation == "gradient" else 0) for x in (q, k)),
    )


@torch.library.custom_op("arch::turned_attention_backward", mutates_args=())
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, high: Tensor, low: Tensor,
    positions: Tensor, states: Tensor, scores: Tensor, table: Tensor, active_q: Tensor, active_k: Tensor, interval: int,
    count: int, counted: int, learned: bool, activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, the log-decays (empty unless learned), theta, and the initial state."""
    d_out, d_final, q, k, v, positions = contiguous(d_out, d_final, q, k, v, positions)
    given_q, given_k = q, k
    if activation == "gradient":
        q, k = active_q, active_k
    call = _Call(q, v, table, high, low, positions, interval, count, activation)
    batch, length, heads = v.shape[:3]
    *_, d_states, d_initial = found = call.state_tensors(v)
    # every head of v has its own share of its key head's gradient: they are added afterwards, in a fixed order
    shared = call.heads != call.groups
    shape = (batch, length, heads, call.key_dim)
    d_q, d_k = (q.new_empty(shape, dtype=torch.float32 if shared else q.dtype) for _ in range(2))
    d_v = torch.empty_like(v)
    d_turn = v.new_empty(2, batch, heads, call.chunks, call.key_dim, dtype=torch.float32)
    d_decay = v.new_empty(2, batch, length, heads if learned else 0, dtype=torch.float32)
    knobs = call.knobs
    units = unit_table(knobs.key_tile, q.device) if knobs.units else q.new_empty(0)

    def run(kind: int, kinds: int, first: int, last: int, order: int = 1) -> None:
        turned_backward[(kinds * (last - first), call.rows)](
            q, k, given_q, given_k, v, d_out, *call.around, states, d_states, scores, d_q, d_k, d_v, d_turn, d_decay,
            units, *call.sizes, call.chunks, first, call.stride, FIRST=kind, KINDS=kinds,
            ORDER=order if knobs.timewise else 0, INTERVAL=interval, C=knobs.chunk, BK=knobs.key_tile,
            STAGES=knobs.key_stages, VALUE_BK=knobs.value_tile, VALUE_STAGES=knobs.value_stages, LEARNED=learned,
            SHARED=knobs.shared_weights and not learned,
            AHEAD=knobs.ahead and call.flags["FAST"] and not call.flags["EXACT"], UNITS=knobs.units,
            KEPT=scores.numel() > 0, num_warps=knobs.warps, maxnreg=None if learned else knobs.registers, **call.flags,
        )  # fmt: skip

    if knobs.overlap and knobs.pieces == 1:
        # the pass over the states leaves most of each multiprocessor idle; d_q does not wait for it
        with forked(v, -1 if knobs.overlap == "states" else 0) as side:
            with torch.cuda.stream(side if knobs.overlap == "states" else None):
                call.states(q, d_out, d_final, found, True, (0, call.blocks))
                run(1, 2, 0, call.chunks)
            with torch.cuda.stream(side if knobs.overlap == "dq" else None):
                run(0, 1, 0, call.chunks, -1)  # in the order in which the pass takes q and d_out
    else:
        call.by_pieces(q, d_out, d_final, found, True, lambda first, last: run(0, 3, first, last))
    d_theta = d_turn.sum((0, 1, 3))
    if shared:
        d_q, d_k = (x.unflatten(2, (call.groups, -1)).sum(3).to(q.dtype) for x in (d_q, d_k))
        d_theta = d_theta.unflatten(0, (call.groups, -1)).sum(1)
    return d_q, d_k, d_v, d_decay.sum(0), d_theta, d_initial


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, q: Tensor, k: Tensor, v: Tensor, high: Tensor, low: Tensor,
      positions: Tensor, states: Tensor, scores: Tensor, table: Tensor, active_q: Tensor, active_k: Tensor,
      interval: int, count: int, counted: int, learned: bool, activation: str,
      ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, heads, width = v.shape
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        v.new_empty(batch, length, heads if learned else 0, dtype=torch.float32),
        v.new_empty(q.shape[2:], dtype=torch.float32),
        v.new_empty(batch, heads, 2 * q.shape[3], width, dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, _, _, high, low, positions, initial, _, ctx.interval, _, *ctx.options = inputs
    ctx.started = initial is not None
    ctx.save_for_backward(q, k, v, high, low, positions, *output[2:])
    ctx.set_materialize_grads(False)  # or the saved outputs would get gradients of zeros as large as they are


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    tensors, (count, counted, activation) = ctx.saved_tensors, ctx.options
    learned = ctx.needs_input_grad[3]
    d_out = torch.zeros_like(tensors[2]) if d_out is None else d_out
    d_q, d_k, d_v, d_decay, d_theta, d_initial = _backward(
        d_out, d_final, *tensors, ctx.interval, count, counted, learned, activation
    )
    unread = (None,) * 3
    return (
        *(d_q, d_k, d_v, d_decay if learned else None, d_theta),
        *unread,
        d_initial if ctx.started else None,
        *(None,) * 6,
    )


_forward.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.arch.turned_attention)
def _(q: Any, k: Any, v: Any, decay: Any, theta: Any, high: Any, low: Any, positions: Any, initial: Any, chunk: int,
      interval: int, kept: bool, count: int, counted: int, *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return chunk_flops(q, v, 2 * q[3], counted)


@register_flop_formula(torch.ops.arch.turned_attention_backward)
def _(d_out: Any, d_final: Any, q: Any, k: Any, v: Any, high: Any, low: Any, positions: Any, states: Any, scores: Any,
      table: Any, active_q: Any, active_k: Any, interval: int, count: int, counted: int, learned: bool, *args: Any,
      **kwargs: Any) -> int:  # fmt: skip
    return 2 * chunk_flops(q, v, 2 * q[3], counted)
