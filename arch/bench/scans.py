"""The scans as `python -m arch.bench` measures them: inputs like a model's at B, T, H, D, whose width is H D."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

from ..ops import causal_filter, scan, selective_scan
from .floors import Products, filtered, none, selective

STATES = 16  # of a Mamba1 channel


def _hgrn1(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    logits, c = (normal(batch, length, heads, width) for _ in range(2))
    return [logits + 1, nnf.silu(c), torch.linspace(0.05, 0.9, heads * width, device=c.device)]


def _scan(x: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    logits, c, bound = x
    out, state = scan((logits.flatten(2), bound), c.flatten(2), backend=backend)
    return out.view_as(c), state


def _hgrn1_complex(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    """H D real numbers are H D / 2 channels."""
    channels = heads * width // 2
    logits, c, bound = _hgrn1(batch, length, heads, width // 2, normal)
    theta = 10_000.0 ** (-2 * torch.arange(channels, device=c.device) / channels)
    return [logits, nnf.silu(normal(batch, length, heads, width)), bound, theta]


def _complex_scan(x: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    logits, c, bound, theta = x
    out, state = scan((logits.flatten(2), bound), c.flatten(2).unflatten(2, (-1, 2)), theta, backend=backend)
    return out.reshape(c.shape), state


def _mamba1(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    """The step sizes are fp32, as a model's."""
    dt = nnf.softplus(normal(batch, length, heads * width) - 4)
    A = -torch.arange(1.0, STATES + 1, device=dt.device).repeat(heads * width, 1)
    B, C = (normal(batch, length, 1, STATES) for _ in range(2))
    return [dt, A, B, C, normal(batch, length, heads, width)]


def _selective(x: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    dt, A, B, C, values = x
    out, state = selective_scan(dt, A, B[:, :, 0], C[:, :, 0], values.flatten(2), backend=backend)
    return out.view_as(values), state


def _tpe(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    """As many poles as a head has channels."""
    return [normal(batch, length, heads, width), normal(heads * width, width) / width]


def _filter(x: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    values, mix = x
    share = torch.linspace(0, 1, mix.shape[1], device=mix.device)
    out, state = causal_filter(values.flatten(2), mix, -(8192.0**-share), backend=backend)
    return out.view_as(values), state


# name, names of the inputs, their maker, the operation, and how often an activation of the width is read or
# written by the forward, and by forward and backward; its matrix products
SCANS: tuple[tuple[str, tuple[str, ...], Any, Any, tuple[float, float], Products], ...] = (
    ("hgrn1", ("logits", "c", "bound"), _hgrn1, _scan, (3, 8), none),
    ("hgrn1-complex", ("logits", "c", "bound", "theta"), _hgrn1_complex, _complex_scan, (2.5, 6.5), none),
    ("mamba1", ("dt", "A", "B", "C", "x"), _mamba1, _selective, (4, 11), selective(STATES)),
    ("tpe", ("x", "mix"), _tpe, _filter, (2, 5), filtered),
)
