"""The angles of `decay_attention`'s kernels, and what they do to keys and queries: doubled by cosines and sines."""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import TWO_PI, cos_sin

INV_TWO_PI = tl.constexpr(0.15915494309189535)  # 1 / 2 pi
ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: a number added to it and taken from it is rounded to a whole one


@triton.jit(do_not_specialize=["CHANNELS", "STEPS", "HEAD_STRIDE", "CHANNEL_STRIDE"])
def rotary_parts(
    theta, positions, high, low, steps, CHANNELS, STEPS, HEAD_STRIDE, CHANNEL_STRIDE, DK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """What `load_theta` reads, theta [G, DK], fp32 and of any strides, over 2 pi in two fp32 parts, and positions
    [STEPS] as fp32: BLOCK of each by a program."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < CHANNELS
    angle = tl.load(theta + index // DK * HEAD_STRIDE + index % DK * CHANNEL_STRIDE, mask=inside)
    revolution = angle.to(tl.float64) * INV_TWO_PI
    large = revolution.to(tl.float32)
    tl.store(high + index, large, mask=inside)
    tl.store(low + index, (revolution - large).to(tl.float32), mask=inside)
    inside = index < STEPS
    tl.store(steps + index, tl.load(positions + index, mask=inside).to(tl.float32), mask=inside)


@triton.jit
def anchored(x, inside):
    """x [C, BK], of rows `inside`. What is computed from it stays in the layout it was loaded in: this mask's origin,
    row numbers, keeps the compiler from computing x cos and x sin again for every product, in each of the threads that
    hold a copy of the operand."""
    return tl.where(inside[:, None], x, 0.0)


@triton.jit
def cosines(position, high, low, FAST: tl.constexpr):
    """Cosines and sines of position (high + low) 2 pi, high + low being theta / 2 pi.

    Whole revolutions are dropped from the product inside a fused multiply-add, before it is rounded: exact to 2^-20 at
    up to 2^22 revolutions.
    """
    less = ROUNDER - tl.fma(position, high, ROUNDER)  # whole revolutions, already negative: -x would be 0 - x
    revolution = tl.fma(position, low, tl.fma(position, high, less))
    return cos_sin(revolution * TWO_PI, FAST)


@triton.jit
def waves(positions, high, low, FAST: tl.constexpr):
    """Positions [C] as fp32 [C, 1], and the cosines and sines of their angles [C, BK]."""
    position = positions.to(tl.float32)[:, None]
    cos, sin = cosines(position, high[None, :], low[None, :], FAST)
    return position, cos, sin


@triton.jit
def load_theta(theta_high, theta_low, channel, first, BK: tl.constexpr):
    """theta / 2 pi of BK channels in two parts."""
    channels = channel + first + tl.arange(0, BK)
    return tl.load(theta_high + channels), tl.load(theta_low + channels)


@triton.jit
def doubled(x, cos, sin, EXACT: tl.constexpr):
    """x cos and x sin [C, BK] as an operand of products, [C, 2 BK]: eight channels' cosines, then their sines, and so
    on. In the layout of a product's result a thread has a channel's two numbers and needs no other's."""
    if EXACT:
        both = tl.join(x * cos, x * sin)
    else:
        both = tl.join((x * cos).to(tl.bfloat16), (x * sin).to(tl.bfloat16))
    both = tl.permute(tl.reshape(both, [x.shape[0], x.shape[1] // 8, 8, 2]), [0, 1, 3, 2])
    return tl.reshape(both, [x.shape[0], 2 * x.shape[1]])


@triton.jit
def state_rows(first, DK: tl.constexpr, BK: tl.constexpr):
    """The rows of a state [2 DK, DV], all cosines' before all sines', that `doubled`'s columns of BK channels from
    `first` on stand for."""
    columns = tl.arange(0, 2 * BK)
    return first + columns // 16 * 8 + columns % 8 + columns // 8 % 2 * DK


@triton.jit
def halves(x):
    """The cosines' and the sines' columns, each [C, BK], of [C, 2 BK]."""
    both = tl.permute(tl.reshape(x, [x.shape[0], x.shape[1] // 16, 2, 8]), [0, 1, 3, 2])
    return tl.split(tl.reshape(both, [x.shape[0], x.shape[1] // 2, 2]))


@triton.jit
def as_half(x, EXACT: tl.constexpr):
    """x in fp32, as one of the `halves` of a product that is exact: of x and the unit matrix, whose columns stand there
    twice. In any other layout, even an equal one by another name, the compiler computes angles a second time."""
    if EXACT:
        return x
    else:
        rows, columns = tl.arange(0, x.shape[1]), tl.arange(0, 2 * x.shape[1])
        unit = (rows[:, None] == (columns // 16 * 8 + columns % 8)[None, :]).to(tl.bfloat16)
        half, _ = halves(tl.dot(x, unit))
        return half
