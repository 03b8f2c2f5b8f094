"""Tensors as descriptors for Hopper's copy engine."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..joint_rows import row_stride
from .launch import with_context


def blocks(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """x [B, T, heads, width], of `as_rows`, as [B, T, heads width] in blocks of [1, rows, columns]."""
    with_context(x)
    batch, length, heads, width = x.shape
    if x.data_ptr() % 16:  # the copy engine asks for it
        x = x.clone(memory_format=torch.contiguous_format)
    stride = row_stride(x)
    return TensorDescriptor(x, [batch, length, heads * width], [length * stride, stride, 1], [1, rows, columns])
