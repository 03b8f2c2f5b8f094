"""Batches as a pure function of (seed, step): nothing to save, nothing to resume, whatever the world size.

The token stream is cut into windows of context_length + 1 ids that share their border token: window w gives inputs
tokens[wT : wT + T] and targets one further. Every epoch visits each window once, in the order of a pseudo-random
permutation computed place by place: a Feistel network (Luby & Rackoff 1988) on the smallest even number of bits that
covers the windows, walked along its cycle until it lands inside (Black & Rogaway 2002). Integers only, no generator of
any library, so that the order never changes.
"""

from __future__ import annotations

import hashlib

import numpy as np

from arch.errors import InputError
from data.corpus import allowed_windows
from data.shards import Tokens

ROUNDS = 6


def permute(positions: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """Images of `positions` (int64, in [0, n)) under the permutation of range(n) keyed by (seed, epoch)."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _round_keys(seed, epoch)
    values = _feistel(positions.astype(np.uint64), half, keys)
    while (outside := values >= n).any():
        values[outside] = _feistel(values[outside], half, keys)
    return values.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    digest = hashlib.blake2b(f"windows {seed} {epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _feistel(values: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    """A bijection of integers of 2 * half bits, uint64 [n] -> uint64 [n]."""
    mask = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & mask
    for i in range(ROUNDS):
        left, right = right, left ^ (_mix64(right ^ keys[i : i + 1]) & mask)
    return (left << np.uint64(half)) | right


def _mix64(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014), modulo 2^64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Loader:
    """Batches of `batch_rows` windows of `tokens` (an array, a memory map or ShardedTokens).

    `epochs` is how many passes over the windows are allowed; a fraction allows part of one.
    Raises InputError: no whole window; sizes or epochs not positive.
    """

    def __init__(self, tokens: Tokens, context_length: int, batch_rows: int, seed: int, epochs: float = 1.0) -> None:
        if context_length <= 0 or batch_rows <= 0:
            raise InputError(f"loader: context_length {context_length} and batch_rows {batch_rows} must be positive")
        if not 0 < epochs < float("inf"):
            raise InputError(f"corpus.epochs: {epochs} is not a positive number of passes over the text")
        self.tokens, self.context_length, self.batch_rows, self.seed = tokens, context_length, batch_rows, seed
        self.epochs = epochs
        self.n_windows = (len(tokens) - 1) // context_length
        if self.n_windows < 1:
            raise InputError(
                f"corpus too small: {len(tokens):,} tokens hold no window of context_length {context_length}; "
                "give more text"
            )

    @property
    def steps_available(self) -> int:
        """Whole batches within the allowance of `epochs`."""
        return allowed_windows(self.n_windows, self.epochs) // self.batch_rows

    def windows(self, step: int, rows: slice | None = None) -> np.ndarray:
        """int64 [rows]: which windows batch `step` (0-based) holds."""
        if not 0 <= step < self.steps_available:
            raise InputError(
                f"corpus too small: batch {step} asked for, {self.epochs:g} epochs hold {self.steps_available} batches "
                f"of {self.batch_rows} x {self.context_length} tokens; give more text or raise corpus.epochs"
            )
        chosen = range(self.batch_rows)[rows if rows is not None else slice(None)]
        places = step * self.batch_rows + np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64)
        epochs, positions = np.divmod(places, self.n_windows)
        found = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = permute(positions[here], self.n_windows, self.seed, int(epoch))
        return found

    def batch(self, step: int, rows: slice | None = None) -> np.ndarray:
        """int64 [rows, context_length + 1] of batch `step` (0-based): inputs [:, :-1], targets [:, 1:].

        `rows` picks a part of the batch (a rank's, a micro-batch's): the same rows as of the whole.
        Raises InputError where the step is outside the allowance.
        """
        t = self.context_length
        windows = self.windows(step, rows)
        batch = np.empty((len(windows), t + 1), dtype=np.int64)
        for row, window in zip(batch, windows.tolist(), strict=True):
            row[:] = self.tokens[window * t : window * t + t + 1]
        return batch
