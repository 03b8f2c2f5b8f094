"""What a source gives: documents, and counts of what it could not give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class Document(NamedTuple):
    doc_id: str
    text: str


@dataclass
class Counts:
    """What the reader left out, and the bytes it read (uncompressed)."""

    binary: int = 0  # holds a NUL byte
    invalid_utf8: int = 0
    invalid_records: int = 0  # JSONL lines and rows of tables without a string under text_key
    empty: int = 0  # nothing but white space
    cut_lines: int = 0  # of text, where a document ends inside one: nothing is left out
    read_bytes: int = 0
    stored_bytes: int = 0  # of files, as they lie there: fewer where they are compressed


@dataclass(frozen=True)
class ReadOptions:
    """How a source is to be read: the key of the text in a record, where what is left out is counted, and after how
    many bytes of all sources reading stops."""

    text_key: str
    counts: Counts
    most_bytes: float

    @property
    def is_enough(self) -> bool:
        return self.counts.read_bytes >= self.most_bytes


class Source(ABC):
    """One source that was found, and of which no text was read yet."""

    @abstractmethod
    def sizes(self) -> list[int] | None:
        """Bytes of text, or somewhat more, of each of its files; None where that is hidden (a compressed file)."""

    @abstractmethod
    def documents(self, how: ReadOptions) -> Iterator[Document]:
        """Its documents, in an order that depends on the source alone. Raises InputError where it cannot be read."""

    def versions(self) -> dict[str, Any]:
        """What the text depends on that may be another on another machine: {"python": "3.11.7"}."""
        return {}

    def is_at_hand(self) -> bool:
        """Whether reading it needs no network."""
        return True


def usable(text: str, counts: Counts) -> bool:
    """Whether a text has anything to read and can be written as UTF-8; else it is counted."""
    if not text.strip():
        counts.empty += 1
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # "\ud800" is legal JSON and no text
        counts.invalid_utf8 += 1
        return False
    return True
