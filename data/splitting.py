"""A source's documents for a corpus: each once, with the draw that decides whether it is held out.

A document's draw is a number in [0, 2^64) made of seed, place in the source and text; those below a threshold are held
out. So a split depends on nothing that was read before, and text can be streamed. Memory holds a few megabytes of text
at a time, and 16 bytes of hash a document, to drop duplicates.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from arch.errors import InputError
from data.clean.steps import Cleaned, clean
from data.settings import CorpusSettings
from data.sources import Counts, Document, read_documents, source_bytes
from data.tokenizer import Tokenizer

BATCH_BYTES = 4 * 1024 * 1024  # text tokenised at a time
DRAWS = 1 << 64
Progress = Callable[[int, int | None, str], None]  # bytes read, bytes to read (None: unknown), message


class Drawn(NamedTuple):
    """A document: its text, its length in UTF-8, and its draw."""

    text: str
    n_bytes: int
    draw: int


class Reading:
    """One pass over the text of `settings`: `batches()` yields it, the rest tells about what was read so far.
    dropped: digests of documents to leave out."""

    def __init__(self, settings: CorpusSettings, dropped: Collection[bytes] = ()) -> None:
        self._settings, self._dropped = settings, dropped
        self._counts = Counts()
        self._text = hashlib.sha256()
        self.n_documents = self.n_duplicates = self.n_cleaned = 0
        self.lowest, self.highest = DRAWS, -1  # draws

    @property
    def read_bytes(self) -> int:
        """Uncompressed bytes of the source that were read."""
        return self._counts.read_bytes

    @property
    def counts(self) -> dict[str, int]:
        """Documents taken, and what was left out."""
        skipped = {name: value for name, value in asdict(self._counts).items() if name != "read_bytes"}
        cleaned = {"near_duplicates": self.n_cleaned} if self._settings.clean else {}
        return {"documents": self.n_documents, "duplicates": self.n_duplicates, **cleaned, **skipped}

    @property
    def text_hash(self) -> str:
        """SHA-256 over the documents taken, in order: equal for equal text, wherever it was read from."""
        return self._text.hexdigest()

    def batches(self) -> Iterator[list[Drawn]]:
        """The documents, a few megabytes at a time; duplicates are left out. Raises InputError as read_documents."""
        settings, seen = self._settings, set[bytes]()
        for batch in _batches(_documents(settings, self._counts)):
            kept = []
            for doc_id, text in batch:
                content = text.encode("utf-8")
                digest = hashlib.blake2b(content, digest_size=16).digest()
                if digest in seen:
                    self.n_duplicates += 1
                    continue
                seen.add(digest)
                if digest in self._dropped:
                    self.n_cleaned += 1
                    continue
                self._text.update(digest)
                drawn = hashlib.blake2b(f"{settings.seed}\0{doc_id}\0".encode() + digest, digest_size=8).digest()
                kept.append(Drawn(text, len(content), int.from_bytes(drawn, "little")))
                self.lowest = min(self.lowest, kept[-1].draw)
                self.highest = max(self.highest, kept[-1].draw)
            self.n_documents += len(kept)
            yield kept


def text_hash(settings: CorpusSettings, temporary: Path) -> str:
    """The hash of the text of `settings`, tokenised not at all; `temporary` as for `cleaned_of`."""
    reading = Reading(settings, cleaned_of(settings, temporary).dropped)
    for _ in reading.batches():
        pass
    return reading.text_hash


def cleaned_of(settings: CorpusSettings, temporary: Path, progress: Progress | None = None) -> Cleaned:
    """What the steps of `corpus.clean` leave out; `temporary` is a folder for files of no name."""
    if not settings.clean:
        return Cleaned()
    counts, total = Counts(), source_bytes(settings.source)

    def texts() -> Iterator[Document]:
        counts.read_bytes = 0
        return _documents(settings, counts)

    def tell(message: str) -> None:
        if progress is not None:
            progress(counts.read_bytes if total is None else min(counts.read_bytes, total), total, message)

    return clean(settings.clean, texts, temporary, tell)


def threshold(settings: CorpusSettings, tokenizer: Tokenizer, dropped: Collection[bytes] = ()) -> int:
    """The draw from which on documents are for training.

    A number of tokens is held out by those with the smallest draws: the text is read once to find them, and of it only
    the candidates are tokenised. Raises InputError where the text has fewer tokens.
    """
    if settings.validation_tokens is None:
        assert settings.validation_fraction is not None
        return int(settings.validation_fraction * DRAWS)
    wanted, total, bound = settings.validation_tokens, 0, DRAWS
    held: list[tuple[int, int]] = []  # (-draw, tokens): the largest draw first
    for batch in Reading(settings, dropped).batches():
        for document in batch:
            if document.draw >= bound:
                continue
            n_tokens = len(tokenizer.encode_array(document.text)) + 1
            heapq.heappush(held, (-document.draw, n_tokens))
            total += n_tokens
            while total - held[0][1] >= wanted:
                total -= heapq.heappop(held)[1]
            if total >= wanted:
                bound = -held[0][0]
    if total < wanted:
        raise InputError(
            f"corpus.validation_tokens: {wanted:,} are more than the {total:,} of the whole text; ask for fewer"
        )
    return bound + 1


def _documents(settings: CorpusSettings, counts: Counts) -> Iterator[Document]:
    return _first_bytes(read_documents(settings.source, settings.text_key, counts), settings.max_bytes)


def _first_bytes(documents: Iterator[Document], max_bytes: int | None) -> Iterator[Document]:
    """Documents up to `max_bytes` of UTF-8; the last one is cut between characters."""
    if max_bytes is None:
        yield from documents
        return
    for document in documents:
        content = document.text.encode("utf-8")[:max_bytes]
        max_bytes -= len(content)
        text = content.decode("utf-8", errors="ignore")
        if text.strip():
            yield Document(document.doc_id, text)
        if max_bytes <= 0:
            return


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
