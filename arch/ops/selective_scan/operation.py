r"""The selective state space model (Mamba1).

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t,    y_t = C_t . h_t        h_t in R^N, per channel

Mamba (Gu and Dao), eqs. 2a, 2b and 4 with the simplified input matrix dt B of its code. The step size dt_t is per
channel, B_t and C_t are shared by the channels, A is constant: D x N different decays per step, so there is no form
as a matrix product. The skip D x_t and the output gate belong to the layer.

No tensor of [B, T, D, N] ever exists: forward and backward go chunk by chunk, hold the states of one chunk
([B, chunk_size, N, D]) and keep only those at the chunks' starts; the backward recomputes a chunk from there.
"""

from __future__ import annotations

from torch import Tensor

from ..common import accumulator, check, choose_backend, full_precision
from .chunk import SelectiveScan
from .naive import naive


@full_precision
def selective_scan(
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    x: Tensor,
    initial_state: Tensor | None = None,
    chunk_size: int = 16,
    backend: str | None = None,
    document_starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, D] in x's dtype and the final state [B, D, N] in fp32 (fp64 for fp64 inputs).

    dt, x: [B, T, D], dt >= 0 and finite (0 leaves the state as it is); A: [D, N], <= 0 and finite; B, C: [B, T, N];
    initial_state: [B, D, N] or None for zeros; chunk_size: a power of two; document_starts: bool [B, T], True where the
    state is set to zero before the token. Raises InputError where a dtype or a shape does not fit.
    """
    check(
        "selective_scan",
        document_starts,
        dt=(dt, "BTD"),
        A=(A, "DN"),
        B=(B, "BTN"),
        C=(C, "BTN"),
        x=(x, "BTD"),
        initial_state=(initial_state, "BDN"),
    )
    dtype = accumulator(dt, A, B, C, x)
    chosen = choose_backend(backend, x, (A.shape[1],), dtype)
    if chosen == "triton":
        from .triton.operator import mixed

        return mixed(
            dt, A, B, C, x, None if initial_state is None else initial_state.float(), document_starts, chunk_size
        )
    state = x.new_zeros(x.shape[0], *A.shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    inputs = (dt.to(dtype), A.to(dtype), B.to(dtype), C.to(dtype), x.to(dtype), state)
    if chosen == "naive" or x.shape[1] == 0:
        out, state = naive(*inputs, document_starts)
    else:
        out, state = SelectiveScan.apply(*inputs, chunk_size, document_starts)
    return out.to(x.dtype), state
