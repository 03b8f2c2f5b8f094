r"""Linear attention with a scalar decay per head.

    S_t = a_t S_{t-1} + g_t k_t^T v_t,    o_t = q_t S_t + p v_t        S_t in R^{d_k x d_v}, per head

with a_t = 1 (cosFormer2), a constant per head (TNL: Scaling Laws for Linear Complexity LMs, eq. 9) or one number per
step and head (Mamba2); g_t and p are 1 and 0, or Mamba2's step size and D. No scaling of q and no denominator: a norm
follows. Decays are given as logarithms, <= 0, and -inf (a decay of 0) is legal. Exponents are sums of log-decays
outward from one row, never differences of two sums.
"""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor

from ...errors import InputError
from ..common import (
    accumulator,
    check,
    choose_backend,
    crowded,
    cut,
    full_precision,
    kernel_width,
    without_padding,
)
from .chunk import chunk
from .naive import naive


@full_precision
def decay_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
    backend: str | None = None,
    document_starts: Tensor | None = None,
    angles: tuple[Tensor, Tensor] | None = None,
    activation: str = "",
    gain: Tensor | None = None,
    skip: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, d_v] in v's dtype and the final state [B, H, d_k, d_v] in fp32 (fp64 for fp64 inputs).

    q, k: [B, T, H', d_k] with H' dividing H (each head serves H / H' heads of v); v: [B, T, H, d_v];
    log_decay: None, [H], or [B, T, H]; initial_state: [B, H, d_k, d_v] or None for zeros; document_starts: bool [B, T],
    True where the state is set to zero before the token; angles: theta [H', d_k] and positions t, int [T] or [B, T]: q
    and k become [x cos(t theta), x sin(t theta)], and the states 2 d_k rows high; activation: "silu" where q and k are
    given before it; gain: None or g [B, T, H], at least 0 (where it is 0 the kernels give it no gradient), and skip:
    None or p [H], neither with angles. Raises InputError where a dtype or a shape does not fit.
    """
    if activation not in ("", "silu"):
        raise InputError(f"decay_attention: unknown activation {activation!r} of q and k (valid: '', 'silu')")
    if angles is not None and (gain is not None or skip is not None):
        raise InputError("decay_attention: gain and skip cannot be given with angles: scale v, and add to the output")
    if angles is not None:
        check("decay_attention", None, q=(q, "BTGK"), theta=(angles[0], "GK"))
        _check_positions(angles[1], *q.shape[:2])
        dtype = accumulator(q, k, v, log_decay, angles[0])
        if choose_backend(backend, v, (2 * q.shape[-1], v.shape[-1]), dtype, crowded(v)) != "triton":
            q, k = _rotated(*_activated(q, k, activation), *angles)
            angles, activation = None, ""
    axes = "H" if log_decay is not None and log_decay.dim() == 1 else "BTH"
    check(
        "decay_attention",
        document_starts,
        v=(v, "BTHV"),
        q=(q, "BTGK"),
        k=(k, "BTGK"),
        log_decay=(log_decay, axes),
        initial_state=(initial_state, "BHKV" if angles is None else "BHSV"),
        gain=(gain, "BTH"),
        skip=(skip, "H"),
    )
    dtype = accumulator(q, k, v, log_decay)
    heads = v.shape[2]
    if heads % q.shape[2]:
        raise InputError(f"decay_attention: q and k have {q.shape[2]} heads, which do not divide v's {heads}")
    if angles is not None and initial_state is not None and initial_state.shape[2] != 2 * q.shape[-1]:
        raise InputError(
            f"decay_attention: initial_state has shape {list(initial_state.shape)}, with angles it is "
            f"2 K = {2 * q.shape[-1]} high"
        )
    chosen = choose_backend(backend, v, (q.shape[-1], v.shape[-1]), dtype, crowded(v))
    if chosen == "triton":
        return _by_kernels(
            q, k, v, log_decay, initial_state, chunk_size, document_starts, angles, activation, gain, skip
        )  # fmt: skip
    q, k = _activated(q, k, activation)
    if q.shape[2] != heads:
        q, k = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k))
    q, k, wide = q.to(dtype), k.to(dtype), v.to(dtype)
    log_decay = None if log_decay is None else log_decay.to(dtype)
    state = v.new_zeros(v.shape[0], heads, k.shape[-1], v.shape[-1], dtype=dtype)
    if initial_state is not None:
        state = initial_state.to(dtype)
    entering = wide if gain is None else wide * gain.to(dtype)[..., None]
    if chosen == "naive":
        out, state = naive(q, k, entering, log_decay, state, document_starts)
    else:
        out, state = chunk(q, k, entering, log_decay, state, chunk_size, document_starts)
    out = out if skip is None else out + skip.to(dtype)[:, None] * wide
    return out.to(v.dtype), state


def _check_positions(positions: Tensor, batch: int, length: int) -> None:
    shape = list(positions.shape)
    if positions.is_floating_point() or shape not in ([length], [batch, length]):
        raise InputError(
            f"decay_attention: positions are {str(positions.dtype).removeprefix('torch.')} {shape}, "
            f"expected int [T = {length}] or [B = {batch}, T = {length}]"
        )


def _activated(q: Tensor, k: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return (nnf.silu(q), nnf.silu(k)) if activation else (q, k)


def _rotated(q: Tensor, k: Tensor, theta: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    from ...model.positions import cosine_pairs, rotation  # which imports this package

    cos, sin = rotation(theta, positions)
    return cosine_pairs(q, cos, sin), cosine_pairs(k, cos, sin)


def _by_kernels(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    chunk_size: int,
    document_starts: Tensor | None,
    angles: tuple[Tensor, Tensor] | None,
    activation: str,
    gain: Tensor | None,
    skip: Tensor | None,
) -> tuple[Tensor, Tensor]:
    from .triton.operator import attend
    from .triton.rotary_operator import attend_rotary

    heads = v.shape[2]
    log_decay = None if log_decay is None else log_decay.float()
    gain, skip = (None if x is None else x.float() for x in (gain, skip))
    if document_starts is not None or gain is not None or (log_decay is not None and log_decay.requires_grad):
        log_decay = torch.zeros(heads, device=v.device) if log_decay is None else log_decay
        log_decay = cut(log_decay.expand(*v.shape[:3]), document_starts)
    height, width, dtype = q.shape[-1], v.shape[-1], v.dtype
    if state is not None:
        # the halves that belong to cosines and sines are filled up each by itself
        halves = state.float().unflatten(2, (-1, height))
        state = kernel_width(halves, 2).flatten(2, 3)
    q, k, v = (kernel_width(x) for x in (q, k, v))
    if angles is None:
        out, last = attend(q, k, v, log_decay, state, chunk_size, activation == "silu", gain, skip)
    else:
        angles = kernel_width(angles[0].float()), angles[1]
        out, last = attend_rotary(q, k, v, log_decay, *angles, state, chunk_size, activation == "silu")
    last = without_padding(last.unflatten(2, (1 if angles is None else 2, -1)), height, width).flatten(2, 3)
    return without_padding(out, width).to(dtype), last
