"""The two splits of a corpus as files: documents streamed to where their draw puts them, what both hold cut out.

Every stream of the settings (each source of a mixture, or all sources together) has the files of both splits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError
from data.overlap import remaining, runs, shared_tokens
from data.settings import CorpusSettings
from data.shards import SplitWriter, open_index, open_split, stem_of
from data.splitting import Progress, Reading, bytes_to_read, thresholds
from data.tokenizer import Tokenizer

SPLITS = ("train", "validation")
Written = dict[str, dict[str, Any]]  # of a stream: {split: its documents, bytes, tokens, dtype, shards}


def write_splits(
    settings: CorpusSettings,
    tokenizer: Tokenizer,
    temporary: Path,
    shard_tokens: int,
    progress: Progress | None = None,
    dropped: Collection[bytes] = (),
) -> tuple[Reading, list[Written]]:
    """Stream every document into its split, at least one of each stream into each; what was read, and what of each
    stream was written. dropped: digests of documents to leave out."""
    below = thresholds(settings, tokenizer, dropped)
    reading, written = _write_once(settings, tokenizer, temporary, shard_tokens, below, progress, dropped)
    again = list(below)
    for i, (stream, seen, splits) in enumerate(zip(reading.streams, reading.seen, written, strict=True)):
        if seen.documents < 2 or all(splits[split]["documents"] for split in SPLITS):
            continue
        if stream.validation_tokens is not None:
            of = f" of source {stream.name}" if stream.name else ""
            raise InputError(
                f"corpus.validation_tokens: {stream.validation_tokens:,} take every document{of}, none is left to "
                f"train on; ask for fewer"
            )
        # a fraction that drew none, or all: the document with the smallest draw is held out, or the largest one's kept
        again[i] = seen.highest if splits["validation"]["documents"] else seen.lowest + 1
    if again == below:
        return reading, written
    return _write_once(settings, tokenizer, temporary, shard_tokens, again, progress, dropped)


def _write_once(
    settings: CorpusSettings,
    tokenizer: Tokenizer,
    temporary: Path,
    shard_tokens: int,
    below: list[int],
    progress: Progress | None,
    dropped: Collection[bytes],
) -> tuple[Reading, list[Written]]:
    """The splits where documents with a draw below a stream's `below` are held out; replaces what an earlier try
    wrote."""
    for path in temporary.iterdir():
        path.unlink()
    reading, total = Reading(settings, dropped), bytes_to_read(settings)
    written: list[Written] = []
    writers: dict[str, SplitWriter] = {}
    n_tokens = 0
    try:
        for number, documents in reading.batches():
            while len(written) + bool(writers) <= number:
                _next_stream(reading, written, writers, temporary, tokenizer, shard_tokens)
            encoded = tokenizer.encode_batch([document.text for document in documents])
            for document, ids in zip(documents, encoded, strict=True):
                split = "validation" if document.draw < below[number] else "train"
                writers[split].append(ids, tokenizer.eot_id, document.n_bytes)
                n_tokens += len(ids) + 1
            if progress is not None:
                done = reading.read_bytes if total is None else min(reading.read_bytes, total)
                progress(done, total, f"{reading.n_documents:,} documents, {n_tokens:,} tokens")
        while len(written) < len(reading.streams):
            _next_stream(reading, written, writers, temporary, tokenizer, shard_tokens)
        return reading, written
    finally:
        for writer in writers.values():
            writer.abandon()


def _next_stream(
    reading: Reading,
    written: list[Written],
    writers: dict[str, SplitWriter],
    temporary: Path,
    tokenizer: Tokenizer,
    shard_tokens: int,
) -> None:
    """Close the files of the stream that is written, and open those of the next one, where there is one."""
    if writers:
        written.append({split: writer.close() for split, writer in writers.items()})
        writers.clear()
    if len(written) < len(reading.streams):
        name = reading.streams[len(written)].name
        for split in SPLITS:
            writers[split] = SplitWriter(temporary, stem_of(split, name), tokenizer.dtype, shard_tokens)


def together(written: list[Written]) -> Written:
    """Both splits over all streams, as the manifest has them."""
    found: Written = {}
    for split in SPLITS:
        parts = [splits[split] for splits in written]
        sums = {key: sum(part[key] for part in parts) for key in ("documents", "bytes", "tokens")}
        found[split] = sums | {"dtype": parts[0]["dtype"], "shards": [one for part in parts for one in part["shards"]]}
    return found


def cut_shared(
    temporary: Path,
    tokenizer: Tokenizer,
    names: list[str],
    written: list[Written],
    shard_tokens: int,
    progress: Callable[[int], None] | None,
) -> list[dict[str, int]]:
    """Cut from the held-out split what the training split holds too, in place, and correct its entries of `written`,
    whose streams are called `names`.

    Returns of each what was cut: {"passages", "documents" that held them, "tokens", those of pieces too short to be
    kept included}. `progress` is called with the training tokens compared.
    """
    whole, found, first = together(written), list[dict[str, int]](), 0
    train, tokens = open_split(temporary, whole["train"]), np.asarray(open_split(temporary, whole["validation"]))
    shared = shared_tokens(train, tokens, tokenizer.eot_id, tokenizer.passage_tokens, progress)
    for name, splits in zip(names, written, strict=True):
        before, stem = splits["validation"], stem_of("validation", name)
        last = first + before["tokens"]
        cut, documents = shared[first:last], 0
        if cut.any():
            starts = open_index(temporary, [stem])[:-1]
            documents = int((np.add.reduceat(cut, starts, dtype=np.int64) > 0).sum())
            splits["validation"] = _without(cut, tokens[first:last], temporary, stem, before, tokenizer, shard_tokens)
        text_tokens = [one["tokens"] - one["documents"] for one in (before, splits["validation"])]  # no end-of-text
        found.append({"passages": len(runs(cut)), "documents": documents, "tokens": text_tokens[0] - text_tokens[1]})
        first = last
    return found


def _without(
    cut: np.ndarray,
    tokens: np.ndarray,
    temporary: Path,
    stem: str,
    before: dict[str, Any],
    tokenizer: Tokenizer,
    shard_tokens: int,
) -> dict[str, Any]:
    """Write the files of `stem` again without the tokens that are `cut`; the entry that replaces `before`."""
    folder = temporary / "cut"
    folder.mkdir()
    writer = SplitWriter(folder, stem, tokenizer.dtype, shard_tokens)
    try:
        for piece in remaining(cut, open_index(temporary, [stem]), tokenizer.passage_tokens):
            ids = tokens[piece.start : piece.stop]
            writer.append(ids, tokenizer.eot_id, int(tokenizer.n_bytes[ids].sum()))
        after = writer.close()
    finally:
        writer.abandon()
    for name in (*(shard["file"] for shard in before["shards"]), f"{stem}.idx"):
        (temporary / name).unlink()
    for path in folder.iterdir():
        path.rename(temporary / path.name)
    folder.rmdir()
    return after
