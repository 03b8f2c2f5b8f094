"""Launches of row_kernels.py with their gradients. Plain autograd functions: compiled models do not come here, for the
compiler fuses plain PyTorch itself, and a custom op's dispatch would cost more time of the host than the kernels."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...joint_rows import as_rows, gradients_in, gradients_of, place_of, row_stride
from ...triton.column_sums import column_sums
from ...triton.launch import on_its_device
from .row_kernels import (
    cross_entropy,
    move_rows,
    norm_backward,
    norm_forward,
    product_backward,
    product_forward,
    rotate,
    scale,
    unit_rows,
)

TILE = 4096  # numbers of a program
BLOCK = 32_768  # logits a program reads at a time: with fewer, more rows than the L2 cache holds are under way
SHARES = 1024  # programs at most that add up a weight's gradient


def _tiles(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """Rows of x [.., d], tiles they are cut into, and the kernel's constants."""
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    rows, count = max(1, TILE // block), x.numel() // width
    return count, triton.cdiv(count, rows), {"R": rows, "BLOCK": block, "num_warps": 4 if block <= TILE else 8}


def _norm(x: Tensor, branch: Tensor | None, gate: Tensor | None, weight: Tensor | None, eps: float) -> list[Tensor]:
    x, (branch, gate) = x.contiguous(), (None if t is None else t.contiguous() for t in (branch, gate))
    out, total = torch.empty_like(x), x if branch is None else torch.empty_like(x)
    count, tiles, constants = _tiles(x)
    norm_forward[(tiles,)](
        x, branch, gate, weight, total, out, eps, count, x.shape[-1],
        BRANCH=branch is not None, GATE=gate is not None, WEIGHT=weight is not None, **constants,
    )  # fmt: skip
    return [total, out]


def norm_gradients(
    d_out: Tensor, total: Tensor, gate: Tensor | None, weight: Tensor | None, eps: float, d_total: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Of the input, the gate and the weight."""
    d_out, d_total = d_out.contiguous(), None if d_total is None else d_total.contiguous()
    gate = None if gate is None else gate.contiguous()
    d_x, d_gate = torch.empty_like(total), None if gate is None else torch.empty_like(gate)
    count, tiles, constants = _tiles(total)
    width = total.shape[-1]
    programs = tiles if weight is None else min(tiles, SHARES)
    shares = None if weight is None else total.new_empty(programs, width, dtype=torch.float32)
    norm_backward[(programs,)](
        d_out, total, gate, weight, d_total, d_x, d_gate, shares, eps, count, width, tiles,
        TOTAL=d_total is not None, GATE=gate is not None, WEIGHT=weight is not None, **constants,
    )  # fmt: skip
    return d_x, d_gate, None if shares is None or weight is None else column_sums(shares).to(weight.dtype)


class Norm(torch.autograd.Function):
    """x [.., d], gate like x or None, weight [d] or None, eps -> x / rms(x) [* weight] [* sigmoid(gate)]."""

    @staticmethod
    @on_its_device
    def forward(ctx: Any, x: Tensor, gate: Tensor | None, weight: Tensor | None, eps: float) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, gate, weight)
        ctx.eps = eps
        return _norm(x, None, gate, weight, eps)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, weight = ctx.saved_tensors
        return *norm_gradients(grads[0], x, gate, weight, ctx.eps, None), None


class AddNorm(torch.autograd.Function):
    """x, branch [.., d], weight [d] or None, eps -> the sum s in x's dtype, and s / rms(s) [* weight]."""

    @staticmethod
    @on_its_device
    def forward(ctx: Any, x: Tensor, branch: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
        total, out = _norm(x, branch, None, weight, eps)
        ctx.save_for_backward(total, weight)
        ctx.eps, ctx.branch_dtype = eps, branch.dtype
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (d_total, d_out), (total, weight) = grads, ctx.saved_tensors
        if d_out is None:
            return d_total, None if d_total is None else d_total.to(ctx.branch_dtype), None, None
        d_x, _, d_weight = norm_gradients(d_out, total, None, weight, ctx.eps, d_total)
        return d_x, d_x.to(ctx.branch_dtype), d_weight, None


class Product(torch.autograd.Function):
    """a * b, or by `gate` a * silu(b) or a * sigmoid(b); a and b of one shape, out in a's dtype."""

    @staticmethod
    @on_its_device
    def forward(ctx: Any, a: Tensor, b: Tensor, gate: str) -> Tensor:
        a, b = a.contiguous(), b.contiguous()
        ctx.save_for_backward(a, b)
        ctx.gate = gate
        out = torch.empty_like(a)
        product_forward[_pieces(out)](a, b, out, out.numel(), BLOCK=TILE, GATE=gate, HALF=0)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        d_out, d_a, d_b = grads[0].contiguous(), torch.empty_like(a), torch.empty_like(b)
        product_backward[_pieces(a)](d_out, a, b, d_a, d_b, a.numel(), BLOCK=TILE, GATE=ctx.gate, HALF=0)
        return d_a, d_b, None


def _pieces(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), TILE),)


class HalvesProduct(torch.autograd.Function):
    """`Product` of the left and the right half of x [.., 2 d]: [.., d]."""

    @staticmethod
    @on_its_device
    def forward(ctx: Any, x: Tensor, gate: str) -> Tensor:
        x, half = x.contiguous(), x.shape[-1] // 2
        ctx.save_for_backward(x)
        ctx.gate = gate
        out = x.new_empty(*x.shape[:-1], half)
        product_forward[_pieces(out)](x, x[..., half:], out, out.numel(), BLOCK=TILE, GATE=gate, HALF=half)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        d_out, d_x, half = grads[0].contiguous(), torch.empty_like(x), x.shape[-1] // 2
        product_backward[_pieces(d_out)](
            d_out, x, x[..., half:], d_x, d_x[..., half:], d_out.numel(), BLOCK=TILE, GATE=ctx.gate, HALF=half
        )
        return d_x, None


@on_its_device
def scaled(x: Tensor, by: Tensor) -> Tensor:
    """x times `by`, a number on the same GPU: PyTorch's own kernel for that reads number by number."""
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scale[_pieces(out)](x, by, out, out.numel(), BLOCK=TILE)
    return out


@on_its_device
def copy_rows(x: Tensor, out: Tensor) -> None:
    """x [N, D] to out [N, D] of one dtype, of dense rows at any distance."""
    count, tiles, constants = _tiles(x)
    move_rows[(tiles,)](x, out, count, x.shape[1], x.stride(0), out.stride(0), **constants)


def _rotate(q: Tensor, k: Tensor, out_q: Tensor, out_k: Tensor, cos: Tensor, sin: Tensor, back: bool) -> None:
    (batch, length), half = q.shape[:2], q.shape[-1] // 2
    block = triton.next_power_of_2(half)
    rows, tokens = max(1, TILE // 4 // block), batch * length
    rotate[(triton.cdiv(tokens, rows), 2)](
        q, k, out_q, out_k, cos, sin, tokens, cos.numel() // half, q.shape[2], k.shape[2],
        *map(row_stride, (q, k, out_q, out_k)), R=rows, HALF=half, BLOCK=block, BACK=back,
    )  # fmt: skip


class Rotate(torch.autograd.Function):
    """q and k, [B, T, heads, p] each, rotated by cos, sin [T, p/2] or [B, T, p/2] in fp32, which have no gradients."""

    @staticmethod
    @on_its_device
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q, k = as_rows(q, k)
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        ctx.places = place_of(q), place_of(k)
        out = q.new_empty(q.shape), k.new_empty(k.shape)
        _rotate(q, k, *out, cos, sin, False)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (d_out_q, d_out_k), (cos, sin) = as_rows(*grads), ctx.saved_tensors
        d_q, d_k = gradients_in(ctx.places, cos)
        _rotate(d_out_q, d_out_k, d_q, d_k, cos, sin, True)
        return d_q, d_k, None, None


def _unit(x: Tensor, d_out: Tensor, out: Tensor, length: float, eps: float, back: bool) -> None:
    (batch, time, heads, width), block = x.shape, triton.next_power_of_2(x.shape[-1])
    rows, tokens = max(1, TILE // block), batch * time
    unit_rows[(triton.cdiv(tokens, rows), heads)](
        x, d_out, out, length, eps, tokens, *map(row_stride, (x, d_out, out)), R=rows, WIDTH=width, BLOCK=block,
        BACK=back,
    )  # fmt: skip


class Unit(torch.autograd.Function):
    """length x / sqrt(sum(x^2) + eps), of x [B, T, H, p]: every head's row at this length."""

    @staticmethod
    @on_its_device
    def forward(ctx: Any, x: Tensor, length: float, eps: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.length, ctx.eps = length, eps
        (x,) = as_rows(x)
        out = x.new_empty(x.shape)
        _unit(x, x, out, length, eps, False)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, d_out = as_rows(*ctx.saved_tensors, *grads)
        (d_x,) = gradients_of(x)
        _unit(x, d_out, d_x, ctx.length, ctx.eps, True)
        return d_x, None, None


@on_its_device
def loss_of_rows(logits: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
    """Losses [N] in nats, 0 where the target is negative, of logits [N, V]; with a scale (a scalar, fp32) the logits
    are overwritten by it times the losses' gradient. Where they are the first V columns of a wider tensor, the others
    must be 0."""
    losses, (width, length) = logits.new_empty(len(logits), dtype=torch.float32), (logits.shape[1], logits.stride(0))
    piece, block = math.gcd(length, 16), min(BLOCK, triton.next_power_of_2(width))
    group = min(block, 8)
    cross_entropy[(len(logits),)](
        logits, targets, losses, scale, width, length // piece, PIECE=piece, G=block // group, W=group,
        GRADIENT=scale is not None, num_warps=min(32, max(4, block // 1024)),
    )  # fmt: skip
    return losses
