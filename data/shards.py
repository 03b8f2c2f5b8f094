"""A split on disk: token ids in `<split>_00000.bin`, ... and the start of every document in `<split>.idx`; of a mixture
for each source: `<split>.<name>_00000.bin`, ... and `<split>.<name>.idx`.

`.bin` is raw little-endian uint16 or uint32, `.idx` raw int64 with one entry more than documents: document i is
tokens[idx[i] : idx[i + 1]], its end-of-text token last. Both are written as text arrives and read as memory maps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np


class SplitWriter:
    """Append documents to the files called by `stem`, at most `shard_tokens` ids each; `close()` says what there is."""

    def __init__(self, directory: Path, stem: str, dtype: type[np.unsignedinteger], shard_tokens: int) -> None:
        self.directory, self.stem, self.shard_tokens = directory, stem, shard_tokens
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.n_tokens = self.n_documents = self.n_bytes = 0
        self.shards: list[dict[str, int | str]] = []
        self._shard: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        self._index = open(directory / f"{stem}.idx", "wb")  # noqa: SIM115 - open as long as the writer

    def append(self, ids: np.ndarray, eot_id: int, n_bytes: int) -> None:
        """Write one document's `ids` and the end-of-text token; `n_bytes` is the length of its text in UTF-8."""
        self._index.write(np.int64(self.n_tokens).astype("<i8").tobytes())
        tokens = np.append(ids, eot_id).astype(self.dtype)
        self.n_documents += 1
        self.n_bytes += n_bytes
        while len(tokens):
            room = self.shard_tokens - self.n_tokens % self.shard_tokens
            if self.n_tokens % self.shard_tokens == 0:
                self._finish_shard()
                self._shard = open(self.directory / f"{self.stem}_{len(self.shards):05d}.bin", "wb")  # noqa: SIM115
            part, tokens = tokens[:room], tokens[room:]
            content = part.tobytes()
            assert self._shard is not None
            self._shard.write(content)
            self._hash.update(content)
            self.n_tokens += len(part)

    def _finish_shard(self) -> None:
        if self._shard is None:
            return
        self._shard.close()
        done = sum(int(shard["tokens"]) for shard in self.shards)
        name = Path(self._shard.name).name
        self.shards.append({"file": name, "tokens": self.n_tokens - done, "sha256": self._hash.hexdigest()})
        self._hash = hashlib.sha256()
        self._shard = None

    def close(self) -> dict[str, object]:
        """Counts and shards of the split, for the manifest."""
        self._finish_shard()
        self._index.write(np.int64(self.n_tokens).astype("<i8").tobytes())
        self._index.close()
        return {
            "documents": self.n_documents,
            "bytes": self.n_bytes,
            "tokens": self.n_tokens,
            "dtype": self.dtype.name,
            "shards": self.shards,
        }

    def abandon(self) -> None:
        """Close the files, whatever state they are in; a full disk may refuse the last flush."""
        for handle in (self._index, self._shard):
            if handle is not None:
                try:
                    handle.close()
                except OSError:
                    continue


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
    found = [np.memmap(directory / f"{stem}.idx", "<i8", mode="r") for stem in stems]
    if len(found) == 1:
        return found[0]
    firsts = np.cumsum([0, *(int(index[-1]) for index in found)])
    return np.concatenate([*(index[:-1] + at for index, at in zip(found, firsts, strict=False)), firsts[-1:]])
