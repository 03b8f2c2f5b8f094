"""Text that is made, not found: the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError

from .documents import Document, ReadOptions


@dataclass(frozen=True)
class Synthetic:
    """Seeded text of `n_bytes` bytes (data/synthetic.py)."""

    seed: int
    n_bytes: int

    def sizes(self) -> list[int]:
        return [self.n_bytes]

    def documents(self, how: ReadOptions) -> Iterator[Document]:
        from data.synthetic import synthetic_documents

        for i, text in enumerate(synthetic_documents(self.seed, self.n_bytes)):
            how.counts.read_bytes += len(text.encode())
            yield Document(f"synthetic:{self.seed}:{i}", text)

    def versions(self) -> dict[str, Any]:
        return {}

    def is_at_hand(self) -> bool:
        return True


def synthetic(source: str) -> Synthetic:
    """`synthetic:<seed>:<n_bytes>`."""
    parts = source.split(":")
    try:
        seed, n_bytes = int(parts[1]), int(parts[2])
    except (IndexError, ValueError):
        seed, n_bytes = 0, 0
    if len(parts) != 3 or n_bytes <= 0 or seed < 0:
        raise InputError(
            f"corpus.source: {source!r} is not 'synthetic:<seed>:<n_bytes>' with whole numbers, n_bytes > 0"
        )
    return Synthetic(seed, n_bytes)
