"""A split on disk: token ids in `<split>_00000.bin`, ... and the start of every document in `<split>.idx`; of a mixture
for each source: `<split>.<name>_00000.bin`, ... and `<split>.<name>.idx`.

`.bin` is raw little-endian uint16 or uint32, `.idx` raw int64 with one entry more than documents: document i is
tokens[idx[i] : idx[i + 1]], its end-of-text token last. Both are
written as text arrives (data/split_writer.py) and read as memory maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np


class ShardedTokens:
    """Several shards as one 1-D array: `len`, `dtype`, an index, or a slice (copied where it crosses a border)."""

    ndim = 1

    def __init__(self, shards: list[np.ndarray]) -> None:
        self._shards = shards
        self._ends = np.cumsum([len(shard) for shard in shards])
        self.dtype = shards[0].dtype
        self.shape = (int(self._ends[-1]),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: int | slice) -> np.ndarray | np.unsignedinteger:
        if not isinstance(key, slice):
            index = range(len(self))[key]
            shard = int(np.searchsorted(self._ends, index, side="right"))
            return self._shards[shard][index - int(self._ends[shard])]  # negative: counted from the shard's end
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ValueError("tokens can be sliced with step 1 only")
        parts = []
        first = int(np.searchsorted(self._ends, start, side="right"))
        for tokens, end in zip(self._shards[first:], self._ends[first:].tolist(), strict=True):
            if start >= stop:
                break
            offset = end - len(tokens)
            parts.append(tokens[start - offset : min(stop, end) - offset])
            start = end
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self._shards).astype(dtype or self.dtype, copy=False)


Tokens = np.ndarray | ShardedTokens


def open_split(directory: Path, split: dict) -> Tokens:
    """The tokens of a split (its entry of the manifest) as one read-only memory-mapped array."""
    shards = [np.memmap(directory / shard["file"], split["dtype"], mode="r") for shard in split["shards"]]
    return shards[0] if len(shards) == 1 else ShardedTokens(list(shards))


def stem_of(split: str, source: str) -> str:
    """What the files of a split are called by: of a source of a mixture, else of the whole ("")."""
    return f"{split}.{source}" if source else split


def open_index(directory: Path, stems: Sequence[str]) -> np.ndarray:
    """Starts of the documents of files that follow one another, and their end: int64 [documents + 1]."""
    indices = [np.memmap(directory / f"{stem}.idx", "<i8", mode="r") for stem in stems]
    if len(indices) == 1:
        return indices[0]
    firsts = np.cumsum([0, *(int(index[-1]) for index in indices)])
    return np.concatenate([*(index[:-1] + at for index, at in zip(indices, firsts, strict=False)), firsts[-1:]])
