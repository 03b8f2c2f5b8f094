"""Rotary angles t * theta, computed in float64 so that they stay exact for long contexts, and used in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.common import accumulator, full_precision
from ..ops.fused.pointwise import uses_kernels

SINUSOID_BASE = 10_000.0


@full_precision
def rotation(theta: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of t * theta, fp32 (fp64 for fp64 theta): positions [T] or [B, T] -> [T, *theta.shape] or
    [B, T, *theta.shape].

    In fp32 the product alone is off by 0.06 radians at t = 10^6.
    """
    angles = positions.double().reshape(*positions.shape, *[1] * theta.dim()) * theta.double()
    dtype = accumulator(theta)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def add_sinusoids(x: Tensor, positions: Tensor, scale: float) -> Tensor:
    """x [B, T, d] + scale [sin(t w_c), cos(t w_c)], c = 0 .. d/2 - 1, w_c = 10000^(-2c/d), t of `positions` [T] or
    [B, T]. Attention Is All You Need (Vaswani et al. 2017), section 3.5, a half of the channels for each."""
    width = x.shape[-1]
    channels = torch.arange(-(-width // 2), dtype=accumulator(x), device=x.device)
    cos, sin = rotation(SINUSOID_BASE ** (-2 * channels / width), positions)
    return x + (scale * torch.cat([sin, cos], -1)[..., :width]).to(x.dtype)


@full_precision
def rotate_pairs(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of q, k [B, T, heads, p]: channel c of the first half is rotated with channel c of the second.

    cos, sin: [T, p/2] or [B, T, p/2], without gradients. The pairing is that of Hugging Face's LLaMA.
    """
    if uses_kernels(q) and q.dtype == k.dtype and cos.dtype == torch.float32:
        from ..ops.fused.triton.rows import Rotate

        return Rotate.apply(q, k, cos, sin)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.to(accumulator(x, cos)).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


@full_precision
def cosine_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """LRPE-cosine (Scaling Laws for Linear Complexity LMs, eq. 17): [x cos(t theta), x sin(t theta)].

    x: [B, T, H, p]; cos, sin: [(B,) T, H or 1, r] with r <= p: the first r channels are rotated and doubled, the others
    stay as they are -> [B, T, H, p + r]. Then q'_t . k'_s = sum_c q_tc k_sc cos((t - s) theta_c),
    theta_c = 0 for c >= r.
    """
    rotated, rest = x.to(accumulator(x, cos)).split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], -1)
    return torch.cat([rotated * cos, rotated * sin, rest], -1).to(x.dtype)
