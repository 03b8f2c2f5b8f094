"""A bigram model counted on the training split gives a study a reference loss, and the difficulty of each batch.

The reference is its loss on the very windows that the checkpoints are scored on. The difficulty of a training batch is
its loss on that batch, less its mean over the training split. A run's loss at a step is noisy because a step sees a few
windows of text, and some text is harder. A bigram model can read the same batches, which are a pure function of
(seed, step), and its mean over the split is known. Subtracting its deviation (a control variate with coefficient 1,
fixed beforehand) keeps each curve's expectation and removes the noise that any model would see: 61 to 78% of the
variance in the quickstart.

Of a longer split than it is counted on it knows what was counted and guesses the rest: by 0.5 nats a token worse where
half of 64 million tokens of English books in cl100k_base were counted. No other model sees that, so windows of either
stand beside the mean of their own kind, and the mean over the split has both.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from arch.errors import InputError
from data.bigram import Bigram, Stretches, bigram_loss, fit_bigram, tokens_counted
from data.corpus import TEXT_LEFT_OUT, open_corpus
from data.files import json_bytes, read_json, reading, write_json
from data.loader import Loader
from data.windows import batches, window_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from data.corpus import Corpus
    from data.shards import Tokens
    from scaling.study.run import RunSpec

MAX_TRAIN_TOKENS = 100_000_000  # that the model is counted on
OF_WHOLE_SPLITS, OF_STRETCHES = 3, 5  # versions of what is stored; 3 and 4 of longer splits: of their first tokens
REST_TOKENS = 1 << 25  # of what was not counted that are read for its mean: all, or so many spread evenly,
REST_STRETCH = 1 << 10  # in stretches,
STRETCHES_AT_ONCE = 1 << 10
STEPS_AT_ONCE = 64
DIFFICULTY = "difficulty"  # the folder of difficulty_file, below a study's results
Kind = tuple[int, int, int, Fraction]


def add_difficulty(
    curves: pd.DataFrame, runs: Sequence[RunSpec], corpus: Corpus, folder: Path | None = None
) -> pd.DataFrame:
    """`curves` with a column `difficulty`, nats a token, of the batch of each row's step; `folder`: as of
    difficulties."""
    by_kind = difficulties(runs, corpus, folder)
    column = np.full(len(curves), np.nan)
    for run in runs:
        mine = (curves["run_id"] == run.run_id).to_numpy()
        column[mine] = by_kind[kind_of(run)][curves.loc[mine, "step"].to_numpy() - 1]
    return curves.assign(difficulty=column)


def difficulties(runs: Sequence[RunSpec], corpus: Corpus, folder: Path | None = None) -> dict[Kind, np.ndarray]:
    """The difficulty of every batch of the longest run of each kind; of a corpus whose text was left out by a bundle
    those that the bundle brought, which lie in `folder`."""
    if corpus.is_left_out:
        return {kind_of(run): _stored(run, corpus, folder) for run in runs}
    model = fit_bigram(corpus.train, corpus.tokenizer.vocab_size, MAX_TRAIN_TOKENS, corpus.parts("train"))
    by_kind: dict[Kind, np.ndarray] = {}
    for run in sorted(runs, key=lambda run: -run.n_steps):
        if kind_of(run) not in by_kind:  # the longest run of a kind comes first and serves the others
            rows = run.training.batch_tokens // run.context_length
            shape = (run.context_length, rows, run.seed, run.corpus.epochs)
            loader = Loader(corpus.train, *shape, corpus.parts("train"), run.text_share)
            by_kind[kind_of(run)] = batch_difficulty(model, loader, run.n_steps)
    return by_kind


def kind_of(run: RunSpec) -> Kind:
    """Of runs that read the same batches, the longer ones more of them."""
    return run.seed, run.training.batch_tokens // run.context_length, run.context_length, run.text_share


def difficulty_file(kind: Kind, corpus: Corpus, nats: np.ndarray) -> tuple[str, bytes]:
    """The name and content of the file that keeps difficulties where the text is left out; floats as they are."""
    content = {"version": _version(corpus), "corpus_fingerprint": corpus.fingerprint}
    content |= {"kind": _name_of(kind), "nats": nats.tolist()}
    return f"{_name_of(kind)}-{len(nats)}.json", json_bytes(content)


def _version(corpus: Corpus) -> int:
    """Of a split that is counted whole that of before, which is the same."""
    parts = corpus.parts("train")
    whole = tokens_counted(parts, MAX_TRAIN_TOKENS) == [part.n_tokens for part in parts]
    return OF_WHOLE_SPLITS if whole else OF_STRETCHES


def _name_of(kind: Kind) -> str:
    seed, rows, length, share = kind
    return f"s{seed}-b{rows}-c{length}-t{share.numerator}.{share.denominator}"


def _stored(run: RunSpec, corpus: Corpus, folder: Path | None) -> np.ndarray:
    name = _name_of(kind_of(run))
    for path in sorted(folder.glob(f"{name}-*.json")) if folder else ():
        with reading(path, "take it from the bundle again"):
            stored = read_json(path)
            key = (stored["version"], stored["corpus_fingerprint"])
            if key == (_version(corpus), corpus.fingerprint) and len(stored["nats"]) >= run.n_steps:
                return np.array(stored["nats"])
    raise InputError(
        f"{run.run_id}: fit.control: bigram needs the difficulty of its batches, which no bundle brought, and "
        f"{TEXT_LEFT_OUT}; `scaling data STUDY` makes it again from its source"
    )


def batch_difficulty(model: Bigram, loader: Loader, n_steps: int) -> np.ndarray:
    """[n_steps]: mean loss of `model` on each batch less its mean over the split, nats a token; windows of what it was
    counted on, and those of the rest, are first moved to the mean of the part that they lie in."""
    means, mean, firsts, beside = np.empty(n_steps), *_levels(model, loader)
    for first in range(0, n_steps, STEPS_AT_ONCE):
        steps = range(first, min(first + STEPS_AT_ONCE, n_steps))
        rows = np.stack([loader.batch(step) for step in steps])
        kinds = np.searchsorted(firsts, np.stack([loader.starts(step) for step in steps]), side="right") - 1
        nats = model.nats(rows[:, :, :-1], rows[:, :, 1:])
        means[first : steps.stop] = nats.mean((1, 2)) - beside[kinds].mean(1)
    return means - mean


def _levels(model: Bigram, loader: Loader) -> tuple[float, np.ndarray, np.ndarray]:
    """Mean loss over the split, of a mixture in its proportions; where each stretch begins, of every part what was
    counted and the rest; and how far the mean of each is above that of its part."""
    whole, kinds = 0.0, list[tuple[int, float]]()
    for part, (share, counted, stretches) in zip(loader.parts, model.counted(), strict=True):
        ends = [first for first, _ in stretches[1:]] + [part.first + part.n_tokens]
        rest = [(last, end) for (_, last), end in zip(stretches, ends, strict=True) if end > last]
        n_counted, mean = sum(last - first - 1 for first, last in stretches), counted
        if rest:
            n_rest, of_rest = part.n_tokens - 1 - n_counted, _mean_of_rest(model, loader.tokens, rest)
            mean = (n_counted * counted + n_rest * of_rest) / (n_counted + n_rest)
            kinds += [(first, of_rest - mean) for first, _ in rest]
        kinds += [(first, counted - mean) for first, _ in stretches]
        whole += share * mean
    firsts, beside = zip(*sorted(kinds), strict=True)
    return whole, np.array(firsts), np.array(beside)


def _mean_of_rest(model: Bigram, tokens: Tokens, rest: Stretches) -> float:
    """Mean loss over stretches of about the same length, each token given the one before it."""
    size = min(end - first for first, end in rest)
    length = min(REST_STRETCH, size)
    n = max(1, min(size // length, REST_TOKENS // length // len(rest)))
    spread = (2 * np.arange(n) + 1) * size // (2 * n) - (length + 1) // 2 - 1  # their middles
    starts = np.concatenate([first + spread for first, _ in rest])
    blocks = batches(tokens, starts, length, STRETCHES_AT_ONCE)
    return float(np.concatenate([model.nats(rows[:, :-1], rows[:, 1:]).mean(1) for rows in blocks]).mean())


def ensure_baseline(corpus_dir: Path, path: Path, context_length: int, validation_tokens: int) -> dict[str, Any]:
    """The baseline at `path`, computed where it is missing or belongs to another corpus or other windows."""
    corpus = open_corpus(corpus_dir)
    key = {
        "version": _version(corpus),
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
