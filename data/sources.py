"""Where text comes from: one iterator of (doc_id, text) over files, folders, JSONL, stdlib, synthetic text.

A source is a string, or several of them:

    stdlib:                     the running Python's own library source (.py, without tests): real text everywhere
    synthetic:<seed>:<n_bytes>  seeded text, the same on every machine (data/synthetic.py)
    <file>.jsonl[.gz|.xz]       one JSON object a line, the text under `text_key`
    <file>[.gz|.xz]             plain UTF-8 text, cut at line ends into documents of about 64 KiB
    <folder>                    every file below it in sorted order, hidden ones left out; a text file is one document

Order is sorted, ids are relative to the source: neither depends on the machine. What cannot be read as UTF-8 text is
counted in `Counts` and left out, never guessed at.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, cast

from arch.errors import InputError, nearest
from data.settings import as_tuple

NAMED_FILE_PIECE = 64 * 1024  # a file given as the source itself: cut fine, else one document could not be split
FOLDER_FILE_PIECE = 64 * 1024 * 1024  # a file in a folder is one document, unless it is too large to hold
STDLIB_SKIPPED = frozenset({"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"})


class Document(NamedTuple):
    doc_id: str
    text: str


@dataclass
class Counts:
    """What the reader left out, and the bytes it read (uncompressed)."""

    binary: int = 0  # holds a NUL byte
    invalid_utf8: int = 0
    invalid_records: int = 0  # JSONL lines that are no object with a string under text_key
    empty: int = 0  # nothing but white space
    read_bytes: int = 0


def check_source(source: str | list[str] | tuple[str, ...]) -> None:
    """Raise InputError where a source does not exist, holds nothing, or is misspelt. Reads no text."""
    if not as_tuple(source):
        raise InputError("corpus.source: empty list; name a file, a folder, 'stdlib:' or 'synthetic:<seed>:<n_bytes>'")
    for one in as_tuple(source):
        _files(one)


def source_bytes(source: str | list[str] | tuple[str, ...]) -> int | None:
    """Bytes that reading will pass through, for progress; None where a compressed file hides them."""
    total = 0
    for one in as_tuple(source):
        if one.startswith("synthetic:"):
            total += _synthetic_arguments(one)[1]
            continue
        for path, _, _ in _files(one):
            if path.suffix in (".gz", ".xz"):
                return None
            total += path.stat().st_size
    return total


def file_sizes(source: str) -> list[int] | None:
    """Bytes of each file of one source; [] for synthetic text, None where a compressed file hides them."""
    paths = [path for path, _, _ in _files(source)]
    return None if any(path.suffix in (".gz", ".xz") for path in paths) else [path.stat().st_size for path in paths]


def read_documents(
    source: str | list[str] | tuple[str, ...],
    text_key: str = "text",
    counts: Counts | None = None,
    most_bytes: float = math.inf,
) -> Iterator[Document]:
    """Yield (doc_id, text) of every usable document, in an order that depends on the source alone; it stops behind
    the line or piece of text that reaches `most_bytes` read.

    Raises InputError: path missing, empty, unreadable or damaged; first record of a JSONL file without `text_key`.
    """
    counts = counts if counts is not None else Counts()
    for one in as_tuple(source):
        if one.startswith("synthetic:"):
            from data.synthetic import synthetic_documents

            for i, text in enumerate(synthetic_documents(*_synthetic_arguments(one))):
                counts.read_bytes += len(text.encode())
                yield Document(f"{one.rsplit(':', 1)[0]}:{i}", text)
            continue
        for path, doc_id, piece in _files(one):
            jsonl = path.name.removesuffix(".gz").removesuffix(".xz").endswith(".jsonl")
            try:
                with _open(path) as handle:
                    if jsonl:
                        yield from _read_jsonl(handle, doc_id, text_key, counts, most_bytes)
                    else:
                        yield from _read_text(handle, doc_id, piece, counts, most_bytes)
            except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
                raise InputError(f"corpus.source: cannot read {path} ({error}); mend or remove the file") from error
            if counts.read_bytes >= most_bytes:
                return


def _files(source: str) -> list[tuple[Path, str, int]]:
    """(path, doc_id, largest document in bytes) of every file of one source, sorted; [] for synthetic text."""
    if source.startswith("synthetic:"):
        _synthetic_arguments(source)
        return []
    if source == "stdlib:":
        return _stdlib_files()
    path = Path(source).expanduser()
    if not path.exists():
        scheme = source.split(":", 1)[0] if ":" in source else ""
        hint = nearest(f"{scheme}:", ["stdlib:", "synthetic:"]) if scheme and "/" not in source else ""
        raise InputError(f"corpus.source: {source!r} does not exist (looked at {path.absolute()}){hint}; mend the path")
    if path.is_dir():
        files = [(path / name, name, FOLDER_FILE_PIECE) for name in _walk(path)]
        if not files:
            raise InputError(f"corpus.source: folder {source!r} is empty (no files, hidden ones apart); put text in it")
        return files
    if not path.is_file():
        raise InputError(f"corpus.source: {source!r} is neither a file nor a folder; name one of these")
    if path.stat().st_size == 0:
        raise InputError(f"corpus.source: file {source!r} is empty (0 bytes); give a file with text")
    return [(path, path.name, NAMED_FILE_PIECE)]


def _walk(root: Path, skipped: frozenset[str] = frozenset()) -> list[str]:
    """Paths below `root`, relative and sorted; nothing hidden, no folder of a name in `skipped`."""
    found = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skipped]
        inside = os.path.relpath(parent, root)
        for name in names:
            if not name.startswith(".") and os.path.isfile(os.path.join(parent, name)):
                found.append(name if inside == "." else f"{inside}/{name}")
    return sorted(found)


def _stdlib_files() -> list[tuple[Path, str, int]]:
    import sysconfig

    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        (root / name, f"stdlib:{name}", FOLDER_FILE_PIECE)
        for name in _walk(root, STDLIB_SKIPPED)
        # config-* and _sysconfigdata* are written by the build of this one interpreter: not library source
        if name.endswith(".py") and not name.startswith(("config-", "_sysconfigdata"))
    ]
    if not files:
        raise InputError(f"corpus.source: 'stdlib:' finds no .py source below {root}; name a file or folder instead")
    return files


def _synthetic_arguments(source: str) -> tuple[int, int]:
    parts = source.split(":")
    try:
        seed, n_bytes = int(parts[1]), int(parts[2])
    except (IndexError, ValueError):
        seed, n_bytes = 0, 0
    if len(parts) != 3 or n_bytes <= 0 or seed < 0:
        raise InputError(
            f"corpus.source: {source!r} is not 'synthetic:<seed>:<n_bytes>' with whole numbers, n_bytes > 0"
        )
    return seed, n_bytes


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return open(path, "rb")


def _decode(content: bytes, counts: Counts) -> str | None:
    """UTF-8 text of `content`, or None after counting why not."""
    counts.read_bytes += len(content)
    if b"\0" in content:
        counts.binary += 1
        return None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        counts.invalid_utf8 += 1
        return None
    if not text.strip():
        counts.empty += 1
        return None
    return text


def _read_text(handle: IO[bytes], doc_id: str, limit: int, counts: Counts, most_bytes: float) -> Iterator[Document]:
    index = -1
    for index, content in enumerate(_pieces(handle, limit)):
        if counts.read_bytes >= most_bytes:
            return
        text = _decode(content, counts)
        if text is not None:
            yield Document(f"{doc_id}#{index}" if index else doc_id, text)
    if index < 0:
        counts.empty += 1


def _pieces(handle: IO[bytes], limit: int) -> Iterator[bytes]:
    """The file cut at the first line end after `limit` bytes; a line longer than that is cut between characters."""
    ahead = b""
    while content := ahead + handle.read(limit):
        if len(content) >= limit:
            content += handle.readline(limit)
        ahead = handle.read(1)
        for _ in range(3):  # a UTF-8 character has at most three continuation bytes
            if b"\x80" <= ahead < b"\xc0":
                content, ahead = content + ahead, handle.read(1)
        yield content


def _read_jsonl(handle: IO[bytes], name: str, text_key: str, counts: Counts, most_bytes: float) -> Iterator[Document]:
    read_any = False
    for number, line in enumerate(handle, start=1):
        if counts.read_bytes >= most_bytes:
            return
        counts.read_bytes += len(line)
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            counts.invalid_utf8 += 1
            continue
        except (ValueError, RecursionError):
            counts.invalid_records += 1
            continue
        if isinstance(record, dict) and text_key not in record and not read_any:
            raise InputError(
                f"corpus.text_key: {name} line {number} has no key {text_key!r}{nearest(text_key, sorted(record))}"
            )
        text = record.get(text_key) if isinstance(record, dict) else None
        if not isinstance(text, str):
            counts.invalid_records += 1
            continue
        read_any = True
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:  # "\ud800" is legal JSON and no text
            counts.invalid_utf8 += 1
            continue
        if text.strip():
            yield Document(f"{name}:{number}", text)
        else:
            counts.empty += 1
