"""`scan` by the kernels, as a custom operator with fake kernels, gradients and FLOP formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ....kernel_config import scan_config
from ...triton.launch import interpreted, on_its_device
from .backward_kernel import scan_backward
from .forward_kernel import scan_forward


def recur(
    gate: Tensor, bound: Tensor | None, x: Tensor, theta: Tensor | None, initial: Tensor | None, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """h in x's shape and dtype and the final state [B, parts, D], fp32, of gate, log lam, and x [B, T, D], with theta
    [D] or [B, T, D] x [B, T, D, 2]. With a bound [D], fp32, gate is logits: lam = bound + (1 - bound) sigmoid(gate),
    and (1 - lam) x enters. initial: [B, parts, D], fp32; reset: bool [B, T]."""
    out, final, _ = _forward(gate, bound, x, theta, initial, reset)
    return out, final


class _Call:
    """The parts of a launch that forward and backward have in common."""

    def __init__(
        self, gate: Tensor, bound: Tensor | None, x: Tensor, theta: Tensor | None, reset: Tensor | None, direction: int
    ):
        self.batch, self.length, self.width = gate.shape
        self.parts = 1 if theta is None else 2
        self.tiles = scan_config(self.batch, self.width, self.parts)
        blocks = self.tiles.blocks[direction]
        rows = blocks * self.tiles.rows
        self.count = -(-self.length // rows)
        self.rotate = 0 if theta is None else 1 if theta.dim() == 1 else 2
        cos = sin = None
        if theta is not None and self.rotate == 1:
            cos, sin = theta.double().cos().float(), theta.double().sin().float()
        self.angles = (theta if self.rotate == 2 else None, cos, sin)
        self.reset = None if reset is None else reset.contiguous().view(torch.int8)
        channels = self.tiles.channels
        self.flags = dict(
            D=self.width, BD=channels, W=blocks, R=self.tiles.rows, PARTS=self.parts, ROTATE=self.rotate,
            LOGITS=bound is not None, RESET=reset is not None,
            EVEN=self.length % rows == 0 and self.width % channels == 0, FAST=not interpreted(),
            num_warps=self.tiles.warps(direction), num_stages=1,
        )  # fmt: skip
        self.grid = (-(-self.width // channels), self.batch)


def _starts(batch: int, length: int, width: int, parts: int) -> tuple[int, ...]:
    size = scan_config(batch, width, parts)
    blocks = size.blocks[0]
    return batch, -(-length // (blocks * size.rows)) * blocks, parts, width


@torch.library.custom_op("arch::scan", mutates_args=())
@on_its_device
def _forward(
    gate: Tensor, bound: Tensor | None, x: Tensor, theta: Tensor | None, initial: Tensor | None, reset: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """h, the final state, and the states before every block."""
    gate, x = gate.contiguous(), x.contiguous()
    bound, theta, initial = (None if y is None else y.contiguous() for y in (bound, theta, initial))
    call = _Call(gate, bound, x, theta, reset, 0)
    out = torch.empty_like(x)
    final = x.new_empty(call.batch, call.parts, call.width, dtype=torch.float32)
    starts = x.new_empty(_starts(call.batch, call.length, call.width, call.parts), dtype=torch.float32)
    scan_forward[call.grid](
        gate, bound, x, *call.angles, call.reset, initial, out, starts, final, call.length, call.count,
        START=initial is not None, **call.flags,
    )  # fmt: skip
    return out, final, starts


@_forward.register_fake
def _(gate: Tensor, bound: Tensor | None, x: Tensor, theta: Tensor | None, initial: Tensor | None,
      reset: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, width = gate.shape
    parts = 1 if theta is None else 2
    return (
        x.new_empty(x.shape),
        x.new_empty(batch, parts, width, dtype=torch.float32),
        x.new_empty(_starts(batch, length, width, parts), dtype=torch.float32),
    )


@torch.library.custom_op("arch::scan_backward", mutates_args=())
@on_its_device
def _backward(
    d_out: Tensor, d_final: Tensor | None, gate: Tensor, bound: Tensor | None, x: Tensor, theta: Tensor | None,
    reset: Tensor | None, starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of gate, bound (empty without), x, theta (empty without) and the initial state."""
    gate, x, d_out = gate.contiguous(), x.contiguous(), d_out.contiguous()
    bound, theta, d_final = (None if y is None else y.contiguous() for y in (bound, theta, d_final))
    call = _Call(gate, bound, x, theta, reset, 1)
    d_gate, d_x = torch.empty_like(gate), torch.empty_like(x)
    d_initial = x.new_empty(call.batch, call.parts, call.width, dtype=torch.float32)
    d_bound, d_angles = (
        d_initial.new_empty(call.batch, call.width if there else 0) for there in (bound is not None, call.rotate == 1)
    )
    d_theta = torch.empty_like(theta) if theta is not None and call.rotate == 2 else d_angles
    scan_backward[call.grid](
        gate, bound, x, *call.angles, call.reset, starts, d_out, d_final, d_gate, d_x, d_theta, d_bound, d_angles,
        d_initial, call.length, call.count, starts.shape[1], FINAL=d_final is not None, **call.flags,
    )  # fmt: skip
    return d_gate, d_bound.sum(0), d_x, d_theta if call.rotate == 2 else d_angles.sum(0), d_initial


@_backward.register_fake
def _(d_out: Tensor, d_final: Tensor | None, gate: Tensor, bound: Tensor | None, x: Tensor, theta: Tensor | None,
      reset: Tensor | None, starts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, _, width = gate.shape
    d_theta = x.new_empty(0 if theta is None else width, dtype=torch.float32)
    return (
        gate.new_empty(gate.shape),
        x.new_empty(0 if bound is None else width, dtype=torch.float32),
        x.new_empty(x.shape),
        theta.new_empty(theta.shape) if theta is not None and theta.dim() == 3 else d_theta,
        x.new_empty(batch, 1 if theta is None else 2, width, dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    gate, bound, x, theta, initial, reset = inputs
    ctx.save_for_backward(gate, bound, x, theta, reset, output[2])
    ctx.has_initial = initial is not None
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_out: Tensor | None, d_final: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    gate, bound, x, theta, reset, starts = ctx.saved_tensors
    d_out = torch.zeros_like(x) if d_out is None else d_out
    d_gate, d_bound, d_x, d_theta, d_initial = _backward(d_out, d_final, gate, bound, x, theta, reset, starts)
    return (
        d_gate,
        None if bound is None else d_bound,
        d_x,
        None if theta is None else d_theta,
        d_initial if ctx.has_initial else None,
        None,
    )


_forward.register_autograd(_gradients, setup_context=_save)


@register_flop_formula([torch.ops.arch.scan, torch.ops.arch.scan_backward])
def _(*args: Any, **kwargs: Any) -> int:
    """No matrix product, in the chunk backend neither."""
    return 0
