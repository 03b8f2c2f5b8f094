r"""Linear attention that writes by the delta rule, with decays by head or by key channel.

    S_t = (I - beta_t k_t^T k_t) diag(a_t) S_{t-1} + beta_t k_t^T v_t,   o_t = q_t S_t   S_t in R^{d_k x d_v}, per head

What the decayed state holds for k_t is replaced by v_t, by the share beta_t. Gated DeltaNet (Yang et al. 2024, eq. 10)
has one decay a_t for a head, KDA (Kimi Linear, 2025, section 3) one for each key channel, DeltaNet none. The caller
normalises k: with rows of length 1 and beta in [0, 2] the state stays bounded. No scaling of q. Decays are given as
logarithms, <= 0, and -inf (a decay of 0) is legal. Exponents are sums of log-decays outward from one row, never
differences of two sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
    backend: str | None = None,
    document_starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, d_v] in v's dtype and the final state [B, H, d_k, d_v] in fp32 (fp64 for fp64 inputs).

    q, k: [B, T, H, d_k]; v: [B, T, H, d_v]; beta: [B, T, H]; log_decay: [B, T, H], [B, T, H, d_k], or None;
    initial_state: [B, H, d_k, d_v] or None for zeros; chunk_size: a power of two; document_starts: bool [B, T], True
    where the state is set to zero before the token. Raises InputError where a dtype or a shape does not fit.
    """
    check(
        "gated_delta",
        document_starts,
        v=(v, "BTHV"),
        q=(q, "BTHK"),
        k=(k, "BTHK"),
        beta=(beta, "BTH"),
        log_decay=(log_decay, "BTHK" if log_decay is not None and log_decay.dim() == 4 else "BTH"),
        initial_state=(initial_state, "BHKV"),
    )
    dtype = accumulator(q, k, v, beta, log_decay)
    chosen = choose_backend(backend, v, (q.shape[-1], v.shape[-1]), dtype, crowded(v))
    beta = beta.to(dtype)
    if document_starts is not None:
        log_decay = cut(torch.zeros_like(beta) if log_decay is None else log_decay, document_starts)
    log_decay = None if log_decay is None else log_decay.to(dtype)
    if chosen == "triton":
        return _by_kernels(q, k, v, beta, log_decay, initial_state, chunk_size)
    q, k, wide = (x.to(dtype) for x in (q, k, v))
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1], dtype=dtype)
    if initial_state is not None:
        state = initial_state.to(dtype)
    if chosen == "naive":
        out, state = naive(q, k, wide, beta, log_decay, state)
    else:
        out, state = chunk(q, k, wide, beta, log_decay, state, chunk_size)
    return out.to(v.dtype), state


def _by_kernels(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor]:
    from .triton.operator import attend

    height, width, dtype = q.shape[-1], v.shape[-1], v.dtype
    state = None if state is None else kernel_width(state.float(), 2)
    q, k, v = (kernel_width(x) for x in (q, k, v))
    log_decay = kernel_width(log_decay) if log_decay is not None and log_decay.dim() == 4 else log_decay
    out, last = attend(q, k, v, beta, log_decay, state, chunk_size)
    return without_padding(out, width).to(dtype), without_padding(last, height, width)
