"""The tokenizer of a corpus that is trained on the corpus itself: on a sample of its training text.

Held out are the documents with the smallest draws (data/splitting.py); the sample is those with the largest, so that it
is drawn evenly from all of the text and holds nothing that is held out. How many documents `validation_tokens` takes is
known only with a tokenizer: before, as many as hold eight bytes for each of them, whole, though of a small text no more
than half.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from arch.amounts import counted
from arch.errors import InputError
from data.settings import CorpusSettings
from data.splitting import DRAWS, Drawn, Progress, Reading, Smallest, silent
from data.tokenizer.ranks import RankTokenizer
from data.tokenizer.training import sample_bytes, train_tokenizer

MOST_BYTES_PER_TOKEN = 8  # of held-out text, before there is a tokenizer to count with


def trained(settings: CorpusSettings, progress: Progress = silent, dropped: Collection[bytes] = ()) -> RankTokenizer:
    """The tokenizer `bpe:V` of `settings`, trained on its text. Raises InputError as train_tokenizer does."""
    texts = sample(settings, sample_bytes(settings.tokenizer), progress, dropped)
    n_bytes = sum(len(text.encode()) for text in texts)
    progress(0, None, f"training {settings.tokenizer} on {n_bytes / 1e6:,.1f} MB of the training text")
    return train_tokenizer(settings.tokenizer, texts)


def sample(
    settings: CorpusSettings, most_bytes: int, progress: Progress = silent, dropped: Collection[bytes] = ()
) -> list[str]:
    """Documents of the training text with at most `most_bytes` in all, of a mixture's sources in proportion to their
    weights, by their draws; the last one of each is cut. Reads the text once and keeps no more of it than that.
    dropped: digests of documents to leave out."""
    reading = Reading(settings, dropped)
    held_out = 0 if settings.validation_fraction is None else int(settings.validation_fraction * DRAWS)
    weight = sum(stream.weight for stream in reading.streams)
    kept = [Largest(int(most_bytes * stream.weight / weight)) for stream in reading.streams]
    lowest = [Smallest(MOST_BYTES_PER_TOKEN * (stream.validation_tokens or 0)) for stream in reading.streams]
    for number, documents in reading.batches():
        for document in documents:
            kept[number].add(document, held_out)
            if lowest[number].wanted and document.draw < lowest[number].bound:
                lowest[number].add(document.draw, document.n_bytes)
        message = f"{counted(reading.n_documents, 'document')} looked at to train the tokenizer"
        progress(reading.read_bytes, None, message)
    texts = list[str]()
    for seen, largest, smallest in zip(reading.seen, kept, lowest, strict=True):
        held = smallest.last_of(min(smallest.wanted, largest.total // 2))
        texts += largest.texts(max(seen.lowest, min(held, seen.highest - 1)))  # one at least is trained on
    if not texts:
        raise InputError("corpus.source: fewer than two documents of usable text: none is left to train a tokenizer on")
    return texts


class Largest:
    """The documents of a stream with the largest draws, as few as have `most_bytes`; `total`: bytes of all."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.total, self._size = most_bytes, 0, 0
        self._kept: list[tuple[int, bytes]] = []  # the smallest draw first

    def add(self, document: Drawn, held_out: int) -> None:
        """held_out: documents with a smaller draw are no training text."""
        self.total += document.n_bytes
        if document.draw < held_out or (self._size >= self.most_bytes and document.draw < self._kept[0][0]):
            return
        heapq.heappush(self._kept, (document.draw, document.text.encode()))
        self._size += document.n_bytes
        while self._size - len(self._kept[0][1]) >= self.most_bytes:
            self._size -= len(heapq.heappop(self._kept)[1])

    def texts(self, lowest: int) -> Iterator[str]:
        """Of at most `most_bytes`, of the documents with draws above `lowest`."""
        left = self.most_bytes
        for draw, content in sorted(self._kept, reverse=True):
            if left > 0 and draw > lowest:
                yield content[:left].decode("utf-8", errors="ignore")
                left -= len(content)
