"""Text whose entropy rate is known (data/truth): the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .documents import Document, ReadOptions

if TYPE_CHECKING:
    from data.truth.schemes import TrueText


@dataclass(frozen=True)
class Known:
    """A source of data/truth/schemes.py."""

    source: str
    text: TrueText

    def sizes(self) -> list[int]:
        return [self.text.n_bytes]

    def documents(self, how: ReadOptions) -> Iterator[Document]:
        name = ":".join(self.source.split(":")[:3])
        for i, text in enumerate(self.text.documents()):
            how.counts.read_bytes += len(text)
            yield Document(f"{name}:{i}", text)
            if how.is_enough:
                return

    def versions(self) -> dict[str, str]:
        return {}

    def is_at_hand(self) -> bool:
        return True


def known(source: str) -> Known:
    """`powerlaw:<seed>:<n_bytes>` and its like."""
    from data.truth.schemes import true_text

    return Known(source, true_text(source))
