"""The two splits of a corpus as files: documents streamed to where their draw puts them, what both hold cut out.

Every stream of the settings (each source of a mixture, or all sources together) has the files of both splits.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError
from data.encoding import Block
from data.overlap import remaining, runs, shared_tokens
from data.resumable import Unfinished
from data.settings import CorpusSettings
from data.shards import open_index, open_split, stem_of
from data.split_writer import SplitWriter
from data.splitting import Progress, Reading, bytes_to_read, silent, thresholds
from data.tokenizer import Tokenizer
from data.writing import SPLITS, Written, write_streams


def write_splits(
    settings: CorpusSettings,
    tokenizer: Tokenizer,
    work: Unfinished,
    shard_tokens: int,
    progress: Progress = silent,
    dropped: Collection[bytes] = (),
) -> tuple[Reading, list[Written]]:
    """Stream every document into its split, at least one of each stream into each: training text into `work.files`,
    held-out text into `work.drawn`; what was read, and what of each stream was written. dropped: digests of documents
    to leave out."""

    def write(below: list[int]) -> tuple[Reading, list[Written]]:
        key = {"settings": settings.to_dict(), "tokenizer": tokenizer.identity, "shard_tokens": shard_tokens}
        key |= {"below": below, "dropped": hashlib.sha256(b"".join(sorted(dropped))).hexdigest()}
        made = (lambda: Reading(settings, dropped)), tokenizer, work, shard_tokens, below, json.loads(json.dumps(key))
        return write_streams(*made, progress, bytes_to_read(settings))

    below = thresholds(settings, tokenizer, dropped)
    reading, written = write(below)
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
    return write(again)


def together(written: list[Written]) -> Written:
    """Both splits over all streams, as the manifest has them."""
    both: Written = {}
    for split in SPLITS:
        parts = [splits[split] for splits in written]
        sums = {key: sum(part[key] for part in parts) for key in ("documents", "bytes", "tokens")}
        both[split] = sums | {
            "dtype": parts[0]["dtype"],
            "shards": [shard for part in parts for shard in part["shards"]],
        }
    return both


def cut_shared(
    work: Unfinished,
    tokenizer: Tokenizer,
    names: list[str],
    written: list[Written],
    shard_tokens: int,
    progress: Callable[[int], None],
) -> list[dict[str, int]]:
    """Put into `work.files` the held-out text of `work.drawn` without what the training split holds too, and correct
    its entries of `written`, whose streams are called `names`. What is drawn stays, so that this can be done again.

    Returns of each what was cut: {"passages", "documents" that held them, "tokens", those of pieces too short to be
    kept included}. `progress` is called with the training tokens compared.
    """
    whole, cuts, first = together(written), list[dict[str, int]](), 0
    train, tokens = open_split(work.files, whole["train"]), np.asarray(open_split(work.drawn, whole["validation"]))
    shared = shared_tokens(train, tokens, tokenizer.eot_id, tokenizer.passage_tokens, progress)
    for earlier in work.files.glob("validation*"):
        earlier.unlink()
    for name, splits in zip(names, written, strict=True):
        before, stem = splits["validation"], stem_of("validation", name)
        last = first + before["tokens"]
        cut, documents = shared[first:last], 0
        if not cut.any():
            for file in (*(shard["file"] for shard in before["shards"]), f"{stem}.idx"):
                _same(work.drawn / file, work.files / file)
        else:
            starts = open_index(work.drawn, [stem])[:-1]
            documents = int((np.add.reduceat(cut, starts, dtype=np.int64) > 0).sum())
            splits["validation"] = _without(cut, tokens[first:last], work, stem, tokenizer, shard_tokens)
        text_tokens = [
            entry["tokens"] - entry["documents"] for entry in (before, splits["validation"])
        ]  # no end-of-text
        cuts.append({"passages": len(runs(cut)), "documents": documents, "tokens": text_tokens[0] - text_tokens[1]})
        first = last
    return cuts


def _without(
    cut: np.ndarray, tokens: np.ndarray, work: Unfinished, stem: str, tokenizer: Tokenizer, shard_tokens: int
) -> dict[str, Any]:
    """Write the files of `stem` without the tokens that are `cut`; their entry."""
    writer = SplitWriter(work.files, stem, tokenizer.dtype, shard_tokens)
    try:
        for start, stop in remaining(cut, open_index(work.drawn, [stem]), tokenizer.passage_tokens):
            ids = np.append(tokens[start:stop], np.asarray(tokenizer.eot_id, tokens.dtype))
            writer.append(Block(ids, np.array([len(ids)]), int(tokenizer.n_bytes[ids].sum())))
        return writer.close()
    finally:
        writer.abandon()


def _same(there: Path, here: Path) -> None:
    """The same file in another folder, where the file system can without a copy."""
    try:
        os.link(there, here)
    except OSError:
        shutil.copyfile(there, here)
