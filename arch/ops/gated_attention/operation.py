r"""Linear attention with a forget gate per key channel (HGRN2, GLA).

    S_t = diag(f_t) S_{t-1} + k_t^T v_t,    o_t = q_t S_t        S_t in R^{d_k x d_v}, per head

HGRN2 ties k = 1 - f (HGRN2, eq. 3; Scaling Laws for Linear Complexity LMs, eq. 13). The chunk backend splits a chunk in
halves recursively: a pair (i in the upper, j in the lower half) sees exp(sum from the midpoint to i) on i's side and
exp(sum from j+1 to the midpoint - 1) on j's side. Both are <= 1, every level is one matrix product, and a gate of 0
(log f = -inf) is legal; the usual exp(-cumsum) over a whole chunk overflows with strong gates.
"""

from __future__ import annotations

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
from ..forget_gate import forget_gate
from .chunk import chunk
from .naive import naive


@full_precision
def gated_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    log_f: Tensor | tuple[Tensor, Tensor],
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
    backend: str | None = None,
    document_starts: Tensor | None = None,
    activation: str = "",
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, d_v] in v's dtype and the final state [B, H, d_k, d_v] in fp32 (fp64 for fp64 inputs).

    q, k: [B, T, H', d_k], k None for 1 - f, with H' dividing H (each head serves H / H' heads of v); v: [B, T, H, d_v];
    log_f: [B, T, H', d_k], <= 0, or the pair (logits [B, T, H', d_k], bound broadcastable to it, in [0, 1)) for
    f = bound + (1 - bound) sigmoid(logits); initial_state: [B, H, d_k, d_v] or None for zeros; chunk_size: a power of
    two; document_starts: bool [B, T], True where the state is set to zero before the token (k = 1 - f keeps its f);
    activation: "silu" where q is given before it. Raises InputError where a dtype or a shape does not fit.
    """
    gates = log_f if isinstance(log_f, tuple) else (log_f,)
    check(
        "gated_attention",
        document_starts,
        v=(v, "BTHV"),
        q=(q, "BTGK"),
        k=(k, "BTGK"),
        log_f=(gates[0], "BTGK"),
        bound=(gates[1] if len(gates) > 1 else None, "~BTGK"),
        initial_state=(initial_state, "BHKV"),
    )
    if activation not in ("", "silu"):
        raise InputError(f"gated_attention: unknown activation {activation!r} of q (valid: '', 'silu')")
    dtype = accumulator(q, k, v, *gates)
    batch, _, heads, width = v.shape
    groups = q.shape[2]
    if heads % groups:
        raise InputError(f"gated_attention: q and the gates have {groups} heads, which do not divide v's {heads}")
    # heads that share their keys and gates are one head whose values are side by side
    wide = v.reshape(*v.shape[:2], groups, heads // groups * width)
    state = None if initial_state is None else initial_state.to(dtype).unflatten(1, (groups, -1)).transpose(2, 3)
    state = None if state is None else state.flatten(3)
    chosen = choose_backend(backend, wide, (q.shape[-1], wide.shape[-1]), dtype, crowded(wide))
    if chosen == "triton":
        out, state = _by_kernels(q, k, wide, log_f, state, document_starts, chunk_size, activation)
        return out.reshape(v.shape).to(v.dtype), state.unflatten(-1, (-1, width)).transpose(2, 3).flatten(1, 2)
    if isinstance(log_f, tuple):
        log_gate, complement = forget_gate(log_f[0].to(dtype), log_f[1].to(dtype))
    else:
        log_gate = log_f.to(dtype)
        complement = -log_gate.expm1() if k is None else log_gate
    q = nnf.silu(q) if activation else q
    inputs = (q.to(dtype), complement if k is None else k.to(dtype), wide.to(dtype), cut(log_gate, document_starts))
    if state is None:
        state = v.new_zeros(batch, groups, q.shape[-1], wide.shape[-1], dtype=dtype)
    if chosen == "naive":
        out, state = naive(*inputs, state)
    else:
        out, state = chunk(*inputs, state, chunk_size)
    return out.reshape(v.shape).to(v.dtype), state.unflatten(-1, (-1, width)).transpose(2, 3).flatten(1, 2)


def _by_kernels(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    log_f: Tensor | tuple[Tensor, Tensor],
    state: Tensor | None,
    document_starts: Tensor | None,
    chunk_size: int,
    activation: str,
) -> tuple[Tensor, Tensor]:
    from .triton.operator import attend

    bound = None
    if not isinstance(log_f, tuple):
        gate = log_f
    else:
        gate, bound = log_f
        bound = bound.reshape(*[1] * (4 - bound.dim()), *bound.shape)
        if bound.shape[0] * bound.shape[1] == 1:
            bound = bound[0, 0].expand(q.shape[2:]).float()
        else:  # a bound of each token's own: the gates are computed beforehand
            gate, complement = forget_gate(gate.float(), bound.float())
            k, bound = complement if k is None else k, None
    out, last = attend(
        kernel_width(q),
        None if k is None else kernel_width(k),
        kernel_width(v),
        kernel_width(gate),
        None if bound is None else kernel_width(bound),
        None if state is None else kernel_width(state, 2),
        document_starts,
        chunk_size,
        activation == "silu",
    )
    return without_padding(out, v.shape[-1]), without_padding(last, q.shape[-1], v.shape[-1])
