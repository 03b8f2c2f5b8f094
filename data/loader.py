"""Batches as a pure function of (seed, step): nothing to save, nothing to resume, whatever the world size.

The token stream is cut into windows of context_length + 1 ids that share their border token: window w gives inputs
tokens[wT : wT + T] and targets one further. Every epoch visits each window once, in the order of a pseudo-random
permutation computed place by place: a Feistel network (Luby & Rackoff 1988) on the smallest even number of bits that
covers the windows, walked along its cycle until it lands inside (Black & Rogaway 2002). Integers only, no generator of
any library, so that the order never changes.

Of a mixture every source has windows, a permutation and epochs of its own; data/mixture.py says whose turn it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from arch.amounts import counted
from arch.errors import InputError
from data.ahead import ahead
from data.mixture import Assignment, Part, whole
from data.shards import Tokens
from data.share import allowed_windows, windows_read
from data.synthetic import mix64

# what reads the rows of a step whose windows begin at `starts` in another way: of (starts, step, which rows)
Draw = Callable[[np.ndarray, int, slice | None], np.ndarray]
ROUNDS = 6
# Places whose windows are computed at once: one by one, numpy's calls would take most of a step's time.
LOOK_AHEAD = 4096


def permute(positions: np.ndarray, n: int, seed: int, epoch: int, part: int = 0) -> np.ndarray:
    """Images of `positions` (int64, in [0, n)) under the permutation of range(n) keyed by (seed, epoch, part)."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _round_keys(f"windows {seed} {epoch} {part}" if part else f"windows {seed} {epoch}")
    values = _feistel(positions.astype(np.uint64), half, keys)
    while (outside := values >= n).any():
        values[outside] = _feistel(values[outside], half, keys)
    return values.astype(np.int64)


def _round_keys(name: str) -> np.ndarray:
    digest = hashlib.blake2b(name.encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _feistel(values: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    """A bijection of integers of 2 * half bits, uint64 [n] -> uint64 [n]."""
    mask = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & mask
    for i in range(ROUNDS):
        left, right = right, left ^ (mix64(right ^ keys[i : i + 1]) & mask)
    return (left << np.uint64(half)) | right


class Loader:
    """Batches of `batch_rows` windows of `tokens` (an array, a memory map or ShardedTokens).

    `epochs` is how many passes over the windows of each part are allowed; a fraction allows part of one. `parts` are
    those of a mixture (Corpus.parts); None: all tokens are one. `share`: only so much of every part is read, the first
    windows of the order of its first epoch. draw: reads the windows, in so many `processes`
    beside this one (1: in it); None: they are read as they are.

    Raises InputError: no whole window in a part; sizes or epochs not positive.
    """

    def __init__(
        self,
        tokens: Tokens,
        context_length: int,
        batch_rows: int,
        seed: int,
        epochs: float = 1.0,
        parts: Sequence[Part] | None = None,
        share: Fraction = Fraction(1),
        draw: Draw | None = None,
        processes: int = 1,
    ) -> None:
        if context_length <= 0 or batch_rows <= 0:
            raise InputError(f"loader: context_length {context_length} and batch_rows {batch_rows} must be positive")
        if not 0 < epochs < float("inf"):
            raise InputError(f"corpus.epochs: {epochs} is not a positive number of passes over the text")
        self.tokens, self.context_length, self.batch_rows, self.seed = tokens, context_length, batch_rows, seed
        self.epochs, self.draw, self.processes = epochs, draw, processes
        self._drawn: tuple[object, Iterator[np.ndarray]] = (None, iter(()))  # a step and rows; parts of them and later
        self.parts = list(parts) if parts is not None else whole(len(tokens))
        self._assignment = Assignment([part.weight for part in self.parts])
        self._there = [part.n_windows(context_length) for part in self.parts]
        for part, n_windows in zip(self.parts, self._there, strict=True):
            if n_windows < 1:
                raise InputError(
                    f"corpus too small: {part.n_tokens:,} tokens{f' of {part.name}' if part.name else ''} hold no "
                    f"window of context_length {context_length}; give more text"
                )
        self._read = [windows_read(n_windows, share) for n_windows in self._there]
        self._ahead = (0, np.empty((0, batch_rows), np.int64))  # a first step, and the starts of some from there on

    @property
    def steps_available(self) -> int:
        """Whole batches within the allowance of `epochs` of every part."""
        allowed = [allowed_windows(n_windows, self.epochs) for n_windows in self._read]
        return min(self._assignment.places_with(i, n) for i, n in enumerate(allowed)) // self.batch_rows

    def starts(self, step: int, rows: slice | None = None) -> np.ndarray:
        """int64 [rows]: the first token of each window that batch `step` (0-based) holds."""
        if not 0 <= step < self.steps_available:
            raise InputError(
                f"corpus too small: batch {step} is beyond the text: {self.epochs:g} epochs hold "
                f"{counted(self.steps_available, 'batch', 'batches')} "
                f"of {self.batch_rows} x {self.context_length} tokens; give more text or raise corpus.epochs"
            )
        first, starts = self._ahead
        if not first <= step < first + len(starts):
            n_steps = max(1, LOOK_AHEAD // self.batch_rows)
            first = step - step % n_steps
            last = min(first + n_steps, self.steps_available)
            places = np.arange(first * self.batch_rows, last * self.batch_rows, dtype=np.int64)
            starts = self._starts(places).reshape(-1, self.batch_rows)
            starts.flags.writeable = False  # callers get views
            self._ahead = (first, starts)
        chosen: np.ndarray = starts[step - first][rows if rows is not None else slice(None)]
        return chosen

    def _starts(self, places: np.ndarray) -> np.ndarray:
        """int64 [n]: the first token of the window at each place of the run."""
        source, nth = self._assignment.at(places)
        starts = np.empty_like(places)
        for i in np.unique(source).tolist():
            mine = source == i
            starts[mine] = self.parts[i].first + self._windows(i, nth[mine]) * self.context_length
        return starts

    def _windows(self, part: int, nth: np.ndarray) -> np.ndarray:
        """int64 [n]: the windows of a part that are its `nth` ones in the run."""
        there, read = self._there[part], self._read[part]
        epochs, positions = np.divmod(nth, read)
        starts = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            if read == there:
                starts[here] = permute(positions[here], there, self.seed, epoch, part)
            else:  # another order of the very windows of the first epoch
                again = permute(positions[here], read, self.seed, epoch, part) if epoch else positions[here]
                starts[here] = permute(again, there, self.seed, 0, part)
        return starts

    def batch(self, step: int, rows: slice | None = None) -> np.ndarray:
        """int64 [rows, context_length + 1] of batch `step` (0-based): inputs [:, :-1], targets [:, 1:].

        `rows` picks a part of the batch (a rank's, a micro-batch's): the same rows as of the whole.
        Raises InputError where the step is outside the allowance.
        """
        if self.draw is not None:
            return self._draw(self.draw, step, rows)
        starts, t = self.starts(step, rows), self.context_length
        batch = np.empty((len(starts), t + 1), dtype=np.int64)
        for row, start in zip(batch, starts.tolist(), strict=True):
            row[:] = self.tokens[start : start + t + 1]
        return batch

    def _draw(self, draw: Draw, step: int, rows: slice | None) -> np.ndarray:
        """The rows of a step, of which processes draw a part each, and those of the next steps meanwhile."""
        if self.processes == 1:
            return draw(self.starts(step), step, rows)
        chosen = range(self.batch_rows)[rows or slice(None)]
        size = 2 * -(-len(chosen) // (2 * self.processes))  # of whole pairs, which are drawn together
        parts = [slice(chosen[i], chosen[min(i + size, len(chosen)) - 1] + 1) for i in range(0, len(chosen), size)]
        expected, drawn = self._drawn
        if expected != (step, chosen):
            steps = range(step, self.steps_available)
            drawn = ahead(draw, ((self.starts(at), at, part) for at in steps for part in parts), self.processes)
        self._drawn = ((step + 1, chosen), drawn)
        return np.concatenate([next(drawn) for _ in parts])
