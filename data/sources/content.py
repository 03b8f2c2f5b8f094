"""What a file holds, by its content: how it is compressed, and which reader it is for. Endings of names decide only
what the content leaves open.

JSON lines are a file whose first record, a line of its own, has the key of the text, and no line of text follows; whose
first two lines are JSON objects; or which is called so. Other JSON is plain text, but where its first record has that
key: it would be trained on with its braces.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from arch.errors import InputError

Kind = Literal["text", "jsonl", "parquet", "arrow", "archive"]

BOM = b"\xef\xbb\xbf"
HEAD = 512  # bytes that say what a file is
LONGEST_RECORD = 16 << 20  # bytes of a first record that are looked at
JSON_LINES = (".jsonl", ".ndjson")
COMPRESSIONS = (".gz", ".xz", ".zst", ".bz2")
TABLES: dict[str, Kind] = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
MAGIC: tuple[tuple[bytes, Kind], ...] = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "arrow"),  # the stream format
    (b"PK\x03\x04", "archive"),
    (b"7z\xbc\xaf\x27\x1c", "archive"),
    (b"%PDF-", "archive"),
)


def _plain(stored: IO[bytes]) -> IO[bytes]:
    return stored


def _zstandard(stored: IO[bytes]) -> IO[bytes]:
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(stored, compression="zstd"), 1 << 20)


ZSTD_SKIPPABLE = tuple(bytes([first, 0x2A, 0x4D, 0x18]) for first in range(0x50, 0x60))  # as pzstd begins
COMPRESSED: dict[tuple[bytes, ...], Callable[[IO[bytes]], Any]] = {
    (b"\x1f\x8b\x08",): gzip.open,
    (b"\xfd7zXZ\0",): lzma.open,
    tuple(b"BZh%d1AY&" % level for level in range(1, 10)): bz2.open,
    (b"\x28\xb5\x2f\xfd", *ZSTD_SKIPPABLE): _zstandard,
}


def is_stored_plain(path: Path) -> bool:
    """Whether the bytes of a file are those of its text: it is neither compressed nor a table."""
    with open(path, "rb") as stored:
        head = stored.read(8)
    return _decompressor(head) is _plain and _by_magic(head, path) is None


def is_table(path: Path) -> bool:
    with open(path, "rb") as stored:
        return _by_magic(stored.read(8), path) in TABLES.values()


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """(the file as it lies there, what it holds when decompressed)."""
    with open(path, "rb") as stored:
        decompress = _decompressor(stored.read(8))
        stored.seek(0)
        with decompress(stored) as text:
            yield stored, text


def kind_of(path: Path, text_key: str, is_named: bool) -> Kind:
    """Which reader a file is for. Raises InputError for JSON that is not one record a line, for a table that is
    compressed as a whole, and for what is called compressed and is not."""
    with open(path, "rb") as stored:
        head = stored.read(HEAD)
    if (outside := _by_magic(head, path)) is not None:
        return outside
    if head and path.suffix.lower() in COMPRESSIONS and _decompressor(head) is _plain:
        raise InputError(f"corpus.source: {path} is not compressed, or damaged; repair it, or give it another ending")
    name = _bare(path)
    with opened(path) as (_, text):
        head = text.read(HEAD)
        inside = _by_magic(head, None) or ("archive" if head[257:262] == b"ustar" else None)
        if inside in TABLES.values():
            raise InputError(f"corpus.source: {path} is a {inside} file, compressed as a whole: decompress it")
        if inside is not None or name.endswith(JSON_LINES):
            return inside or "jsonl"
        if head.removeprefix(BOM).lstrip()[:1] not in (b"{", b"["):
            return "text"
    with opened(path) as (_, text):
        return _of_json(text, path, text_key, is_named and name.endswith(".json"))


def _of_json(text: IO[bytes], path: Path, text_key: str, is_called: bool) -> Kind:
    """The kind of what begins as JSON does; is_called: it is named itself and called JSON, so it is no program's."""
    lines = list(_lines(text))
    first, *more = map(_parsed, lines)
    is_cut = len(lines[0]) >= LONGEST_RECORD - len(BOM) and lines[0].lstrip().startswith(b"{")
    if isinstance(first, dict) or is_cut:
        if is_cut or is_called or (more and isinstance(more[0], dict)):
            return "jsonl"
        goes_on = not more or lines[1].lstrip().startswith(b"{")  # else it is a text that begins with a record
        return "jsonl" if text_key in first and goes_on else "text"
    begin = _first_value(b"".join(lines) + text.read(LONGEST_RECORD))
    if is_called or (isinstance(begin, dict) and text_key in begin):
        raise InputError(
            f"corpus.source: {path} holds JSON that is not one record a line: write it as JSON lines, for instance "
            f"by jq -c '.[]' of an array, or jq -c . of records one after another"
        )
    return "text"


def _lines(text: IO[bytes]) -> Iterator[bytes]:
    """The first two lines of a file that are not blank, without a byte order mark."""
    n_lines, start = 0, BOM
    while n_lines < 2 and (line := text.readline(LONGEST_RECORD)):
        if line.removeprefix(start).strip():
            n_lines += 1
            yield line.removeprefix(start)
        start = b""


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _first_value(content: bytes) -> Any:
    """The first JSON value of `content`, or of the array that it begins with; None where no JSON follows it."""
    text = content.decode("utf-8", errors="replace").lstrip().removeprefix("[").lstrip()
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value if text[end:].lstrip()[:1] in ("", ",", "]", "{") else None


def _decompressor(head: bytes) -> Callable[[IO[bytes]], Any]:
    return next((opener for magic, opener in COMPRESSED.items() if head.startswith(magic)), _plain)


def _by_magic(head: bytes, path: Path | None) -> Kind | None:
    by_magic = next((kind for magic, kind in MAGIC if head.startswith(magic)), None)
    return by_magic or (TABLES.get(path.suffix.lower()) if path is not None else None)


def _bare(path: Path) -> str:
    """The name without what says how the file is compressed."""
    name = path.name.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return name


def readable(name: str) -> str:
    """A file's name as text, with \\xe9 for bytes that are no UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
