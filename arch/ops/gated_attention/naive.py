"""`gated_attention`, token by token: the reference."""

from __future__ import annotations

import torch
from torch import Tensor


def naive(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, step by step."""
    outputs = []
    for t in range(v.shape[1]):
        state = log_f[:, t].exp()[..., None] * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, None, :] @ state)[:, :, 0])
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(v), state
