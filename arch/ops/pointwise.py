"""Products of activations, and where the kernels around the sequence operations run."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch
import torch.nn.functional as nnf
from torch import Tensor


@lru_cache(maxsize=16)
def _able(device: torch.device) -> bool:
    return importlib.util.find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def uses_kernels(x: Tensor) -> bool:
    """On a GPU of compute capability 8.0 or more where Triton is, at most 32 bits a number, and not under
    torch.compile, which fuses the plain forms itself."""
    return x.is_cuda and x.dtype != torch.float64 and not torch.compiler.is_compiling() and _able(x.device)


def gated_product(a: Tensor, b: Tensor, silu: bool) -> Tensor:
    """a * b, or a * silu(b), of one shape."""
    if uses_kernels(a) and torch.promote_types(a.dtype, b.dtype) == a.dtype:
        from .triton.rows import Product

        return Product.apply(a, b, silu)
    return a * (nnf.silu(b) if silu else b)
