"""Files and folders as sources: what is there, how it is compressed, and who reads it.

    JSON lines                    one JSON object a line, the text under `text_key`
    Parquet, Arrow                one row a document, the text in the column `text_key`
    another file                  plain UTF-8 text, cut at line ends into documents of about 64 KiB
    a folder                      every file below it in sorted order, hidden ones left out; a text file is one document

What a file is, and how it is compressed, its content says: data/sources/content.py.

Order is sorted, ids are relative to the source: neither depends on the machine. What cannot be read as UTF-8 text is
refused in a file that is a source itself; in a folder it is counted and left out, never guessed at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.files import reading

from .content import is_stored_plain, is_table, kind_of, opened, readable
from .documents import Document, ReadOptions, Source
from .jsonl import read_jsonl
from .published import layout
from .tables import read_arrow, read_parquet
from .text import FOLDER_FILE_PIECE, NAMED_FILE_PIECE, read_text

REPAIR = "repair or remove the file"


@dataclass(frozen=True)
class SourceFile:
    """A file, what its documents are called by, and whether the source names it itself."""

    path: Path
    doc_id: str
    is_named: bool = False


@dataclass(frozen=True)
class Files(Source):
    """Files as one source."""

    files: list[SourceFile]
    software: dict[str, Any] = field(default_factory=dict)

    def sizes(self, unpack: int = 0) -> list[int] | None:
        """unpack: so many bytes of compressed files, as they are stored, may be decompressed to know theirs."""
        n_bytes = []
        for file in self.files:
            with reading(f"corpus.source: {file.path}", REPAIR):
                stored = file.path.stat().st_size
                if is_stored_plain(file.path):
                    n_bytes.append(stored)
                    continue
                unpack -= stored
                if unpack < 0 or is_table(file.path):
                    return None
                with opened(file.path) as (_, text):
                    n_bytes.append(sum(len(piece) for piece in iter(lambda: text.read(1 << 20), b"")))
        return n_bytes

    def stored(self) -> int | None:
        """Bytes on disk, of which Counts.stored_bytes has been read; None where there are tables."""
        total = 0
        for file in self.files:
            with reading(f"corpus.source: {file.path}", REPAIR):
                if is_table(file.path):
                    return None
                total += file.path.stat().st_size
        return total

    def documents(self, how: ReadOptions) -> Iterator[Document]:
        for file in self.files:
            with reading(f"corpus.source: {file.path}", REPAIR):
                yield from _read(file, how)
            if how.is_enough:
                return

    def versions(self) -> dict[str, Any]:
        return self.software


def of_path(source: str, hint: str) -> Files:
    """The files of a path. Raises InputError where nothing is there; `hint` follows where it does not exist."""
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(
            f"corpus.source: {source!r} does not exist ({path.absolute()}){hint}; correct the path{layout(source)}"
        )
    if path.is_dir():
        files = [SourceFile(path / name, readable(name)) for name in walk(path)]
        if not files:
            raise InputError(
                f"corpus.source: folder {source!r} is empty (no files, hidden ones apart); put text in it"
                f"{layout(source)}"
            )
        return Files(files)
    if not path.is_file():
        raise InputError(f"corpus.source: {source!r} is neither a file nor a folder; name one of these")
    if path.stat().st_size == 0:
        raise InputError(f"corpus.source: file {source!r} is empty (0 bytes); give a file with text{layout(source)}")
    return Files([SourceFile(path, readable(path.name), is_named=True)])


def walk(root: Path, skipped: frozenset[str] = frozenset()) -> list[str]:
    """Paths below `root`, relative and sorted; nothing hidden, no folder of a name in `skipped`."""
    paths = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skipped]
        inside = os.path.relpath(parent, root)
        for name in names:
            if not name.startswith(".") and os.path.isfile(os.path.join(parent, name)):
                paths.append(name if inside == "." else f"{inside}/{name}")
    return sorted(paths)


def _read(file: SourceFile, how: ReadOptions) -> Iterator[Document]:
    path, kind = file.path, kind_of(file.path, how.text_key, file.is_named)
    before = how.counts.stored_bytes
    if kind == "parquet":
        yield from read_parquet(path, file.doc_id, how, file.is_named)
        return
    if kind == "arrow":
        yield from read_arrow(path, file.doc_id, how, file.is_named)
        return
    if kind == "archive":
        if file.is_named:
            raise InputError(f"corpus.source: {path} is an archive or a PDF, no text: unpack it, and name the folder")
        how.counts.binary += 1
        return
    with opened(path) as (stored, handle):
        if kind == "jsonl":
            documents = read_jsonl(handle, file.doc_id, how, file.is_named)
        else:
            piece = NAMED_FILE_PIECE if file.is_named else FOLDER_FILE_PIECE
            documents = read_text(handle, file.doc_id, piece, how, file.is_named)
        for document in documents:
            how.counts.stored_bytes = before + stored.tell()
            yield document
    how.counts.stored_bytes = before + path.stat().st_size
