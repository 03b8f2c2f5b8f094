"""Products of activations, and where the kernels around the sequence operations run."""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor

from .common import device_obstacle


def uses_kernels(x: Tensor) -> bool:
    """On a GPU of compute capability 8.0 or more where Triton is, at most 32 bits a number, and not under
    torch.compile, which fuses the plain forms itself."""
    plain = not x.is_cuda or x.dtype == torch.float64 or torch.compiler.is_compiling()
    return not plain and device_obstacle(x.device) is None


def gated_product(a: Tensor, b: Tensor, silu: bool) -> Tensor:
    """a * b, or a * silu(b), of one shape."""
    if uses_kernels(a) and torch.promote_types(a.dtype, b.dtype) == a.dtype:
        from .triton.rows import Product

        return Product.apply(a, b, silu)
    return a * (nnf.silu(b) if silu else b)
