"""The three norms of the models, over the last dimension, computed in fp32 and cast back."""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from ..ops.common import accumulator, full_precision
from ..ops.fused.layer_end import Scale
from ..ops.fused.pointwise import uses_kernels


class Norm(nn.Module):
    """`srms`: x / sqrt(mean(x^2) + eps), no parameters; `rms`: that times a weight [d]; `layer`: LayerNorm, 2 d."""

    def __init__(self, kind: str, width: int, eps: float) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps
        self.weight = nn.Parameter(torch.ones(width)) if kind in ("rms", "layer") else None
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layer" else None

    def scale(self) -> Scale | None:
        """The norm as `layer_end` takes it; None for `layer`, which it does not take."""
        return None if self.kind == "layer" else Scale(self.weight, self.eps)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """[..., d] -> [..., d] in x's dtype; with a gate, its logits like x, times sigmoid(gate)."""
        if self.kind != "layer" and uses_kernels(x):
            from ..ops.fused.triton.rows import Norm as ByKernel

            return ByKernel.apply(x, gate, self.weight, self.eps)
        out = normalise(x, self.weight, self.bias, self.kind, self.eps)
        return out if gate is None else out * torch.sigmoid(gate)

    def add(self, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        """x + branch in x's dtype, both [..., d], and its norm."""
        if self.kind != "layer" and uses_kernels(x):
            from ..ops.fused.triton.rows import AddNorm

            return AddNorm.apply(x, branch, self.weight, self.eps)
        total = x + branch.to(x.dtype)
        return total, self(total)


@full_precision
def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, kind: str, eps: float) -> Tensor:
    wide = x.to(accumulator(x))
    weight, bias = (None if p is None else p.to(wide.dtype) for p in (weight, bias))
    if kind == "layer":
        out = nnf.layer_norm(wide, wide.shape[-1:], weight, bias, eps)
    else:
        out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        if weight is not None:
            out = out * weight
    return out.to(x.dtype)
