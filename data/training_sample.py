"""The tokenizer of a corpus that is trained on the corpus itself: on a sample of its training text.

Held out are the documents with the smallest draws (data/splitting.py); the sample is those with the largest, so that it
is drawn evenly from all of the text and holds nothing that is held out.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

from arch.errors import InputError
from data.settings import CorpusSettings
from data.splitting import DRAWS, Progress, Reading
from data.tokenizer.ranks import RankTokenizer
from data.tokenizer.training import sample_bytes, train_tokenizer

MOST_BYTES_PER_TOKEN = 8  # of held-out text, before there is a tokenizer to count with


def trained(settings: CorpusSettings, progress: Progress | None, dropped: Collection[bytes] = ()) -> RankTokenizer:
    """The tokenizer `bpe:V` of `settings`, trained on its text. Raises InputError as train_tokenizer does."""
    texts = sample(settings, sample_bytes(settings.tokenizer), progress, dropped)
    if progress is not None:
        n_bytes = sum(len(text.encode()) for text in texts)
        progress(0, None, f"training {settings.tokenizer} on {n_bytes / 1e6:,.1f} MB of the training text")
    return train_tokenizer(settings.tokenizer, texts)


def sample(
    settings: CorpusSettings, most_bytes: int, progress: Progress | None = None, dropped: Collection[bytes] = ()
) -> list[str]:
    """Documents of the training text with at most `most_bytes` in all, by their draws; the last one is cut. Reads the
    text once and keeps no more of it than that. dropped: digests of documents to leave out."""
    reading, kept = Reading(settings, dropped), list[tuple[int, bytes]]()  # the smallest draw first
    held_out = 0 if settings.validation_fraction is None else int(settings.validation_fraction * DRAWS)
    size = total = 0
    for batch in reading.batches():
        for document in batch:
            total += document.n_bytes
            if document.draw < held_out or (size >= most_bytes and document.draw < kept[0][0]):
                continue
            heapq.heappush(kept, (document.draw, document.text.encode()))
            size += document.n_bytes
            while size - len(kept[0][1]) >= most_bytes:
                size -= len(heapq.heappop(kept)[1])
        if progress is not None:
            progress(reading.read_bytes, None, f"{reading.n_documents:,} documents looked at to train the tokenizer")
    if settings.validation_tokens is not None:  # at most so many bytes are held out, half of a small text
        most_bytes = min(most_bytes, total - min(MOST_BYTES_PER_TOKEN * settings.validation_tokens, total // 2))
    texts, left = list[str](), most_bytes
    for draw, content in sorted(kept, reverse=True):
        if left > 0 and draw > reading.lowest:  # one document at least is held out
            texts.append(content[:left].decode("utf-8", errors="ignore"))
            left -= len(content)
    if not texts:
        raise InputError("corpus.source: fewer than two documents of usable text: none is left to train a tokenizer on")
    return texts
