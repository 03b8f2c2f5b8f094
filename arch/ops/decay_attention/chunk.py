"""`decay_attention` by matrix products inside chunks, in plain PyTorch: the backend on CPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common import carry_states, chunk_parts, cuts, from_chunks, product, to_chunks


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    chunk_size: int,
    document_starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Matrix products inside chunks of `chunk_size` rows, a recurrence over the chunks' states."""
    outputs = []
    per_step = [log_decay] if log_decay is not None and log_decay.dim() == 3 else []
    starts = [] if document_starts is None else [document_starts[:, :, None]]
    for size, (q_c, k_c, v_c, *rest) in chunk_parts(chunk_size, q, k, v, *per_step, *starts):
        q_c, k_c, v_c = (to_chunks(x, size) for x in (q_c, k_c, v_c))  # [B, H, N, C, D]
        decays = decays_of(to_chunks(rest[0], size) if per_step else log_decay, size, q_c)
        if starts:
            decays = _cut(decays, to_chunks(rest[-1], size))
        between, from_start, to_end, whole = decays
        inside = product(product(q_c, k_c.mT) * between, v_c)
        updates = product((k_c * to_end).mT, v_c)  # [B, H, N, d_k, d_v]
        chunks = updates.shape[2]
        state, states = carry_states(state, whole.expand(-1, -1, chunks, -1, -1).unbind(2), updates.unbind(2))
        outputs.append(from_chunks(inside + product(q_c * from_start, torch.stack(states, 2))))
    return torch.cat(outputs, 1) if outputs else torch.zeros_like(v), state


def _cut(decays: tuple[Tensor, ...], document_starts: Tensor) -> tuple[Tensor, ...]:
    """`decays_of` without those across document starts [B, 1, N, C]."""
    between, from_start, to_end, whole = decays
    passes = cuts(document_starts)
    same = passes.rank[..., :, None] == passes.rank[..., None, :]
    return (
        between * same,
        from_start * passes.first[..., None],
        to_end * passes.last[..., None],
        whole * passes.whole[..., None, None],
    )


def decays_of(log_decay: Tensor | None, size: int, like: Tensor) -> tuple[Tensor, ...]:
    """For one chunk length: the decay between rows [.., C, C] (0 above the diagonal), from the chunk's start to each
    row and from each row to the chunk's end [.., C, 1], and over the whole chunk [.., 1, 1]."""
    causal = torch.ones(size, size, dtype=like.dtype, device=like.device).tril()
    if log_decay is None:
        ones = torch.ones(1, 1, 1, size, 1, dtype=like.dtype, device=like.device)
        return causal, ones, ones, ones[..., :1, :]
    if log_decay.dim() == 1:
        rows = torch.arange(size, dtype=like.dtype, device=like.device)
        per_head = log_decay[None, :, None, None, None]
        steps = (rows[:, None] - rows[None, :]).clamp(min=0)
        # where: a decay of 0 (-inf) over zero steps is 1, not 0 * -inf
        between = torch.where(steps > 0, per_head * steps, 0.0).exp() * causal
        from_start = (per_head * (rows + 1)[:, None]).exp()
        left = (size - 1 - rows)[:, None]
        to_end = torch.where(left > 0, per_head * left, 0.0).exp()
        return between, from_start, to_end, (per_head * size).exp()
    # per step: row t of the pairwise sums adds a_t to every s < t of row t - 1
    pairs = log_decay[..., :, None].expand(*log_decay.shape, size).masked_fill(causal.tril(-1) == 0, 0.0)
    between = pairs.cumsum(-2).masked_fill(causal == 0, float("-inf")).exp()
    from_start = log_decay.cumsum(-1)
    after = torch.cat([log_decay[..., 1:], torch.zeros_like(log_decay[..., :1])], -1)
    to_end = after.flip(-1).cumsum(-1).flip(-1)
    return between, from_start.exp()[..., None], to_end.exp()[..., None], from_start[..., -1:, None].exp()
