"""Rows of the embedding on a GPU: in the dtype they are used in, with a gradient that repeats to the bit.

PyTorch's own gradient adds rows in any order (atomics), unless all of its algorithms are asked to be deterministic.
Here a small vocabulary's is a product with a matrix of ones and zeros, which is faster too; a larger one's is
PyTorch's, made as if that had been asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .linear import product_in
from .pointwise import uses_kernels

WORDS = 512  # of a vocabulary whose gradient is a product: 67 MB of ones and zeros for 65,536 tokens in bf16
ALIGNED = 16


def embed(ids: Tensor, embedding: nn.Module, dtype: torch.dtype | None) -> Tensor:
    """What `embedding` makes of ids [B, T] as `dtype` (None: as it is) [B, T, d]."""
    plain = type(embedding) is nn.Embedding and embedding.padding_idx is None and embedding.max_norm is None
    weight = getattr(embedding, "weight", None)
    if not plain or not isinstance(weight, Tensor) or not uses_kernels(weight) or not torch.is_grad_enabled():
        return embedding(ids) if dtype is None else embedding(ids).to(dtype)
    return _Rows.apply(ids, weight, dtype or weight.dtype)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.words, ctx.dtype = len(weight), weight.dtype
        return torch.embedding(weight.to(dtype), ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        ids, rows = ids.flatten(), grads[0].flatten(0, -2)
        with torch.autocast(rows.device.type, enabled=False):
            return None, (_by_product if ctx.words <= WORDS else _by_sorting)(ids, rows, ctx.words, ctx.dtype), None


def _by_product(ids: Tensor, rows: Tensor, words: int, dtype: torch.dtype) -> Tensor:
    ones = rows.new_zeros(len(ids), (words + ALIGNED - 1) // ALIGNED * ALIGNED)
    ones.scatter_(1, ids[:, None], 1.0)
    return product_in(dtype, ones.T, rows)[:words]


def _by_sorting(ids: Tensor, rows: Tensor, words: int, dtype: torch.dtype) -> Tensor:
    before, warn = torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()
    torch._C._set_deterministic_algorithms(True)  # torch.use_deterministic_algorithms would import the compiler
    try:
        return torch.ops.aten.embedding_dense_backward(rows.to(dtype), ids, words, -1, False)
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=warn)
