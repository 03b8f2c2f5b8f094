"""The members of a bundle's file, in pieces: a tar of plain files, packed by xz, which holds no more than it may.

A file of a few bytes can claim any size, in xz, in tar and in what follows a header. Nothing here takes more memory
than a piece and xz' dictionary, and reading ends where the content becomes much larger than the file.
"""

from __future__ import annotations

import io
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from arch.amounts import byte_size
from arch.errors import InputError

XZ = b"\xfd7zXZ\x00"  # what such a file begins with
PIECE = 1 << 20  # bytes
XZ_MEMORY = 1 << 25  # bytes; a bundle's own dictionary takes a sixteenth
RATIO, FEW_BYTES = 100, 1 << 26  # content a byte of the file, and what a small one may have; bundles have 5 to 6
BLOCK = tarfile.BLOCKSIZE
LONGEST_HEADER = 4096  # bytes of a header that has a long name
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
AGAIN = "fetch it again from the machine that made it"

Pieces = Iterator[bytes]


class _Content(io.RawIOBase):
    """What an xz file holds; raises ValueError where that is more than it may be."""

    def __init__(self, packed: BinaryIO, size: int) -> None:
        self._packed, self._left = packed, max(FEW_BYTES, RATIO * size)
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._xz.eof:
            given = self._packed.read(1 << 16) if self._xz.needs_input else b""
            if self._xz.needs_input and not given:
                raise EOFError("it ends before its end")
            if content := self._xz.decompress(given, len(buffer)):
                self._left -= len(content)
                if self._left < 0:
                    raise ValueError(f"it holds more than {RATIO} times its own bytes")
                buffer[: len(content)] = content
                return len(content)
        if self._xz.unused_data or self._packed.read(1):
            raise lzma.LZMAError("something follows its end")
        return 0


def members_of(path: Path, most: Callable[[str], int]) -> Iterator[tuple[str, int, Pieces]]:
    """(name, bytes, pieces of the content) of every member. Read all pieces of one before you take the next.
    most(name): bytes that it may have. Raises InputError where one is no plain file or larger, or the file cannot be
    read."""
    with _damage_named(path):
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is no regular file")
        with open(path, "rb") as packed:
            if packed.read(len(XZ)) != XZ:
                raise InputError(f"{path}: is no bundle of `scaling bundle pack`")
            packed.seek(0)
            content = io.BufferedReader(_Content(packed, path.stat().st_size), PIECE)
            while (member := _next(content, path)) is not None:
                name, size = member
                if size > (allowed := most(name)):
                    raise InputError(
                        f"{path}: is damaged: {name} is larger than it should be ({byte_size(size)}, at most "
                        f"{byte_size(allowed)}); {AGAIN}"
                    )
                pieces = _pieces(content, size, path)
                yield name, size, pieces
                for _ in pieces:  # the pieces that the caller did not read
                    pass
                _exactly(content, -size % BLOCK)
            while piece := content.read(PIECE):  # what follows has a checksum too
                if any(piece):
                    raise ValueError("something follows its last file")


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (lzma.LZMAError, EOFError, MemoryError, tarfile.TarError, ValueError) as error:
        raise InputError(f"{path}: is damaged or truncated ({error}); {AGAIN}") from None


def whole(pieces: Pieces) -> bytes:
    return b"".join(pieces)


def _pieces(content: BinaryIO, size: int, path: Path) -> Pieces:
    """The pieces of a member. Damage is raised where a piece is read, which is outside of `members_of`."""
    while size:
        with _damage_named(path):
            piece = _exactly(content, min(size, PIECE))
        size -= len(piece)
        yield piece


def _exactly(content: BinaryIO, size: int) -> bytes:
    content_read = content.read(size)
    if len(content_read) < size:
        raise EOFError("a file ends before its end")
    return content_read


def _next(content: BinaryIO, path: Path) -> tuple[str, int] | None:
    """Name and size of the next member; None after the last."""
    longer = None
    while any(block := _exactly(content, BLOCK)):
        header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if header.size < 0:
            raise ValueError("a file has less than no bytes")
        if header.type == tarfile.XHDTYPE and longer is None and header.size <= LONGEST_HEADER:
            longer = _name_in(_exactly(content, header.size))
            _exactly(content, -header.size % BLOCK)
        elif header.type in PLAIN:
            return longer or header.name, header.size
        else:
            raise InputError(f"{path}: {header.name!r} is no plain file: it is refused")
    return None


def _name_in(header: bytes) -> str:
    """The name in a pax header that has a long name and no more."""
    match = re.fullmatch(rb"(\d+) path=([^\n]+)\n", header)
    if match is None or int(match[1]) != len(header):
        raise ValueError("a header has more than a name")
    return match[2].decode()
