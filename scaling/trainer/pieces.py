"""The pieces of a training state: safetensors files of parts of parameters, one from each process and read by any.

A part is a run of a parameter's elements in fp32: `model.emb.weight/exp_avg/4096` begins at the parameter's 4096th.
What there is of a parameter (`weight`, and by the optimizer's own names its moments) is cut up as the writing processes
held it; together the pieces of a state have every element once. `step` is one number beside each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arch.model.stored import write_tensors
from data.files import reading, writing

from ..rundir.saved import REMEDY, STEP, WEIGHT, Stored


@dataclass(frozen=True)
class Part:
    """`length` elements of the parameter `name` from `start` on, which a process holds: those of `flat`, a tensor of
    the optimizer, from `offset` on."""

    name: str
    start: int
    flat: Tensor
    offset: int
    length: int

    def of(self, tensor: Tensor) -> Tensor:
        """These elements of `flat` or of a moment of the same shape, as a view [length]."""
        return tensor.detach().view(-1).narrow(0, self.offset, self.length)

    def share(self, rank: int, world: int) -> Part:
        """The part of this one that process `rank` of `world` writes where all have the whole."""
        first, last = (self.length * place // world for place in (rank, rank + 1))
        return Part(self.name, self.start + first, self.flat, self.offset + first, last - first)


def write_piece(file: Path, parts: Iterable[Part], state: Mapping[Tensor, dict[str, Tensor]]) -> dict[str, Any]:
    """Write weights, and what the optimizer's `state` has of them, synced; a tensor at a time goes through the host's
    memory. Returns the file's bytes and sha256, and how many numbers it has."""
    tensors: dict[str, Tensor] = {}
    for part in (part for part in parts if part.length):
        for what, value in sorted({WEIGHT: part.flat, **state.get(part.flat, {})}.items()):
            tensors[f"{part.name}/{what}/{part.start}"] = value.view(1) if what == STEP else part.of(value)
    kinds = {key: ("float32", [len(tensor)]) for key, tensor in tensors.items()}
    contents = (tensor.to("cpu", torch.float32).numpy() for tensor in tensors.values())
    with writing(file):
        return write_tensors(file, kinds, contents) | {"n_numbers": sum(map(len, tensors.values()))}


def read_part(parts: Iterable[Stored], part: Part, tensor: Tensor) -> None:
    """Fill the elements of `part` in `tensor`, which is its `flat` or of that shape, from the files that have them.
    Raises InputError where one cannot be read."""
    target = part.of(tensor)
    for stored in parts:
        low, high = max(part.start, stored.start), min(part.start + part.length, stored.start + stored.length)
        if low < high:
            target[low - part.start : high - part.start].copy_(numbers(stored, low - stored.start, high - low))


def read_step(parts: Iterable[Stored]) -> float:
    """How often a parameter was updated."""
    return max(float(numbers(part, 0, 1)) for part in parts)


def numbers(stored: Stored, first: int, length: int) -> Tensor:
    """`length` of the stored numbers from `first` on. (Not by a map into memory, where a failing disk is a signal.)"""
    values = torch.empty(length, dtype=getattr(torch, stored.dtype))
    with reading(stored.file, REMEDY), open(stored.file, "rb") as handle:
        handle.seek(stored.offset + values.itemsize * first)
        if handle.readinto(values.view(torch.uint8).numpy().data) != values.nbytes:
            raise OSError("it ends too early")
    return values
