"""`gated_delta`, token by token: the reference."""

from __future__ import annotations

import torch
from torch import Tensor


def naive(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence, step by step."""
    outputs = []
    for t in range(v.shape[1]):
        if log_decay is not None:
            decay = log_decay[:, t].exp()
            state = (decay if decay.dim() == 3 else decay[..., None])[..., None] * state
        kept = (k[:, t, :, None, :] @ state)[:, :, 0]
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * (v[:, t] - kept))[:, :, None, :]
        outputs.append((q[:, t, :, None, :] @ state)[:, :, 0])
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(v), state
