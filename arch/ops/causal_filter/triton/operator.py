"""`causal_filter` by the kernels, as a custom operator with fake kernels, gradients and FLOP formulas.

docs/research/kernels-scans.md has the plan. The decays are constants here: learned ones take the chunk backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ...triton.launch import interpreted, on_its_device, operand_dtype
from .intra_chunk_kernels import filter_intra_chunk, filter_lags
from .kernels import filter_carry, filter_output, filter_states, filter_weights

ROWS = 16  # of a chunk, inside which lags are summed one by one
STATE_ROWS = 64  # of a chunk where no outputs are wanted


@dataclass(frozen=True)
class Tiles:
    length: int  # rows of a segment
    channels: int
    warps: int = 4
    intra_chunk: tuple[int, int] = (64, 4)  # channels and chunks of a program inside chunks, two numbers a thread


def tiles(batch: int, length: int, width: int, poles: int) -> Tiles:
    """Segments as long as leaves some programs for every one of 132 processors."""
    channels = 64 if poles <= 128 else 32
    size = 512
    while size > STATE_ROWS and batch * -(-length // size) * -(-width // channels) < 512:
        size //= 2
    return Tiles(size, channels)


def filtered(
    x: Tensor, mix: Tensor, log_decay: Tensor, initial: Tensor | None, reset: Tensor | None, counted: int
) -> tuple[Tensor, Tensor]:
    """Outputs in x's shape and dtype, and the final state [B, e, d], fp32, of x [B, T, d], mix [d, e] and log_decay
    [e], both fp32; initial: [B, e, d], fp32; reset: bool [B, T]. counted: the chunk size whose FLOPs are told."""
    rank = None if reset is None else reset.cumsum(1, dtype=torch.int32)
    out, final = _forward(x, mix, log_decay, initial, rank, counted)
    return out, final


class _Call:
    """The launches that forward and backward have in common, on contiguous x, or gradients of outputs."""

    def __init__(self, x: Tensor, mix: Tensor, log_decay: Tensor, rank: Tensor | None):
        self.batch, self.length, self.width = x.shape
        self.mix, self.log_decay, self.rank = mix.contiguous(), log_decay.contiguous(), rank
        self.poles = mix.shape[1]
        self.tiles = tiles(self.batch, self.length, self.width, self.poles)
        self.segments = -(-self.length // self.tiles.length)
        self.sizes = (self.length, self.tiles.length)
        exact = operand_dtype(x) != torch.bfloat16
        self.plain = dict(D=self.width, E=self.poles, RESET=rank is not None)
        wide = max(16, 1 << (self.poles - 1).bit_length())
        self.flags = self.plain | dict(WIDE=wide, EXACT=exact, FAST=not interpreted(), arch="sm80", num_stages=2)

    def grid(self, channels: int) -> tuple[int, int, int]:
        return -(-self.width // channels), self.segments, self.batch

    def powers(self) -> Tensor:
        """lam^0 .. lam^(ROWS - 1), [ROWS, e]; lam^0 is 1, of lam = 0 too."""
        steps = torch.arange(ROWS, device=self.log_decay.device)[:, None]
        return torch.where(steps > 0, steps * self.log_decay, 0.0).exp()

    def states(self, x: Tensor, initial: Tensor | None, weigh: bool, reverse: bool) -> tuple[Tensor, Tensor]:
        """The states at the segments' starts, [B, segments, e, d], and the last one [B, e, d]."""
        size = self.tiles
        states = x.new_empty(self.batch, self.segments, self.poles, self.width, dtype=torch.float32)
        final = states.new_empty(self.batch, self.poles, self.width)
        filter_states[self.grid(size.channels)](
            x, self.rank, self.mix, self.log_decay, states, *self.sizes, BD=size.channels, C=STATE_ROWS,
            MIX=weigh, REVERSE=reverse, num_warps=size.warps, **self.flags,
        )  # fmt: skip
        filter_carry[(-(-self.width // 256), self.poles, self.batch)](
            self.rank, self.log_decay, initial, states, final, *self.sizes, self.segments, BD=256,
            START=initial is not None, REVERSE=reverse, **self.plain,
        )  # fmt: skip
        return states, final

    def outputs(self, x: Tensor, starts: Tensor, reverse: bool) -> Tensor:
        out = torch.empty_like(x)
        kernel = (self.powers()[:, None] * self.mix).sum(-1)
        channels, chunks = self.tiles.intra_chunk
        filter_intra_chunk[(-(-self.width // channels), -(-self.length // (chunks * ROWS)), self.batch)](
            x, self.rank, kernel, out, self.length, D=self.width, BD=channels, W=chunks, C=ROWS,
            RESET=self.rank is not None, REVERSE=reverse, num_warps=chunks * channels // 64,
        )  # fmt: skip
        filter_output[self.grid(self.tiles.channels)](
            x, self.rank, self.mix, self.log_decay, starts, out, *self.sizes, BD=self.tiles.channels, C=ROWS,
            REVERSE=reverse, num_warps=self.tiles.warps, **self.flags,
        )  # fmt: skip
        return out

    def weights(self, x: Tensor, d_out: Tensor) -> Tensor:
        """The gradient of mix, [d, e]."""
        starts, _ = self.states(x, None, False, False)
        d_mix = torch.empty_like(starts)
        d_kernel = starts.new_empty(self.batch, self.segments, ROWS, self.width)
        filter_weights[self.grid(self.tiles.channels)](
            x, d_out, self.rank, self.log_decay, starts, d_mix, *self.sizes, BD=self.tiles.channels, C=ROWS,
            num_warps=self.tiles.warps, **self.flags,
        )  # fmt: skip
        channels, chunks = self.tiles.intra_chunk
        filter_lags[self.grid(channels)](
            x, d_out, self.rank, d_kernel, *self.sizes, D=self.width, BD=channels, W=chunks, C=ROWS,
            RESET=self.rank is not None, num_warps=chunks * channels // 64,
        )  # fmt: skip
        inside = d_kernel.sum((0, 1))[..., None] * self.powers()[:, None]
        return d_mix.sum((0, 1)).t() + inside.sum(0)


@torch.library.custom_op("arch::causal_filter", mutates_args=())
@on_its_device
def _forward(
    x: Tensor, mix: Tensor, log_decay: Tensor, initial: Tensor | None, rank: Tensor | None, counted: int
) -> tuple[Tensor, Tensor]:
    """Outputs and the final state."""
    x = x.contiguous()
    call = _Call(x, mix, log_decay, rank)
    starts, final = call.states(x, None if initial is None else initial.contiguous(), True, False)
    return call.outputs(x, starts, False), final


@_forward.register_fake
def _(x: Tensor, mix: Tensor, log_decay: Tensor, initial: Tensor | None, rank: Tensor | None,
      counted: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape), x.new_empty(x.shape[0], mix.shape[1], x.shape[2], dtype=torch.float32)


@torch.library.custom_op("arch::causal_filter_backward", mutates_args=())
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, x: Tensor, mix: Tensor, log_decay: Tensor, rank: Tensor | None, counted: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, mix and the initial state."""
    x, d_out = x.contiguous(), d_out.contiguous()
    call = _Call(x, mix, log_decay, rank)
    starts, d_initial = call.states(d_out, None if d_final is None else d_final.contiguous(), False, True)
    d_x = call.outputs(d_out, starts, True)
    d_mix = call.weights(x, d_out)
    if d_final is not None:
        # the final state is the sum of x_t lam^(T - 1 - t) weighed by mix
        d_mix = d_mix + (call.states(x, None, False, False)[1] * d_final).sum(0).t()
    return d_x, d_mix.contiguous(), d_initial  # as the fake kernel says, which compiled models go by


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, x: Tensor, mix: Tensor, log_decay: Tensor, rank: Tensor | None,
      counted: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        x.new_empty(x.shape),
        mix.new_empty(mix.shape),
        x.new_empty(x.shape[0], mix.shape[1], x.shape[2], dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, mix, log_decay, initial, rank, ctx.counted = inputs
    ctx.save_for_backward(x, mix, log_decay, rank)
    ctx.has_initial = initial is not None
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None) -> tuple[Tensor | None, ...]:
    x, mix, log_decay, rank = ctx.saved_tensors
    d_out = torch.zeros_like(x) if d_out is None else d_out
    d_x, d_mix, d_initial = _backward(d_out, d_final, x, mix, log_decay, rank, ctx.counted)
    return d_x, d_mix, None, d_initial if ctx.has_initial else None, None, None


_forward.register_autograd(_gradients, setup_context=_save)


def _flops(x: torch.Size, poles: int, counted: int, packed: bool, backward: bool) -> int:
    """The chunk backend's: the kernel, then by chunk the states' update and reading and, of whole documents, the
    Toeplitz product. Only that one has two operands with gradients; the state read by a lone first chunk has none."""
    batch, length, width = x
    total = 0
    for rows, count in ((counted, length // counted), (length % counted, 1)):
        if rows and count:
            inside = 0 if packed else rows * rows * (2 if backward else 1)
            states = 1 if backward and not total and count == 1 else 2
            total += 2 * width * rows * poles + count * batch * 2 * width * (states * rows * poles + inside)
    return total


@register_flop_formula(torch.ops.arch.causal_filter)
def _(x: Any, mix: Any, log_decay: Any, initial: Any, rank: Any, counted: int, *args: Any, **kwargs: Any) -> int:
    return _flops(x, mix[1], counted, rank is not None, False)


@register_flop_formula(torch.ops.arch.causal_filter_backward)
def _(d_out: Any, d_final: Any, x: Any, mix: Any, log_decay: Any, rank: Any, counted: int,
      *args: Any, **kwargs: Any) -> int:  # fmt: skip
    return _flops(x, mix[1], counted, rank is not None, True)
