"""The two splits of a corpus as files: documents streamed to where their draw puts them, what both hold cut out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError
from data.overlap import remaining, runs, shared_tokens
from data.settings import CorpusSettings
from data.shards import SplitWriter, open_index, open_split
from data.sources import source_bytes
from data.splitting import Progress, Reading, threshold
from data.tokenizer import Tokenizer

SPLITS = ("train", "validation")


def write_splits(
    settings: CorpusSettings,
    tokenizer: Tokenizer,
    temporary: Path,
    shard_tokens: int,
    progress: Progress | None = None,
    dropped: Collection[bytes] = (),
) -> tuple[Reading, dict[str, Any]]:
    """Stream every document into its split, at least one into each; what was read, and the splits of the manifest.
    dropped: digests of documents to leave out."""
    below = threshold(settings, tokenizer, dropped)
    reading, splits = _write_once(settings, tokenizer, temporary, shard_tokens, below, progress, dropped)
    if reading.n_documents < 2 or all(splits[split]["documents"] for split in SPLITS):
        return reading, splits
    if settings.validation_tokens is not None:
        raise InputError(
            f"corpus.validation_tokens: {settings.validation_tokens:,} take every document, none is left to train on; "
            f"ask for fewer"
        )
    # a fraction that drew none, or all: the document with the smallest draw is held out, or that with the largest kept
    below = reading.highest if splits["validation"]["documents"] else reading.lowest + 1
    return _write_once(settings, tokenizer, temporary, shard_tokens, below, progress, dropped)


def _write_once(
    settings: CorpusSettings,
    tokenizer: Tokenizer,
    temporary: Path,
    shard_tokens: int,
    below: int,
    progress: Progress | None,
    dropped: Collection[bytes],
) -> tuple[Reading, dict[str, Any]]:
    """The splits where documents with a draw below `below` are held out; replaces what an earlier try wrote."""
    for path in temporary.iterdir():
        path.unlink()
    reading, total = Reading(settings, dropped), source_bytes(settings.source)
    if total is not None and settings.max_bytes is not None:
        total = min(total, settings.max_bytes)
    writers = {split: SplitWriter(temporary, split, tokenizer.dtype, shard_tokens) for split in SPLITS}
    try:
        for batch in reading.batches():
            encoded = tokenizer.encode_batch([document.text for document in batch])
            for document, ids in zip(batch, encoded, strict=True):
                split = "validation" if document.draw < below else "train"
                writers[split].append(ids, tokenizer.eot_id, document.n_bytes)
            if progress is not None:
                done = reading.read_bytes if total is None else min(reading.read_bytes, total)
                tokens = sum(writer.n_tokens for writer in writers.values())
                progress(done, total, f"{reading.n_documents:,} documents, {tokens:,} tokens")
        return reading, {split: writer.close() for split, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.abandon()


def cut_shared(
    temporary: Path,
    tokenizer: Tokenizer,
    splits: dict[str, Any],
    shard_tokens: int,
    progress: Callable[[int], None] | None,
) -> dict[str, int]:
    """Cut from the held-out split what the training split holds too, in place, and correct its entry of `splits`.

    Returns what was cut: {"passage_tokens": how long a passage is, "passages", "documents" that held them, "tokens",
    those of pieces too short to be kept included}. `progress` is called with the training tokens compared.
    """
    passage = tokenizer.passage_tokens
    train, held_out = (open_split(temporary, splits[split]) for split in SPLITS)
    tokens, starts = np.asarray(held_out), open_index(temporary, "validation")
    shared = shared_tokens(train, tokens, tokenizer.eot_id, passage, progress)
    found = {"passage_tokens": passage, "passages": 0, "documents": 0, "tokens": 0}
    if not shared.any():
        return found
    folder = temporary / "cut"
    folder.mkdir()
    writer = SplitWriter(folder, "validation", tokenizer.dtype, shard_tokens)
    try:
        for piece in remaining(shared, starts, passage):
            ids = tokens[piece.start : piece.stop]
            writer.append(ids, tokenizer.eot_id, int(tokenizer.n_bytes[ids].sum()))
        before, splits["validation"] = splits["validation"], writer.close()
    finally:
        writer.abandon()
    touched = np.add.reduceat(shared, starts[:-1], dtype=np.int64) > 0
    text_tokens = [split["tokens"] - split["documents"] for split in (before, splits["validation"])]  # no end-of-text
    found |= {"passages": len(runs(shared)), "documents": int(touched.sum())}
    found["tokens"] = text_tokens[0] - text_tokens[1]
    for name in (*(shard["file"] for shard in before["shards"]), "validation.idx"):
        (temporary / name).unlink()
    for path in folder.iterdir():
        path.rename(temporary / path.name)
    folder.rmdir()
    return found
