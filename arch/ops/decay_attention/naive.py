"""`decay_attention`, token by token: the reference."""

from __future__ import annotations

import torch
from torch import Tensor


def naive(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor, document_starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence, step by step."""
    outputs = []
    for t in range(v.shape[1]):
        if document_starts is not None:
            state = state.masked_fill(document_starts[:, t, None, None, None], 0.0)
        if log_decay is not None:
            current = log_decay if log_decay.dim() == 1 else log_decay[:, t]
            state = current.exp()[..., None, None] * state
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, None, :] @ state)[:, :, 0])
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(v), state
