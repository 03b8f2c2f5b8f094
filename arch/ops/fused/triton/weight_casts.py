"""The launch of weight_casts_kernel.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...triton.launch import on_its_device
from .weight_casts_kernel import cast_pieces

PIECE = 4096  # numbers of a program


def table_of(weights: Sequence[Tensor]) -> Tensor:
    """Of each piece of the weights, which are contiguous and fp32: its address, its place in the result, and how many
    numbers it has, int64 [pieces, 3]."""
    pieces: list[tuple[int, int, int]] = []
    place = 0
    for weight in weights:
        for at in range(0, weight.numel(), PIECE):
            pieces.append((weight.data_ptr() + at * weight.itemsize, place + at, min(PIECE, weight.numel() - at)))
        place += weight.numel()
    return torch.tensor(pieces, dtype=torch.int64, device="cpu").to(weights[0].device)


@on_its_device
def cast_all(table: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
    """The weights of `table`, one behind the other, as `dtype` [numbers]."""
    out = torch.empty(numbers, dtype=dtype, device=table.device)
    cast_pieces[(len(table),)](table, out, BLOCK=PIECE)
    return out
