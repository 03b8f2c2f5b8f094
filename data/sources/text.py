"""Plain text: a file cut into documents at line ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from arch.errors import InputError

from .content import BOM
from .documents import Counts, Document, ReadOptions, usable

NAMED_FILE_PIECE = 64 * 1024  # a file given as the source itself: cut fine, else one document could not be split
FOLDER_FILE_PIECE = 64 * 1024 * 1024  # a file in a folder is one document, unless it is too large to hold


def read_text(
    handle: IO[bytes], doc_id: str, limit: int, how: ReadOptions, refuses: bool = False
) -> Iterator[Document]:
    """Documents of about `limit` bytes. Raises InputError, where it `refuses`, for what is no UTF-8; else counts it."""
    index, place, counts = -1, 0, how.counts
    for index, content in enumerate(_pieces(handle, limit, how.counts)):
        if how.is_enough:
            return
        counts.read_bytes += len(content)
        if b"\0" in content:
            counts.binary += 1
        elif (text := _decode(content if place else content.removeprefix(BOM))) is None:
            if refuses:
                raise InputError(f"corpus.source: {not_utf8(doc_id, content, place)}")
            counts.invalid_utf8 += 1
        elif usable(text, counts):
            yield Document(f"{doc_id}#{index}" if index else doc_id, text)
        place += len(content)
    if index < 0:
        counts.empty += 1


def not_utf8(name: str, content: bytes, place: int = 0) -> str:
    """A message on `content`, which begins at byte `place` of what is called `name`."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        at = place + error.start
        return f"{name} is not UTF-8 (byte 0x{content[error.start]:02x} at {at:,}); convert it, for instance by iconv"
    return f"{name} is UTF-8"


def _decode(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _pieces(handle: IO[bytes], limit: int, counts: Counts) -> Iterator[bytes]:
    """The file cut at the first line end after `limit` bytes; a line that is longer by as many more is cut between
    characters, and counted."""
    ahead = b""
    while content := ahead + handle.read(limit):
        if len(content) >= limit:
            content += handle.readline(limit)
        ahead = handle.read(1)
        for _ in range(3):  # a UTF-8 character has at most three continuation bytes
            if b"\x80" <= ahead < b"\xc0":
                content, ahead = content + ahead, handle.read(1)
        counts.cut_lines += bool(ahead) and not content.endswith(b"\n")
        yield content
