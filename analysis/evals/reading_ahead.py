"""The files of the checkpoint that comes next are read in a thread while the one before it is evaluated."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from arch.model.lm import WEIGHTS, read_weights
from scaling.rundir.find_checkpoint import find_checkpoint

if TYPE_CHECKING:
    from scaling.rundir.saved import Checkpoint

MAX_BYTES = 1 << 30  # of weights that wait in memory; larger ones are verified ahead, and read again when it is time


@dataclass(frozen=True)
class Files:
    """What a checkpoint's directory holds, its checksums verified; weights: None where they are too large to wait."""

    found: Checkpoint
    config: bytes
    weights: dict[str, Tensor] | None


class ReadAhead:
    """Reads checkpoints, once each; `pinned`: weights lie where a GPU copies them from while the host goes on."""

    def __init__(self, pinned: bool = False) -> None:
        self._pinned = pinned
        self._thread = ThreadPoolExecutor(1, "reader")
        self._next: tuple[Path, Future[Files]] | None = None

    def start(self, path: Path) -> None:
        """Read it now, in the thread."""
        self._next = path, self._thread.submit(self._read, path)

    def files(self, path: Path) -> Files:
        """Of the checkpoint at `path`. Raises InputError where none is, or it is damaged."""
        ahead, self._next = self._next, None
        return ahead[1].result() if ahead is not None and ahead[0] == path else self._read(path)

    def _read(self, path: Path) -> Files:
        found = find_checkpoint(path, lambda line: None)
        config = (path / "config.json").read_bytes()
        if found.manifest["files"][WEIGHTS]["bytes"] > MAX_BYTES:
            return Files(found, config, None)
        weights = read_weights(path)
        return Files(found, config, pinned(weights) if self._pinned else weights)


def pinned(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same in pinned memory, in one piece for each dtype."""
    found: dict[str, Tensor] = {}
    for dtype in {tensor.dtype for tensor in weights.values()}:
        some = {name: tensor for name, tensor in weights.items() if tensor.dtype == dtype}
        whole = torch.empty(sum(tensor.numel() for tensor in some.values()), dtype=dtype, pin_memory=True)
        pieces = whole.split([tensor.numel() for tensor in some.values()])
        for (name, tensor), piece in zip(some.items(), pieces, strict=True):
            found[name] = piece.view(tensor.shape).copy_(tensor)
    return found
