"""Files and folders as sources: what is there, how it is compressed, and who reads it.

    <file>.jsonl[.gz|.xz|.zst]    one JSON object a line, the text under `text_key`
    <file>.parquet, .arrow, .feather     one row a document, the text in the column `text_key`
    <file>[.gz|.xz|.zst]          plain UTF-8 text, cut at line ends into documents of about 64 KiB
    <folder>                      every file below it in sorted order, hidden ones left out; a text file is one document

Order is sorted, ids are relative to the source: neither depends on the machine. What cannot be read as UTF-8 text is
refused in a file that is a source itself; in a folder it is counted and left out, never guessed at.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from arch.errors import InputError

from .documents import Document, ReadOptions
from .jsonl import read_jsonl
from .tables import read_arrow, read_parquet
from .text import FOLDER_FILE_PIECE, NAMED_FILE_PIECE, read_text


@dataclass(frozen=True)
class SourceFile:
    """A file, what its documents are called by, and whether the source names it itself."""

    path: Path
    doc_id: str
    is_named: bool = False


@dataclass(frozen=True)
class Files:
    """Files as one source."""

    files: list[SourceFile]
    found_versions: dict[str, Any] = field(default_factory=dict)

    def sizes(self) -> list[int] | None:
        if any(file.path.suffix in (*COMPRESSED, *TABLES) for file in self.files):
            return None
        return [file.path.stat().st_size for file in self.files]

    def stored(self) -> int | None:
        """Bytes on disk, by which Counts.stored_bytes tells how much of them was read; None where there are tables."""
        if any(file.path.suffix in TABLES for file in self.files):
            return None
        return sum(file.path.stat().st_size for file in self.files)

    def documents(self, how: ReadOptions) -> Iterator[Document]:
        for file in self.files:
            try:
                yield from _read(file, how)
            except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
                told = " ".join(str(error).split())
                raise InputError(f"corpus.source: cannot read {file.path} ({told}); mend or remove the file") from error
            if how.is_enough:
                return

    def versions(self) -> dict[str, Any]:
        return self.found_versions

    def is_at_hand(self) -> bool:
        return True


def of_path(source: str, hint: str) -> Files:
    """The files of a path. Raises InputError where nothing is there; `hint` follows where it does not exist."""
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"corpus.source: {source!r} does not exist (looked at {path.absolute()}){hint}; mend the path")
    if path.is_dir():
        files = [SourceFile(path / name, name) for name in walk(path)]
        if not files:
            raise InputError(f"corpus.source: folder {source!r} is empty (no files, hidden ones apart); put text in it")
        return Files(files)
    if not path.is_file():
        raise InputError(f"corpus.source: {source!r} is neither a file nor a folder; name one of these")
    if path.stat().st_size == 0:
        raise InputError(f"corpus.source: file {source!r} is empty (0 bytes); give a file with text")
    return Files([SourceFile(path, path.name, is_named=True)])


def walk(root: Path, skipped: frozenset[str] = frozenset()) -> list[str]:
    """Paths below `root`, relative and sorted; nothing hidden, no folder of a name in `skipped`."""
    found = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skipped]
        inside = os.path.relpath(parent, root)
        for name in names:
            if not name.startswith(".") and os.path.isfile(os.path.join(parent, name)):
                found.append(name if inside == "." else f"{inside}/{name}")
    return sorted(found)


def _read(file: SourceFile, how: ReadOptions) -> Iterator[Document]:
    path = file.path
    if path.suffix in TABLES:
        yield from TABLES[path.suffix](path, file.doc_id, how, file.is_named)
        return
    bare = path.stem if path.suffix in COMPRESSED else path.name
    opened = COMPRESSED.get(path.suffix, _plain)
    before = how.counts.stored_bytes
    with open(path, "rb") as stored, opened(stored) as handle:
        if bare.endswith(".jsonl"):
            documents = read_jsonl(handle, file.doc_id, how, file.is_named)
        else:
            piece = NAMED_FILE_PIECE if file.is_named else FOLDER_FILE_PIECE
            documents = read_text(handle, file.doc_id, piece, how, file.is_named)
        for document in documents:
            how.counts.stored_bytes = before + stored.tell()
            yield document
    how.counts.stored_bytes = before + path.stat().st_size


def _plain(stored: IO[bytes]) -> IO[bytes]:
    return stored


def _gzip(stored: IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(stored, "rb"))


def _xz(stored: IO[bytes]) -> IO[bytes]:
    return lzma.open(stored, "rb")


def _zstandard(stored: IO[bytes]) -> IO[bytes]:
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(stored, compression="zstd"), 1 << 20)


TABLES = {".parquet": read_parquet, ".arrow": read_arrow, ".feather": read_arrow}
COMPRESSED: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {".gz": _gzip, ".xz": _xz, ".zst": _zstandard}
