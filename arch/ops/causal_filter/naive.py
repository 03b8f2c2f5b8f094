"""`causal_filter`, token by token: the reference."""

from __future__ import annotations

import torch
from torch import Tensor


def naive(
    x: Tensor, mix: Tensor, log_decay: Tensor, state: Tensor, document_starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence, step by step."""
    outputs = []
    for t in range(x.shape[1]):
        if document_starts is not None:
            state = state.masked_fill(document_starts[:, t, None, None], 0.0)
        state = log_decay.exp() * state + mix * x[:, t, :, None]
        outputs.append(state.sum(-1))
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(x), state
