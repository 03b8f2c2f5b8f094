"""The reference line of the report: a bigram model's loss on the very windows that the checkpoints are scored on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from data.files import read_json, write_json

from .windows import batches, window_starts

VERSION = 3
MAX_TRAIN_TOKENS = 100_000_000


def ensure_baseline(corpus_dir: Path, path: Path, context_length: int, validation_tokens: int) -> dict[str, Any]:
    """The baseline at `path`, computed where it is missing or belongs to another corpus or other windows."""
    from data.corpus import open_corpus

    corpus = open_corpus(corpus_dir)
    key = {
        "version": VERSION,
        "corpus_fingerprint": corpus.fingerprint,
        "context_length": context_length,
        "validation_tokens": validation_tokens,
    }
    try:
        stored = dict(read_json(path))
    except (OSError, ValueError):
        stored = {}
    if key.items() <= stored.items():
        return stored
    from data.bigram import bigram_loss

    starts = window_starts(len(corpus.validation), context_length, validation_tokens)
    (held_out,) = batches(corpus.validation, starts, context_length, len(starts))
    loss = bigram_loss(corpus.train, held_out, corpus.tokenizer.vocab_size, MAX_TRAIN_TOKENS)
    n_bytes = int(corpus.tokenizer.n_bytes[held_out[:, 1:]].sum())
    result = key | {
        "model": "bigram",
        "loss": loss,
        "bits_per_byte": loss / math.log(2) * held_out[:, 1:].size / n_bytes,
        "train_tokens": min(len(corpus.train), MAX_TRAIN_TOKENS),
        "n_tokens_scored": held_out[:, 1:].size,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result, kind="eval")
    return result
