"""Writes a split's files (data/shards.py) as text arrives, from the start or from where a killed process left them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, Any

import numpy as np

from data.encoding import Block
from data.files import sha256

READ = 1 << 20  # bytes of a shard hashed at a time


class SplitWriter:
    """Append documents to the files called by `stem`, at most `shard_tokens` ids each; `close()` says what there is.

    state: what an earlier writer's `save` returned: what was written after it is cut off. Raises ValueError where the
    files do not hold what it describes."""

    def __init__(
        self,
        directory: Path,
        stem: str,
        dtype: type[np.unsignedinteger],
        shard_tokens: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.directory, self.stem, self.shard_tokens = directory, stem, shard_tokens
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.n_tokens = self.n_documents = self.n_bytes = 0
        self.shards: list[dict[str, int | str]] = []
        self._shard: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        if state is None:
            self._index: IO[bytes] = open(self._index_path, "wb")  # noqa: SIM115 - open as long as the writer
        else:
            self._resume(state)

    @property
    def _index_path(self) -> Path:
        return self.directory / f"{self.stem}.idx"

    def _shard_path(self, number: int) -> Path:
        return self.directory / f"{self.stem}_{number:05d}.bin"

    def append(self, block: Block) -> None:
        """Write the documents of a block."""
        starts = self.n_tokens + np.cumsum(block.lengths) - block.lengths
        self._index.write(starts.astype("<i8").tobytes())
        self.n_documents += len(block.lengths)
        self.n_bytes += block.n_bytes
        tokens = block.tokens.astype(self.dtype, copy=False)
        while len(tokens):
            room = self.shard_tokens - self.n_tokens % self.shard_tokens
            if self.n_tokens % self.shard_tokens == 0:
                self._finish_shard()
                self._shard = open(self._shard_path(len(self.shards)), "wb")  # noqa: SIM115
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
        name = Path(self._shard.name).name
        self.shards.append({"file": name, "tokens": self._in_shard(), "sha256": self._hash.hexdigest()})
        self._hash = hashlib.sha256()
        self._shard = None

    def _in_shard(self) -> int:
        """Tokens of the shard that is open."""
        return self.n_tokens - sum(int(shard["tokens"]) for shard in self.shards)

    def save(self) -> dict[str, Any]:
        """Bring to disk what was written; what a later writer needs to continue from here."""
        for handle in (self._index, self._shard):
            if handle is not None:
                handle.flush()
                os.fsync(handle.fileno())
        return self._counts() | {"shards": list(self.shards)}

    def _counts(self) -> dict[str, int]:
        return {"documents": self.n_documents, "bytes": self.n_bytes, "tokens": self.n_tokens}

    def _resume(self, state: dict[str, Any]) -> None:
        self.n_documents, self.n_bytes, self.n_tokens = state["documents"], state["bytes"], state["tokens"]
        self.shards = list(state["shards"])
        self._index = _opened(self._index_path, 8 * self.n_documents)
        for number, shard in enumerate(self.shards):
            if sha256(self._shard_path(number)) != shard["sha256"]:
                raise ValueError(f"{self._shard_path(number)} is not what was noted")
        if n_open := self._in_shard():
            path = self._shard_path(len(self.shards))
            self._shard = _opened(path, n_open * self.dtype.itemsize)
            with open(path, "rb") as handle:
                while content := handle.read(READ):
                    self._hash.update(content)

    def close(self) -> dict[str, Any]:
        """Counts and shards of the split, for the manifest."""
        self._finish_shard()
        self._index.write(np.int64(self.n_tokens).astype("<i8").tobytes())
        self._index.close()
        return self._counts() | {"dtype": self.dtype.name, "shards": self.shards}

    def abandon(self) -> None:
        """Close the files, whatever state they are in; a full disk may refuse the last flush."""
        for handle in (self._index, self._shard):
            if handle is not None:
                try:
                    handle.close()
                except OSError:
                    continue


def _opened(path: Path, n_bytes: int) -> IO[bytes]:
    """The file cut to `n_bytes`, to be written on. Raises ValueError where it is shorter."""
    handle = open(path, "r+b")  # noqa: SIM115 - open as long as the writer
    if handle.seek(0, os.SEEK_END) < n_bytes:
        handle.close()
        raise ValueError(f"{path} is shorter than was noted")
    handle.truncate(n_bytes)
    handle.seek(n_bytes)
    return handle
