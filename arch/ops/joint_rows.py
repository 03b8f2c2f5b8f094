"""Tensors that lie side by side in the rows of one: the outputs of linear layers that were computed as one product
(`fused.linear.fused_linear`), and their gradients, which its backward then reads as one matrix.

Which memory is meant is not guessed from how a tensor lies: it is marked when it is made, on its storage, where every
view finds the mark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

# marks: numbers of a row; columns that readers leave gradients in; silu of the first columns; the memory of gradients
WIDTH, GIVEN, SILU, SHARED = "joint_width", "given_columns", "silu_of_columns", "shared_gradients"


def mark_joint(x: Tensor) -> Tensor:
    """x [B, T, W], contiguous, whose columns are to be read and have gradients where they lie."""
    setattr(x.untyped_storage(), WIDTH, x.shape[-1])
    return x


def joint_width(x: Tensor) -> int:
    """W where x, [B, T, ..] with dense rows, is columns of a tensor [B, T, W] of `mark_joint`, at places that Hopper's
    copy engine takes; else 0."""
    width = getattr(x.untyped_storage(), WIDTH, 0)
    if not width or x.dim() < 3 or x.shape[1] == 1 or x.stride(1) != width:
        return 0
    (batch, length), row, size, apart = x.shape[:2], math.prod(x.shape[2:]), x.element_size(), 1
    for count, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if count != 1 and stride != apart:
            return 0
        apart *= count
    whole = x.untyped_storage().nbytes() == batch * length * width * size and x.storage_offset() + row <= width
    inside = whole and (batch == 1 or x.stride(0) == length * width)
    return width if inside and width * size % 16 == x.storage_offset() * size % 16 == 0 else 0


def leave_silu(x: Tensor, *active: Tensor) -> None:
    """Leaves silu of the first columns of x, of `mark_joint`, with it: `active` [B T, width], side by side. They live
    as long as x's storage, or as whoever took them by `silu_of` keeps them."""
    starts = accumulate((y.shape[1] for y in active[:-1]), initial=0)
    setattr(x.untyped_storage(), SILU, (x._version, dict(zip(starts, active, strict=True))))


def silu_of(*tensors: Tensor) -> tuple[Tensor, ...] | None:
    """silu of distinct tensors [B, T, ..], contiguous, where it was left with all of them (`leave_silu`) and none was
    changed since (what goes by `.data` is not seen); else None. It is given once: an operator that returns it saves x
    for its backward pass, so that, did x's storage keep it too, each would keep the other."""
    entries: list[tuple[dict[int, Tensor], int]] = []
    for x in tensors:
        left: tuple[int, dict[int, Tensor]] = getattr(x.untyped_storage(), SILU, (0, {}))
        (version, active), start = left, int(x.storage_offset())
        if start not in active or not joint_width(x) or x._version != version:
            return None
        if active[start].shape[1] != math.prod(x.shape[2:]):
            return None
        entries.append((active, start))
    return tuple(active.pop(start).view(x.shape) for x, (active, start) in zip(tensors, entries, strict=True))


def row_stride(x: Tensor) -> int:
    """By how much row t of x [B, T, ..], of any batch, lies behind row t - 1: x of `as_rows`."""
    return x.stride(1) if x.shape[1] > 1 else math.prod(x.shape[2:])


class Place(NamedTuple):
    """Where a tensor [B, T, ..] lies: in memory of its own (width 0), or in columns, from `offset` on, of rows of
    `width` numbers, that of the same number `memory` as others beside it."""

    shape: torch.Size
    dtype: torch.dtype
    stride: tuple[int, ...]
    offset: int | torch.SymInt
    width: int
    memory: int

    @property
    def columns(self) -> range:
        return range(int(self.offset), int(self.offset) + math.prod(self.shape[2:]))


def place_of(x: Tensor) -> Place:
    width = joint_width(x)
    memory = x.untyped_storage()._cdata if width else 0
    return Place(x.shape, x.dtype, x.stride(), x.storage_offset() if width else 0, width, memory)


def meet(columns: range, other: range) -> bool:
    return columns.start < other.stop and other.start < columns.stop


def as_rows(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The tensors as they are where `joint_width` finds them in one, else contiguous; copies of those that share
    columns with one before them, whose gradients could not lie in the same place."""
    taken: list[Place] = []
    rows: list[Tensor | None] = []
    for x in tensors:
        if x is None or not joint_width(x):
            rows.append(None if x is None else x.contiguous())
            continue
        place = place_of(x)
        if any(place.memory == other.memory and meet(place.columns, other.columns) for other in taken):
            rows.append(x.clone(memory_format=torch.contiguous_format))
        else:
            taken.append(place)
            rows.append(x)
    return tuple(rows)


def gradients_in(
    places: Sequence[Place | None], like: Tensor, memories: dict[int, Tensor] | None = None
) -> tuple[Any, ...]:
    """Memory for the gradients of tensors of `as_rows` that have these places, on the device of `like`: of those that
    lie in one tensor at the same columns of one new one, which is marked, also with the columns given, and added to
    `memories`, where it is taken from if it is there."""
    memories = {} if memories is None else memories
    gradients: list[Tensor | None] = []
    for place in places:
        if place is None or not place.width:
            gradients.append(None if place is None else like.new_empty(place.shape, dtype=place.dtype))
            continue
        if place.memory not in memories:
            memory = like.new_empty(*place.shape[:2], place.width, dtype=place.dtype)
            setattr(mark_joint(memory).untyped_storage(), GIVEN, [])
            memories[place.memory] = memory
        memory = memories[place.memory]
        getattr(memory.untyped_storage(), GIVEN).append(place.columns)
        gradients.append(memory.as_strided(place.shape, place.stride, place.offset))
    return tuple(gradients)


def gradients_of(first: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """`gradients_in` the places of these tensors of `as_rows`: of those in a tensor of `share_gradients` in the memory
    that its other readers' gradients are in, where they left the columns free."""
    tensors = (first, *others)
    places = [None if x is None else place_of(x) for x in tensors]
    shared: dict[int, list[Tensor]] = {}
    for x, place in zip(tensors, places, strict=True):
        if x is not None and place is not None and place.width and hasattr(x.untyped_storage(), SHARED):
            shared[place.memory] = getattr(x.untyped_storage(), SHARED)
    memories: dict[int, Tensor] = {}
    for memory, left in shared.items():
        asked = [place.columns for place in places if place is not None and place.memory == memory]
        if left and free_for(left[0], asked):
            memories[memory] = left[0]
    gradients = gradients_in(places, first, memories)
    for memory, left in shared.items():
        left[:] = [memories[memory]]
    return gradients


def share_gradients(x: Tensor) -> list[Tensor]:
    """Lets several operators that read columns of x, of `mark_joint`, leave their gradients in one tensor. It is kept
    in the list that is returned, until whoever reads it clears that."""
    shared: list[Tensor] = []
    setattr(x.untyped_storage(), SHARED, shared)
    return shared


def free_for(x: Tensor, columns: Sequence[range]) -> bool:
    """Whether these columns of the tensor that x lies in may be written: `gradients_in` made it, and gave them to
    nobody."""
    given: list[range] | None = getattr(x.untyped_storage(), GIVEN, None)
    return given is not None and not any(meet(taken, asked) for taken in given for asked in columns)
