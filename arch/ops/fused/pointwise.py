"""Element-wise functions of activations, by fused kernels on a GPU and by plain PyTorch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as nnf
from torch import Tensor

from ..common import device_obstacle

if TYPE_CHECKING:
    from ...model.norms import Norm


def uses_kernels(x: Tensor) -> bool:
    """Whether fused kernels run on x: on a GPU of compute capability 8.0 or more, with Triton, for at most 32 bits a
    number, and not under torch.compile, which fuses plain PyTorch itself."""
    plain = not x.is_cuda or x.dtype == torch.float64 or torch.compiler.is_compiling()
    return not plain and device_obstacle(x.device) is None


def gated_product(a: Tensor, b: Tensor, gate: str = "") -> Tensor:
    """a * b, or by `gate` a * silu(b) or a * sigmoid(b), of one shape."""
    if uses_kernels(a) and torch.promote_types(a.dtype, b.dtype) == a.dtype:
        from .triton.rows import Product

        return Product.apply(a, b, gate)
    if gate:
        b = nnf.silu(b) if gate == "silu" else torch.sigmoid(b)
    return a * b


def softplus(x: Tensor, bias: Tensor) -> Tensor:
    """softplus(x + bias), fp32 (fp64 for fp64): x [B, T, C], bias [C]."""
    if uses_kernels(x) and bias.dtype == torch.float32:
        from .triton.ssm import Softplus

        return Softplus.apply(x, bias)
    return nnf.softplus(x + bias)


def skip_gated(o: Tensor, v: Tensor | None, z: Tensor, skip: Tensor | None, norm: Norm | None = None) -> Tensor:
    """(o + skip v) silu(z) [B, T, C], o silu(z) without v, and its norm, if there is one: o, v [B, T, C] or
    [B, T, H, p] with H p = C, z [B, T, C], skip like a token's v. By kernel in o's dtype, else in the widest."""
    scale, o = None if norm is None else norm.scale(), o.flatten(2)
    if uses_kernels(o) and o.dtype == z.dtype and (v is None or v.dtype == o.dtype):
        from .triton.ssm import Skip

        out = Skip.apply(o, v, z, skip, *(scale or (None, None)))
        norm = None if scale is not None else norm
    else:
        out = gated_product(o if v is None or skip is None else o + skip * v, z, "silu")
    return out if norm is None else norm(out)
