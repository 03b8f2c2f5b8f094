r"""Softmax attention as the additive recurrence that it is: a reference, T passes over [B, T, H, d] instead of a T x T
matrix.

    O = softmax(Q K^T / sqrt(d)) V, causal                                                              (eq. 1)

    s_t^0 = 0,    s_t^j = s_t^{j-1} + exp(q_t k_j^T / sqrt(d))
    o_t^j = (s_t^{j-1} / s_t^j) o_t^{j-1} + (1 - s_t^{j-1} / s_t^j) v_j,    j = 1..t,    o_t = o_t^t    (eq. 2)

with s_t^j in R per head, q_t, k_j in R^d and o_t^j, v_j in R^{d_v}: Scaling Laws for Linear Complexity Language Models,
section 5.4. Each step t starts again from j = 1 ("going through a book"); a linear recurrence keeps a state over t
instead (eq. 3), reads every token once, and has nowhere to look it up again.

Deviation: s and the exponentials are kept relative to exp(m_t^j), m_t^j the largest of the t's first j logits, which
cancels in o and cannot overflow; and 1 - s^{j-1} / s^j is computed as the equal exp(q k^T / sqrt(d)) / s^j.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .common import accumulator, full_precision


@full_precision
def softmax_recurrence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention, [B, T, H, d_v] in v's dtype, computed in fp32 (fp64 where an input is).

    q, k: [B, T, H, d]; v: [B, T, H, d_v]. Equals `scaled_dot_product_attention(..., is_causal=True)`, which takes
    [B, H, T, d]. Differentiable; T^2 time, and T^2 memory for the backward pass.
    """
    dtype = accumulator(q, k, v)
    wide_q, wide_k, wide_v = q.to(dtype) * q.shape[-1] ** -0.5, k.to(dtype), v.to(dtype)
    total = torch.zeros_like(wide_q[..., :1])  # s_t: [B, T, H, 1]
    largest = torch.full_like(total, float("-inf"))
    out = torch.zeros_like(wide_v)
    finished = []
    for j in range(q.shape[1]):  # every t >= j reads page j; the row of t = j is then done and leaves
        logit = (wide_q[:, j:] * wide_k[:, j : j + 1]).sum(-1, keepdim=True)
        higher = torch.maximum(largest, logit).detach()
        new = (logit - higher).exp()
        before = total * (largest - higher).exp()
        total = before + new
        out = before / total * out + new / total * wide_v[:, j : j + 1]
        finished.append(out[:, :1])
        total, largest, out = total[:, 1:], higher[:, 1:], out[:, 1:]
    return torch.cat(finished, 1).to(v.dtype) if finished else torch.zeros_like(v)
