"""A bigram model's loss: what a model reaches that sees one token back. Reports draw it as a reference line.

Interpolated absolute discounting (Ney, Essen & Kneser 1994), the same rule at both orders:

    p(w)     = (max(c(w) - D1, 0) + D1 * n * 1/V) / N              n distinct tokens, N tokens, V vocabulary
    p(w | h) = (max(c(h, w) - D2, 0) + D2 * n(h) * p(w)) / c(h)    n(h) distinct successors of h; p(w) where h is new

with D = n_1 / (n_1 + 2 n_2) from the number of events seen once and twice, kept within [0.1, 0.9].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data.mixture import Part, whole
from data.shards import Tokens

DENSE_VOCABULARY = 4096  # counts of all pairs in one array up to here (134 MB), sorted distinct pairs above
BLOCK = 1 << 22  # tokens counted at a time
STRETCHES = 64  # of a part that is not counted whole
Stretches = list[tuple[int, int]]  # the first token of each, and the one behind its last


@dataclass(frozen=True)
class Bigram:
    """A fitted bigram model over `vocab_size` tokens."""

    vocab_size: int
    pairs: np.ndarray  # distinct pairs as first * vocab_size + second, ascending
    counts: np.ndarray
    p_unigram: np.ndarray
    discount: float
    seen: np.ndarray  # how often each token is a history
    successors: np.ndarray  # of each history, distinct
    sources: tuple[tuple[float, np.ndarray, np.ndarray, Stretches], ...]  # of each: its share, pairs, counts, and where

    def nats(self, before: np.ndarray, token: np.ndarray) -> np.ndarray:
        """-log p(token | before) of int64 arrays of one shape, elementwise."""
        wanted = before * self.vocab_size + token
        place = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        count = np.where(self.pairs[place] == wanted, self.counts[place], 0)
        history = self.seen[before]
        spared = self.discount * self.successors[before] * self.p_unigram[token]
        numerator = np.maximum(count - self.discount, 0) + spared
        return -np.log(np.where(history > 0, numerator / np.maximum(history, 1), self.p_unigram[token]))

    def counted(self) -> list[tuple[float, float, Stretches]]:
        """Of each source: its share, and the mean loss of the pairs of tokens that it was counted on, and where."""
        return [(share, self._mean(pairs, counts), where) for share, pairs, counts, where in self.sources]

    def mean_nats(self) -> float:
        """Mean loss in nats per token over the very text it was counted on, of a mixture in its proportions."""
        return sum(share * mean for share, mean, _ in self.counted())

    def _mean(self, pairs: np.ndarray, counts: np.ndarray) -> float:
        return float(counts @ self.nats(*np.divmod(pairs, self.vocab_size)) / counts.sum())


def tokens_counted(parts: Sequence[Part], max_train_tokens: int | None) -> list[int]:
    """At most how many tokens of each part `fit_bigram` counts."""
    weight = sum(part.weight for part in parts)
    return [
        part.n_tokens if max_train_tokens is None else min(part.n_tokens, int(max_train_tokens * part.weight / weight))
        for part in parts
    ]


def stretches_of(part: Part, n_tokens: int) -> Stretches:
    """What is counted of a part: all of it, or stretches of `n_tokens` together, from its first token to its last as
    evenly as can be, since files of different kinds stand one after another."""
    n = 1 if n_tokens == part.n_tokens else min(STRETCHES, n_tokens // 2)
    length = n_tokens // n
    starts = [part.first + i * (part.n_tokens - length) // max(1, n - 1) for i in range(n)]
    return [(start, start + length) for start in starts]


def fit_bigram(
    train_tokens: Tokens, vocab_size: int, max_train_tokens: int | None = None, parts: Sequence[Part] | None = None
) -> Bigram:
    """Count `train_tokens`, or `max_train_tokens` of them, of a mixture's parts in proportion to the weights, in
    stretches (`stretches_of`). Raises ValueError for fewer than two."""
    parts = parts or whole(len(train_tokens))
    weight = sum(part.weight for part in parts)
    sources = []
    for part, n_train in zip(parts, tokens_counted(parts, max_train_tokens), strict=True):
        if n_train < 2:
            raise ValueError(f"a bigram model needs two tokens to count, got {n_train}")
        where = stretches_of(part, n_train)
        sources.append((part.weight / weight, *_count_pairs(train_tokens, where, vocab_size), where))
    tables = [(pairs, counts) for _, pairs, counts, _ in sources]
    pairs, counts = tables[0] if len(tables) == 1 else _merged(tables)
    first, second = np.divmod(pairs, vocab_size)

    unigrams = np.bincount(second, weights=counts, minlength=vocab_size)
    discount = _discount(unigrams[unigrams > 0])
    spared = discount * np.count_nonzero(unigrams) / vocab_size
    return Bigram(
        vocab_size,
        pairs,
        counts,
        p_unigram=(np.maximum(unigrams - discount, 0) + spared) / unigrams.sum(),
        discount=_discount(counts),
        seen=np.bincount(first, weights=counts, minlength=vocab_size),
        successors=np.bincount(first, minlength=vocab_size),
        sources=tuple(sources),
    )


def bigram_loss(
    train_tokens: Tokens,
    validation_tokens: Tokens,
    vocab_size: int,
    max_train_tokens: int | None = None,
    parts: Sequence[Part] | None = None,
) -> float:
    """Mean nats per token of validation_tokens[1:], each given the token before it; of every row's, where it is [n, T].

    Raises ValueError where there is nothing to count or to predict.
    """
    if _length(validation_tokens) < 2:
        raise ValueError(f"bigram_loss needs two tokens to predict one, got {_length(validation_tokens)}")
    model = fit_bigram(train_tokens, vocab_size, max_train_tokens, parts)
    nats, n_scored = 0.0, 0
    for before, token in _steps(validation_tokens):
        nats += float(model.nats(before, token).sum())
        n_scored += len(token)
    return nats / n_scored


def _length(tokens: Tokens) -> int:
    """Tokens of a stream, or of each row."""
    return int(tokens.shape[1]) if isinstance(tokens, np.ndarray) and tokens.ndim == 2 else len(tokens)


def _steps(tokens: Tokens) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of (token before, token), int64 [n], of a stream or of every row of [rows, T]."""
    if isinstance(tokens, np.ndarray) and tokens.ndim == 2:
        rows = tokens.astype(np.int64)
        yield rows[:, :-1].ravel(), rows[:, 1:].ravel()
        return
    for start in range(0, len(tokens) - 1, BLOCK):
        block = np.asarray(tokens[start : start + BLOCK + 1], dtype=np.int64)
        yield block[:-1], block[1:]


def _discount(counts: np.ndarray) -> float:
    once, twice = int(np.count_nonzero(counts == 1)), int(np.count_nonzero(counts == 2))
    return min(max(once / max(once + 2 * twice, 1), 0.1), 0.9)


def _count_pairs(tokens: Tokens, where: Stretches, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Of these stretches distinct pairs as first * vocab_size + second, ascending, and how often each occurs; both
    int64."""
    dense = np.zeros(vocab_size**2, dtype=np.int64) if vocab_size <= DENSE_VOCABULARY else None
    pairs, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    blocks = ((start, min(start + BLOCK + 1, last)) for first, last in where for start in range(first, last - 1, BLOCK))
    for start, end in blocks:
        block = np.asarray(tokens[start:end], dtype=np.int64)
        codes, occurrences = np.unique(block[:-1] * vocab_size + block[1:], return_counts=True)
        if dense is not None:
            dense[codes] += occurrences
            continue
        pairs, counts = _merged([(pairs, counts), (codes, occurrences)])
    if dense is not None:
        pairs = np.flatnonzero(dense)
        counts = dense[pairs]
    return pairs, counts


def _merged(tables: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Counts of several tables of `_count_pairs` as one."""
    pairs, where = np.unique(np.concatenate([pairs for pairs, _ in tables]), return_inverse=True)
    counts = np.zeros(len(pairs), np.int64)
    np.add.at(counts, where, np.concatenate([counts for _, counts in tables]))
    return pairs, counts
