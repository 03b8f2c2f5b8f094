"""The pieces of a training state: safetensors files of parts of parameters, one from each process and read by any.

A part is a run of a parameter's elements in fp32: `model.emb.weight/exp_avg/4096` begins at the parameter's 4096th.
What there is of a parameter (`weight`, and by the optimizer's own names its moments) is cut up as the writing processes
held it; together the pieces of a state have every element once. `step` is one number beside each part.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from arch.errors import InputError
from data.files import reading

WEIGHT, STEP = "weight", "step"
REMEDY = "remove this directory, and the run goes on from an earlier state where there is one"


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
    memory. Returns the file's bytes and sha256."""
    tensors = {}
    for part in (part for part in parts if part.length):
        for what, value in sorted({WEIGHT: part.flat, **state.get(part.flat, {})}.items()):
            tensors[f"{part.name}/{what}/{part.start}"] = value.view(1) if what == STEP else part.of(value)
    header, end = {}, 0
    for key, tensor in tensors.items():
        begin, end = end, end + 4 * len(tensor)
        header[key] = {"dtype": "F32", "shape": [len(tensor)], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(file, "wb") as handle:
        contents: Iterator[Any] = (tensor.to("cpu", torch.float32).numpy() for tensor in tensors.values())
        for content in chain([len(text).to_bytes(8, "little"), text], contents):
            handle.write(content)
            digest.update(content)
        handle.flush()
        os.fsync(handle.fileno())
        return {"bytes": handle.tell(), "sha256": digest.hexdigest()}


class Pieces:
    """The pieces of these names in a folder, open. Raises InputError where they cannot be read."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._parts: dict[str, dict[str, list[tuple[int, Any]]]] = {}
        for name in names:
            with reading(folder / name, REMEDY):
                file = safe_open(folder / name, "pt")
                for key in file.keys():  # noqa: SIM118 (a method of safetensors)
                    parameter, what, start = key.rsplit("/", 2)
                    parts = self._parts.setdefault(parameter, {}).setdefault(what, [])
                    parts.append((int(start), file.get_slice(key)))

    def kinds(self, name: str) -> list[str]:
        """What there is of a parameter: weight, moments, step."""
        return list(self._parts.get(name, ()))

    def read(self, part: Part, what: str, tensor: Tensor) -> None:
        """Fill the elements of `part` in `tensor`, which is its `flat` or of that shape. Raises InputError where one is
        missing, or there twice."""
        target, end, n_read = part.of(tensor), part.start + part.length, 0
        for first, values in sorted(self._parts.get(part.name, {}).get(what, ()), key=itemgetter(0)):
            low, high = max(part.start, first), min(end, first + values.get_shape()[0])
            if low == part.start + n_read < high:
                target[low - part.start : high - part.start].copy_(values[low - first : high - first])
                n_read += high - low
        if n_read != part.length:
            raise InputError(
                f"{self._folder}: is no training state ({what} of {part.name}: {n_read:,} of {part.length:,} numbers); "
                f"{REMEDY}"
            )

    def step(self, name: str) -> float:
        """How often a parameter was updated."""
        return max(float(value[:][0]) for _, value in self._parts[name][STEP])
