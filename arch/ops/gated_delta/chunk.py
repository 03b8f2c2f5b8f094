r"""`gated_delta` by matrix products inside chunks (the WY form), in plain PyTorch: the backend on CPUs.

With the decays A_i from the chunk's start to row i and A_ij from row j to row i, the rows u_i that a chunk writes are

    u_i = beta_i (v_i - (k_i A_i) S - sum_{j<i} (k_i A_ij k_j^T) u_j),    S the state before the chunk

(I + L) U = diag(beta) (V - (K A) S), L strictly lower triangular. A triangular solve for both terms gives U = X - W S.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

from ..common import chunk_parts, from_chunks, full_precision_backward, product, to_chunks
from ..decay_attention.chunk import decays_of
from ..gated_attention.chunk import Scores


def chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Matrix products inside chunks of `chunk_size` rows, a recurrence over the chunks' states."""
    outputs = []
    by_channel = log_decay is not None and log_decay.dim() == 4
    decays = [] if log_decay is None else [log_decay]
    for size, parts in chunk_parts(chunk_size, q, k, v, beta[..., None], *decays):
        # `Scores` takes a power of two of rows: the shorter chunk is filled up with k = v = beta = log decay = 0
        rows = 1 << (size - 1).bit_length() if by_channel else size
        if rows > size:
            parts = tuple(nnf.pad(x, (0, 0, 0, 0, 0, rows - size)) for x in parts)
        q_c, k_c, v_c, beta_c, *rest = (to_chunks(x, rows) for x in parts)  # [B, H, N, C, D]
        if by_channel:
            read, from_start, to_end = Scores.apply(q_c, k_c, rest[0])
            lower = Scores.apply(beta_c * k_c, k_c, rest[0])[0].tril(-1)
            from_start, to_end = from_start.exp(), to_end.exp()
            whole = from_start[..., -1, :, None]
        else:
            between, from_start, to_end, whole = decays_of(rest[0] if rest else None, rows, q_c)
            read = product(q_c, k_c.mT) * between
            lower = (product(beta_c * k_c, k_c.mT) * between).tril(-1)
            whole = whole.expand(-1, -1, q_c.shape[2], -1, -1)
        solved = _Solve.apply(lower, beta_c * torch.cat([v_c, k_c * from_start], -1))
        own, of_state = solved.split([v.shape[-1], k.shape[-1]], -1)
        del v_c
        states, rows_written = [], []
        k_end = (k_c * to_end).mT
        for x, w, k_n, decay in zip(own.unbind(2), of_state.unbind(2), k_end.unbind(2), whole.unbind(2), strict=True):
            states.append(state)
            rows_written.append(x - product(w, state))
            state = decay * state + product(k_n, rows_written[-1])
        out = product(read, torch.stack(rows_written, 2)) + product(q_c * from_start, torch.stack(states, 2))
        out = from_chunks(out)
        outputs.append(out if rows == size else out[:, :size])
    return torch.cat(outputs, 1) if outputs else torch.zeros_like(v), state


class _Solve(torch.autograd.Function):
    """X with (I + L) X = Y, L [.., C, C] strictly lower triangular."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, given: Tensor) -> Tensor:
        solved = torch.linalg.solve_triangular(lower, given, upper=False, unitriangular=True)
        ctx.save_for_backward(lower, solved)
        return solved

    @staticmethod
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        lower, solved = ctx.saved_tensors
        d_given = torch.linalg.solve_triangular(lower.mT, grads[0], upper=True, unitriangular=True)
        return -(d_given @ solved.mT).tril(-1), d_given
