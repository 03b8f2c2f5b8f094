"""Reading any source: checked, measured and read, whatever its kind.

A source is a string (a path, or a scheme of data/sources/schemes.py), or several of them that are read one
after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from arch.errors import InputError
from data.settings import as_tuple

from .documents import Counts, Document, ReadOptions
from .files import Files
from .schemes import find

Sources = str | list[str] | tuple[str, ...]


def check_source(source: Sources) -> None:
    """Raise InputError where a source does not exist, holds nothing, or is misspelt. Reads no text."""
    if not as_tuple(source):
        raise InputError("corpus.source: empty list; name a file, a folder, 'stdlib:' or 'synthetic:<seed>:<n_bytes>'")
    for name in as_tuple(source):
        find(name)


def source_bytes(source: Sources) -> int | None:
    """Bytes that reading will pass through, for progress; None where a compressed file hides them."""
    total = 0
    for name in as_tuple(source):
        sizes = find(name).sizes()
        if sizes is None:
            return None
        total += sum(sizes)
    return total


def stored_bytes(source: Sources) -> int | None:
    """Bytes of its files as they lie on disk, compressed or not; None where it is not one of files, or of tables."""
    total = 0
    for opened in map(find, as_tuple(source)):
        stored = opened.stored() if isinstance(opened, Files) else None
        if stored is None:
            return None
        total += stored
    return total


def versions_of(source: Sources) -> dict[str, Any]:
    """What the text depends on that may be another on another machine: {"python": "3.11.7", "packages": {...}}."""
    versions: dict[str, Any] = {}
    for source_name in as_tuple(source):
        for name, version in find(source_name).versions().items():
            versions[name] = versions.get(name, {}) | version if isinstance(version, dict) else version
    return versions


def read_documents(
    source: Sources,
    text_key: str = "text",
    counts: Counts | None = None,
    most_bytes: float = math.inf,
) -> Iterator[Document]:
    """Yield (doc_id, text) of every usable document, in an order that depends on the source alone; reading stops
    after the line or piece of text that reaches `most_bytes`.

    Raises InputError: path missing, empty, unreadable or damaged; first record of a JSONL file without `text_key`.
    """
    how = ReadOptions(text_key, counts if counts is not None else Counts(), most_bytes)
    for name in as_tuple(source):
        yield from find(name).documents(how)
        if how.is_enough:
            return
