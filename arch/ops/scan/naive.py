"""`scan`, token by token: the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from .parts import rotate


def naive(log_a: Tensor, b: Tensor, theta: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, step by step, with the parts of a number on the axis before the last: b [B, T, 1 or 2, D]."""
    outputs = []
    for t in range(b.shape[1]):
        if theta is not None:
            state = rotate(state, theta[:, t].cos(), theta[:, t].sin())
        state = log_a[:, t, None].exp() * state + b[:, t]
        outputs.append(state)
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(b), state
