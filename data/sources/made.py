"""Text that is made, not found: the same on every machine. Of some the entropy rate is known (data/truth)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from arch.errors import InputError

from .documents import Document, ReadOptions, Source

if TYPE_CHECKING:
    from data.truth.schemes import Truth


@dataclass(frozen=True)
class Made(Source):
    """`n_bytes` bytes of ASCII, whose documents are called `name`:0, `name`:1, ..; truth: of a source of
    data/truth/schemes.py."""

    name: str
    n_bytes: int
    texts: Callable[[], Iterator[str]]
    truth: Truth | None = None

    def sizes(self) -> list[int]:
        return [self.n_bytes]

    def documents(self, how: ReadOptions) -> Iterator[Document]:
        for i, text in enumerate(self.texts()):
            how.counts.read_bytes += len(text)
            yield Document(f"{self.name}:{i}", text)
            if how.is_enough:
                return


def synthetic(source: str) -> Made:
    """`synthetic:<seed>:<n_bytes>` (data/synthetic.py)."""
    from data.synthetic import synthetic_documents

    parts = source.split(":")
    try:
        seed, n_bytes = int(parts[1]), int(parts[2])
    except (IndexError, ValueError):
        seed, n_bytes = 0, 0
    if len(parts) != 3 or n_bytes <= 0 or seed < 0:
        raise InputError(
            f"corpus.source: {source!r} is not 'synthetic:<seed>:<n_bytes>' with whole numbers, n_bytes > 0"
        )
    return Made(f"synthetic:{seed}", n_bytes, partial(synthetic_documents, seed, n_bytes))


def known(source: str) -> Made:
    """`powerlaw:<seed>:<n_bytes>` and its like."""
    from data.truth.schemes import true_text

    text = true_text(source)
    return Made(":".join(source.split(":")[:3]), text.n_bytes, text.documents, text.truth)
