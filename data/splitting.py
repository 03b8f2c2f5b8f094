"""A source's documents for a corpus: each once, with the draw that decides whether it is held out.

A document's draw is a number in [0, 2^64) made of seed, place in the source and text; those below a threshold are held
out. So a split depends on nothing that was read before, and text can be streamed. Memory holds a few megabytes of text
at a time, and 16 bytes of hash a document, to drop duplicates: of the sources of a mixture the first one that has a
document keeps it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from arch.errors import InputError
from data.clean.near import find_near_duplicates
from data.clean.steps import Cleaned, similarity_of
from data.files import hash_of
from data.settings import CorpusSettings, Stream
from data.source_record import FileTexts
from data.sources.documents import Counts, Document
from data.sources.reading import read_documents, source_bytes, stored_bytes
from data.tokenizer import Tokenizer

BATCH_BYTES = 1 << 19  # text tokenised at a time
DRAWS = 1 << 64
EXPANSION = 4  # bytes of text a compressed one: 2.6 to 4.0 measured with gzip, xz, zstd and bzip2 on English text
Progress = Callable[[int, int | None, str], None]  # bytes read, bytes to read (None: unknown), message


def silent(done: int, total: int | None, message: str) -> None:
    """A Progress that nobody is shown."""


class Drawn(NamedTuple):
    """A document: its text, its length in UTF-8, and its draw."""

    text: str
    n_bytes: int
    draw: int


class Batch(NamedTuple):
    """Documents of one stream of the settings."""

    stream: int
    documents: list[Drawn]


@dataclass
class Seen:
    """What was read of a stream so far: documents, those that are others word for word, and the smallest and largest
    draw."""

    documents: int = 0
    duplicates: int = 0
    lowest: int = DRAWS
    highest: int = -1


class Reading:
    """One pass over the text of `settings`: `batches()` yields it, the rest describes what was read so far.
    dropped: digests of documents to leave out."""

    def __init__(self, settings: CorpusSettings, dropped: Collection[bytes] = ()) -> None:
        self._settings, self.streams, self._dropped = settings, settings.streams, dropped
        stored = [stored_bytes(stream.source) for stream in self.streams]
        self._stored = None if None in stored else sum(n_bytes or 0 for n_bytes in stored)
        self._counts = Counts()
        self._text = [hashlib.sha256() for _ in self.streams]
        self.seen = [Seen() for _ in self.streams]
        self.n_cleaned = 0
        self.files = FileTexts()

    @property
    def n_documents(self) -> int:
        return sum(seen.documents for seen in self.seen)

    def likely_bytes(self) -> int | None:
        """Bytes of all the text, estimated from the share of the files that was read; None where nothing was."""
        if (stored := self._stored) is None or not self._counts.stored_bytes:
            return None
        share = min(1.0, self._counts.stored_bytes / max(1, stored))
        most = [stream.max_bytes for stream in self.streams]
        likely = round(self.read_bytes / share)
        return likely if None in most else min(likely, sum(n_bytes or 0 for n_bytes in most))

    @property
    def read_bytes(self) -> int:
        """Uncompressed bytes of the sources that were read."""
        return self._counts.read_bytes

    @property
    def counts(self) -> dict[str, int]:
        """Documents taken, and what was left out."""
        skipped = {
            name: value for name, value in asdict(self._counts).items() if name not in ("read_bytes", "stored_bytes")
        }
        cleaned = {"near_duplicates": self.n_cleaned} if self._settings.clean else {}
        duplicates = sum(seen.duplicates for seen in self.seen)
        return {"documents": self.n_documents, "duplicates": duplicates, **cleaned, **skipped}

    @property
    def text_hash(self) -> str:
        """SHA-256 over the documents taken, in order: equal for equal text, wherever it was read from."""
        digests = [text.hexdigest() for text in self._text]
        return digests[0] if len(digests) == 1 else hash_of(digests)

    def batches(self) -> Iterator[Batch]:
        """The documents, a few megabytes at a time; duplicates are left out. Raises InputError as read_documents."""
        seed, known = self._settings.seed, set[bytes]()
        for number, (stream, seen) in enumerate(zip(self.streams, self.seen, strict=True)):
            for batch in _batches(_documents(stream, self._counts)):
                kept = []
                for doc_id, text in batch:
                    content = text.encode("utf-8")
                    digest = hashlib.blake2b(content, digest_size=16).digest()
                    self.files.add(stream.name, doc_id, digest)
                    if digest in known:
                        seen.duplicates += 1
                        continue
                    known.add(digest)
                    if digest in self._dropped:
                        self.n_cleaned += 1
                        continue
                    self._text[number].update(digest)
                    drawn = hashlib.blake2b(f"{seed}\0{doc_id}\0".encode() + digest, digest_size=8).digest()
                    kept.append(Drawn(text, len(content), int.from_bytes(drawn, "little")))
                    seen.lowest = min(seen.lowest, kept[-1].draw)
                    seen.highest = max(seen.highest, kept[-1].draw)
                seen.documents += len(kept)
                yield Batch(number, kept)


def read_again(settings: CorpusSettings, temporary: Path) -> Reading:
    """The text of `settings`, read to its end and tokenised not at all; `temporary` as for `cleaned_of`."""
    reading = Reading(settings, cleaned_of(settings, temporary).dropped)
    for _ in reading.batches():
        pass
    return reading


def cleaned_of(settings: CorpusSettings, temporary: Path, progress: Progress = silent) -> Cleaned:
    """What the steps of `corpus.clean` leave out, of all streams together; `temporary` is a folder for files of no
    name."""
    if not settings.clean:
        return Cleaned()
    (step,) = settings.clean  # there is one kind of them, and none is named twice
    counts, total = Counts(), bytes_to_read(settings)

    def texts() -> Iterator[Document]:
        counts.read_bytes = 0
        for stream in settings.streams:
            for doc_id, text in _documents(stream, counts):
                yield Document(f"{stream.name}/{doc_id}" if stream.name else doc_id, text)

    def report(message: str) -> None:
        progress(counts.read_bytes if total is None else min(counts.read_bytes, total), total, message)

    return find_near_duplicates(texts, similarity_of(step), temporary, report)


def bytes_to_read(settings: CorpusSettings, guess: bool = False) -> int | None:
    """Bytes of the text that one reading passes through; None where a compressed file hides them, unless they may be
    guessed by its size, and where that is unknown too."""
    total = 0
    for stream in settings.streams:
        n_bytes = source_bytes(stream.source)
        if n_bytes is None and guess and (stored := stored_bytes(stream.source)) is not None:
            n_bytes = EXPANSION * stored
        if n_bytes is None:
            return None
        total += n_bytes if stream.max_bytes is None else min(n_bytes, stream.max_bytes)
    return total


def thresholds(settings: CorpusSettings, tokenizer: Tokenizer, dropped: Collection[bytes] = ()) -> list[int]:
    """Of each stream the draw from which on documents are for training.

    A number of tokens is held out by those with the smallest draws: the text is read once to find them, and of it only
    the candidates are tokenised. Raises InputError where a stream has fewer tokens.
    """
    streams = settings.streams
    if settings.validation_tokens is None:
        assert settings.validation_fraction is not None
        return [int(settings.validation_fraction * DRAWS)] * len(streams)
    smallest = [Smallest(stream.validation_tokens or 0) for stream in streams]
    for number, documents in Reading(settings, dropped).batches():
        for document in documents:
            if document.draw < smallest[number].bound:
                smallest[number].add(document.draw, len(tokenizer.encode_array(document.text)) + 1)
    for stream, held_out in zip(streams, smallest, strict=True):
        if 0 < held_out.total < held_out.wanted:  # without any text another message is clearer
            of = f"text of source {stream.name}" if stream.name else "text"
            raise InputError(
                f"corpus.validation_tokens: {held_out.wanted:,} are more than the {held_out.total:,} of the whole "
                f"{of}; hold out fewer"
            )
    return [held_out.bound + 1 for held_out in smallest]


class Smallest:
    """The documents with the smallest draws, as few as have `wanted` tokens."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.total, self.bound = wanted, 0, DRAWS
        self._held: list[tuple[int, int]] = []  # (-draw, tokens): the largest draw first

    def add(self, draw: int, n_tokens: int) -> None:
        """A document whose draw is below `bound`."""
        heapq.heappush(self._held, (-draw, n_tokens))
        self.total += n_tokens
        while self.total - self._held[0][1] >= self.wanted:
            self.total -= heapq.heappop(self._held)[1]
        if self.total >= self.wanted:
            self.bound = -self._held[0][0]

    def last_of(self, n_tokens: int) -> int:
        """The largest draw among the smallest ones that have `n_tokens`, at most `wanted`; -1 of none."""
        last, total = -1, 0
        for draw, size in sorted((-negative, size) for negative, size in self._held):
            if total >= n_tokens:
                break
            last, total = draw, total + size
        return last


def _documents(stream: Stream, counts: Counts) -> Iterator[Document]:
    return _first_bytes(read_documents(stream.source, stream.text_key, counts), stream.max_bytes)


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
