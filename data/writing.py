"""Documents tokenised into the files of their splits: in parallel, and resumed where a killed process stopped.

Text is read again from its beginning, which is quick beside tokenising; what was tokenised is not done again, as long
as the text is the same up to there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch.amounts import counted
from data.encoding import Block, encode_block, in_order
from data.resumable import Unfinished
from data.shards import stem_of
from data.split_writer import SplitWriter
from data.splitting import Drawn, Progress, Reading
from data.tokenizer import Tokenizer

SPLITS = ("train", "validation")
NOTED_BYTES = 64 << 20  # of text between two notes of how far it came
Written = dict[str, dict[str, Any]]  # of a stream: {split: its documents, bytes, tokens, dtype, shards}


class Changed(Exception):
    """What an earlier process left is not the beginning of this work."""


@dataclass(frozen=True)
class Item:
    """Documents of one stream, and what was read up to them: documents, the hash of their text, bytes of the source."""

    stream: int
    documents: list[Drawn]
    n_read: int
    text_hash: str
    read_bytes: int
    likely_bytes: int | None  # of the whole text

    @property
    def n_bytes(self) -> int:
        return sum(document.n_bytes for document in self.documents)


class StreamWriters:
    """The files of both splits, of one stream after the other. places: the folder of each split."""

    def __init__(
        self,
        places: dict[str, Path],
        names: list[str],
        tokenizer: Tokenizer,
        shard_tokens: int,
        state: dict[str, Any] | None,
    ) -> None:
        self._places, self._names, self._dtype, self._shard_tokens = places, names, tokenizer.dtype, shard_tokens
        self.written: list[Written] = [] if state is None else list(state["written"])
        self._open: dict[str, SplitWriter] = {}
        if state is not None and state["open"]:
            self._begin(state["open"])

    def _begin(self, states: dict[str, Any] | None = None) -> None:
        stem = self._names[len(self.written)]
        for split, place in self._places.items():
            state = states[split] if states else None
            writer = SplitWriter(place, stem_of(split, stem), self._dtype, self._shard_tokens, state)
            self._open[split] = writer

    def _end(self) -> None:
        self.written.append({split: writer.close() for split, writer in self._open.items()})
        self._open = {}

    def _go_to(self, stream: int) -> None:
        """Close the streams before this one, also those that had no text, and open its files."""
        while len(self.written) < stream or not self._open:
            if self._open:
                self._end()
            self._begin()

    def write(self, stream: int, blocks: dict[str, Block]) -> None:
        self._go_to(stream)
        for split, block in blocks.items():
            self._open[split].append(block)

    @property
    def n_tokens(self) -> int:
        done = sum(split["tokens"] for splits in self.written for split in splits.values())
        return int(done + sum(writer.n_tokens for writer in self._open.values()))

    def save(self) -> dict[str, Any]:
        """Bring all to disk; what another StreamWriters needs to continue from here."""
        return {"written": self.written, "open": {split: writer.save() for split, writer in self._open.items()}}

    def close(self) -> list[Written]:
        self._go_to(len(self._names) - 1)
        self._end()
        return self.written

    def abandon(self) -> None:
        for writer in self._open.values():
            writer.abandon()


def write_streams(
    reading: Callable[[], Reading],
    tokenizer: Tokenizer,
    work: Unfinished,
    shard_tokens: int,
    below: list[int],
    key: dict[str, Any],
    progress: Progress,
    total: int | None,
) -> tuple[Reading, list[Written]]:
    """Both splits of all streams, training text in work.files and held-out text in work.drawn, where documents with a
    draw below a stream's `below` are held out. key: of all that decides the tokens beside the text; total: bytes to
    read, where that is known."""
    made = tokenizer, work, shard_tokens, below, progress, total
    try:
        return _write_from(work.begin(key), reading(), *made)
    except Changed:  # which a beginning without a state is never
        work.begin_anew()
    return _write_from(None, reading(), *made)


def _write_from(
    state: dict[str, Any] | None,
    reading: Reading,
    tokenizer: Tokenizer,
    work: Unfinished,
    shard_tokens: int,
    below: list[int],
    progress: Progress,
    total: int | None,
) -> tuple[Reading, list[Written]]:
    def encode(item: Item) -> dict[str, Block]:
        blocks = {}
        for split in SPLITS:
            mine = [
                document
                for document in item.documents
                if (document.draw < below[item.stream]) == (split == "validation")
            ]
            texts = [document.text for document in mine]
            blocks[split] = encode_block(tokenizer, texts, sum(document.n_bytes for document in mine))
        return blocks

    places = {"train": work.files, "validation": work.drawn}
    names = [stream.name for stream in reading.streams]
    try:
        writers = StreamWriters(places, names, tokenizer, shard_tokens, state and state["writers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if state is None:
            raise
        raise Changed from error
    pace, since = Pace(progress, total), 0
    try:
        for item, blocks in in_order(_items(reading, state, pace), encode, lambda item: item.n_bytes):
            writers.write(item.stream, blocks)
            since += item.n_bytes
            if since >= NOTED_BYTES:
                work.note({"documents": item.n_read, "text": item.text_hash, "writers": writers.save()})
                since = 0
            pace.report(item, writers.n_tokens)
        return reading, writers.close()
    finally:
        writers.abandon()


def _items(reading: Reading, state: dict[str, Any] | None, pace: Pace) -> Iterator[Item]:
    """What is still to be tokenised. Raises Changed where the text before it is not the one that `state` describes."""
    n_done = 0 if state is None else state["documents"]
    for stream, documents in reading.batches():
        done = reading.n_documents, reading.text_hash, reading.read_bytes, reading.likely_bytes()
        item = Item(stream, documents, *done)
        if item.n_read > n_done:
            if item.n_read - len(documents) < n_done:  # batches of another size
                raise Changed
            yield item
        elif state is not None and item.n_read == n_done and item.text_hash != state["text"]:
            raise Changed
        else:
            pace.skip(item)
    if reading.n_documents < n_done:
        raise Changed


class Pace:
    """Tells how far the work is, how fast it goes, and how long it will take."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._progress, self._total = progress, total
        self._began, self._first = time.monotonic(), 0

    def skip(self, item: Item) -> None:
        """What an earlier process did was read again."""
        self._began, self._first = time.monotonic(), item.read_bytes
        self._say(item, f"{counted(item.n_read, 'document')} tokenised before a stop")

    def report(self, item: Item, tokens: int) -> None:
        rate = (item.read_bytes - self._first) / max(time.monotonic() - self._began, 1e-9)
        message = f"{counted(item.n_read, 'document')}, {tokens:,} tokens, {rate / 1e6:.1f} MB/s"
        if (total := self._total_of(item)) is not None and rate > 0:
            message += f", about {_duration(max(0, total - item.read_bytes) / rate)} left"
        self._say(item, message)

    def _say(self, item: Item, message: str) -> None:
        total = self._total_of(item)
        self._progress(item.read_bytes if total is None else min(item.read_bytes, total), total, message)

    def _total_of(self, item: Item) -> int | None:
        return item.likely_bytes if self._total is None else self._total


def _duration(seconds: float) -> str:
    """1 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
