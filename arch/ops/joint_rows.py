"""Tensors that lie side by side in the rows of one: the outputs of linear layers that were computed as one product
(`fused.linear.fused_linear`), and their gradients, which its backward then reads as one matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


def joint_width(x: Tensor) -> int:
    """W where x, [B, T, ..] with dense rows, is columns of a tensor [B, T, W] that fills its memory, at places that
    Hopper's copy engine takes; else 0, also for one that has its rows to itself."""
    (batch, length), width, row = x.shape[:2], x.stride(1), math.prod(x.shape[2:])
    if length == 1 or width <= row or row == 0:
        return 0
    apart = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size != 1 and stride != apart:
            return 0
        apart *= size
    if (batch > 1 and x.stride(0) != length * width) or x.storage_offset() + row > width:
        return 0
    size = x.element_size()
    fills = x.untyped_storage().nbytes() == batch * length * width * size
    return width if fills and width * size % 16 == x.storage_offset() * size % 16 == 0 else 0


def row_stride(x: Tensor) -> int:
    """By how much row t of x [B, T, ..], of any batch, lies behind row t - 1: x of `as_rows`."""
    return x.stride(1) if x.shape[1] > 1 else math.prod(x.shape[2:])


def as_rows(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The tensors as they are where `joint_width` finds them in one, else contiguous."""
    return tuple(None if x is None else x if joint_width(x) else x.contiguous() for x in tensors)


class Place(NamedTuple):
    """Where a tensor [B, T, ..] lies: in memory of its own (width 0), or in columns of rows of `width` numbers, that of
    the same number `memory` as others beside it."""

    shape: torch.Size
    dtype: torch.dtype
    stride: tuple[int, ...]
    offset: int | torch.SymInt
    width: int
    memory: int


def place_of(x: Tensor | None) -> Place | None:
    """The place of a tensor of `as_rows`."""
    if x is None:
        return None
    width = joint_width(x)
    memory = x.untyped_storage().data_ptr() if width else 0
    return Place(x.shape, x.dtype, x.stride(), x.storage_offset(), width, memory)


def gradients_in(places: Sequence[Place | None], like: Tensor) -> tuple[Any, ...]:
    """Memory for the gradients of tensors that have these places, on the device of `like`: of those that lie in one
    tensor at the same columns of one new one, to whose other columns nobody writes."""
    memories: dict[int, Tensor] = {}
    found: list[Tensor | None] = []
    for place in places:
        if place is None or not place.width:
            found.append(None if place is None else like.new_empty(place.shape, dtype=place.dtype))
            continue
        if place.memory not in memories:
            size = place.shape[0] * place.shape[1] * place.width
            memories[place.memory] = like.new_empty(size, dtype=place.dtype)
        found.append(memories[place.memory].as_strided(place.shape, place.stride, place.offset))
    return tuple(found)


def gradients_of(first: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """`gradients_in` the places of these tensors of `as_rows`."""
    return gradients_in([place_of(x) for x in (first, *others)], first)
