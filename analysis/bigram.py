"""A bigram model counted on the training split gives a study a reference loss, and the difficulty of each batch.

The reference is its loss on the very windows that the checkpoints are scored on. The difficulty of a training batch is
its loss on that batch, less its mean over the training split. A run's loss at a step is noisy because a step sees a few
windows of text, and some text is harder. A bigram model can read the same batches, which are a pure function of
(seed, step), and its mean over the split is known exactly. Subtracting its deviation (a control variate with
coefficient 1, fixed beforehand) keeps each curve's expectation and removes the noise that any model would see: 61 to
78% of the variance in the quickstart.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from arch.errors import InputError
from data.bigram import Bigram, bigram_loss, fit_bigram
from data.corpus import TEXT_LEFT_OUT, open_corpus
from data.files import read_json, write_json
from data.loader import Loader
from data.windows import batches, window_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from data.corpus import Corpus
    from scaling.study.run import RunSpec

VERSION = 3  # of the stored reference loss
MAX_TRAIN_TOKENS = 100_000_000  # that the model is counted on
STEPS_AT_ONCE = 64
DIFFICULTY = "difficulty"  # the folder of difficulty_file, below a study's results
Kind = tuple[int, int, int, Fraction]


def add_difficulty(
    curves: pd.DataFrame, runs: Sequence[RunSpec], corpus: Corpus, folder: Path | None = None
) -> pd.DataFrame:
    """`curves` with a column `difficulty`, nats a token, of the batch of each row's step; `folder`: as of
    difficulties."""
    found = difficulties(runs, corpus, folder)
    column = np.full(len(curves), np.nan)
    for run in runs:
        mine = (curves["run_id"] == run.run_id).to_numpy()
        column[mine] = found[kind_of(run)][curves.loc[mine, "step"].to_numpy() - 1]
    return curves.assign(difficulty=column)


def difficulties(runs: Sequence[RunSpec], corpus: Corpus, folder: Path | None = None) -> dict[Kind, np.ndarray]:
    """The difficulty of every batch of the longest run of each kind; of a corpus whose text was left out by a bundle
    those that the bundle brought, which lie in `folder`."""
    if corpus.is_left_out:
        return {kind_of(run): _stored(run, corpus, folder) for run in runs}
    model = fit_bigram(corpus.train, corpus.tokenizer.vocab_size, MAX_TRAIN_TOKENS, corpus.parts("train"))
    found: dict[Kind, np.ndarray] = {}
    for run in sorted(runs, key=lambda run: -run.n_steps):
        if kind_of(run) not in found:  # the longest run of a kind comes first and serves the others
            rows = run.training.batch_tokens // run.context_length
            shape = (run.context_length, rows, run.seed, run.corpus.epochs)
            loader = Loader(corpus.train, *shape, corpus.parts("train"), run.text_share)
            found[kind_of(run)] = batch_difficulty(model, loader, run.n_steps)
    return found


def kind_of(run: RunSpec) -> Kind:
    """Of runs that read the same batches, the longer ones more of them."""
    return run.seed, run.training.batch_tokens // run.context_length, run.context_length, run.text_share


def difficulty_file(kind: Kind, corpus: Corpus, nats: np.ndarray) -> tuple[str, bytes]:
    """The name and content of the file that keeps difficulties where the text is left out; floats as they are."""
    content = {"version": VERSION, "corpus_fingerprint": corpus.fingerprint, "kind": _told(kind), "nats": nats.tolist()}
    return f"{_told(kind)}-{len(nats)}.json", json.dumps(content).encode()


def _told(kind: Kind) -> str:
    seed, rows, length, share = kind
    return f"s{seed}-b{rows}-c{length}-t{share.numerator}.{share.denominator}"


def _stored(run: RunSpec, corpus: Corpus, folder: Path | None) -> np.ndarray:
    told = _told(kind_of(run))
    for path in sorted(folder.glob(f"{told}-*.json")) if folder else ():
        stored = read_json(path)
        key = (stored["version"], stored["corpus_fingerprint"])
        if key == (VERSION, corpus.fingerprint) and len(stored["nats"]) >= run.n_steps:
            return np.array(stored["nats"])
    raise InputError(
        f"{run.run_id}: fit.control: bigram needs the difficulty of its batches, which no bundle brought, and "
        f"{TEXT_LEFT_OUT}; `scaling data STUDY` makes it again from its source"
    )


def batch_difficulty(model: Bigram, loader: Loader, n_steps: int) -> np.ndarray:
    """[n_steps]: mean loss of `model` on each batch less its mean over the text it was counted on, nats a token."""
    means = np.empty(n_steps)
    for first in range(0, n_steps, STEPS_AT_ONCE):
        steps = range(first, min(first + STEPS_AT_ONCE, n_steps))
        rows = np.stack([loader.batch(step) for step in steps])
        means[first : steps.stop] = model.nats(rows[:, :, :-1], rows[:, :, 1:]).mean((1, 2))
    return means - model.mean_nats()


def ensure_baseline(corpus_dir: Path, path: Path, context_length: int, validation_tokens: int) -> dict[str, Any]:
    """The baseline at `path`, computed where it is missing or belongs to another corpus or other windows."""
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
    starts = window_starts(corpus.parts("validation"), context_length, validation_tokens)
    (held_out,) = batches(corpus.validation, starts, context_length, len(starts))
    vocab_size, parts = corpus.tokenizer.vocab_size, corpus.parts("train")
    loss = bigram_loss(corpus.train, held_out, vocab_size, MAX_TRAIN_TOKENS, parts)
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
