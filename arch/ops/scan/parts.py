"""Complex numbers as pairs of real ones."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [.., 2, D] times cos + i sin [.., D]."""
    re, im = x.unbind(-2)
    return torch.stack([re * cos - im * sin, re * sin + im * cos], -2)
