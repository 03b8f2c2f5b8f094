r"""A causal filter per channel, as a diagonal state space model with shared poles (cosFormer2's Tpe).

    s_{t,c,j} = lam_j s_{t-1,c,j} + B_cj x_{t,c},    y_{t,c} = sum_j s_{t,c,j} = sum_{k<=t} K_c(k) x_{t-k,c}
    K_c(k) = sum_j B_cj lam_j^k

The paper (section 2.2, A.1.4) gives cost and parameter count of Tpe, not its form; this is the linear,
shift-invariant one that fits both: d x e parameters, 4 n d e FLOPs for state read and update.
"""

from __future__ import annotations

from torch import Tensor

from ..common import (
    accumulator,
    check,
    choose_backend,
    full_precision,
)
from .chunk import chunk
from .naive import naive


@full_precision
def causal_filter(
    x: Tensor,
    mix: Tensor,
    log_decay: Tensor,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
    backend: str | None = None,
    document_starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, d] in x's dtype and the final state [B, d, e] in fp32 (fp64 for fp64 inputs).

    x: [B, T, d]; mix (B above): [d, e]; log_decay: [e], log lam_j <= 0; initial_state: [B, d, e] or None for zeros;
    document_starts: bool [B, T], True where the state is set to zero before the token. Raises InputError where a dtype
    or a shape does not fit.
    """
    check(
        "causal_filter",
        document_starts,
        x=(x, "BTD"),
        mix=(mix, "DE"),
        log_decay=(log_decay, "E"),
        initial_state=(initial_state, "BDE"),
    )
    dtype = accumulator(x, mix, log_decay)
    learned = "the decays are learned" if log_decay.requires_grad else None
    chosen = choose_backend(backend, x, (mix.shape[1],), dtype, learned)
    if chosen == "triton":
        return _by_kernels(x, mix, log_decay, initial_state, chunk_size, document_starts)
    state = x.new_zeros(x.shape[0], *mix.shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    inputs = (x.to(dtype), mix.to(dtype), log_decay.to(dtype), state)
    if chosen == "naive":
        out, state = naive(*inputs, document_starts)
    else:
        out, state = chunk(*inputs, chunk_size, document_starts)
    return out.to(x.dtype), state


def _by_kernels(
    x: Tensor, mix: Tensor, log_decay: Tensor, state: Tensor | None, chunk_size: int, document_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    from .triton.operator import filtered

    state = None if state is None else state.float().mT
    out, last = filtered(x, mix.float(), log_decay.float(), state, document_starts, chunk_size)
    return out, last.mT
