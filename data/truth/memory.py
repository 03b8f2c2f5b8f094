"""Texts that only a memory foretells, with their entropy rates: copying, and associative recall.

`Copying`: a line is `letters` random letters of a .. p, "=", and the same letters again; after a line the document ends
with probability 1/64. All entropy is in the first half: letters ln 16 a line, and H(1/64) for the end.

`Recall`: a document is one row of multi-query associative recall (data/synthetic.py, `mqar_batch`, its tokens as 64
printable characters) in which each query's value follows it: n keys with their values, then 3 n slots of two
characters, of which n hold a key and its value and the others filler that is no key. Keys, values, the order of slots
(all equally likely) and filler can be read off the text, so its entropy is the sum of theirs:

    ln 31!/(31-n)! + ln 32!/(32-n)! + ln (3n)!/(2n)! + 4 n ln (64 - n)

Documents of recall are of one length, which a model can count, so their ends add nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from arch.errors import InputError
from data.synthetic import NOT_SCORED, mix64, mqar_batch
from data.truth.rate import EntropyRate, entropy

LETTERS = 16  # different ones of a copied line
LINES = 64  # of a document, in the mean
VOCABULARY = 64  # characters of recall
FIRST = ord("0")  # of them
MOST_LETTERS = 4096
ROWS = 512  # of recall made at a time


@dataclass(frozen=True)
class Copying:
    """Lines whose second half repeats the first, of `letters` letters. Raises InputError for fewer than 1, or 4,097."""

    seed: int
    letters: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.letters <= MOST_LETTERS:
            raise InputError(f"{self.letters} letters cannot be copied: give 1 to {MOST_LETTERS:,}")

    @property
    def rate(self) -> EntropyRate:
        line = self.letters * math.log(LETTERS) + entropy((1, LINES - 1))
        return EntropyRate(LINES * line, LINES * (2 * self.letters + 2))

    def document(self, index: int) -> str:
        """Document `index`, of (seed, letters, index) alone."""
        stream = np.uint64(mix64(mix64(mix64(self.seed)) ^ index))
        lines: list[str] = []
        while True:
            first = len(lines) * (self.letters + 1)
            drawn = mix64(stream + np.arange(first, first + self.letters + 1, dtype=np.uint64))
            half = (drawn[1:] % np.uint64(LETTERS) + np.uint64(ord("a"))).astype(np.uint8).tobytes().decode("ascii")
            lines.append(f"{half}={half}\n")
            if int(drawn[0]) % LINES == 0:
                return "".join(lines)


@dataclass(frozen=True)
class Recall:
    """Rows of associative recall of `pairs` keys. Raises InputError where there are none, or more than 31."""

    seed: int
    pairs: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.pairs < VOCABULARY // 2:
            raise InputError(f"{self.pairs} pairs cannot be recalled: give 1 to {VOCABULARY // 2 - 1}")

    @property
    def rate(self) -> EntropyRate:
        n, half = self.pairs, VOCABULARY // 2
        chosen = _arrangements(half - 1, n) + _arrangements(half, n) + _arrangements(3 * n, n)
        return EntropyRate(chosen + 4 * n * math.log(VOCABULARY - n), 8 * n)

    def document(self, index: int) -> str:
        """Document `index`, of (seed, pairs, index) alone."""
        return _rows(self.seed, self.pairs, index // ROWS)[index % ROWS]


@lru_cache(2)
def _rows(seed: int, pairs: int, step: int) -> list[str]:
    """The documents of ROWS rows, which take hardly longer than one."""
    tokens, targets = mqar_batch(seed, step, ROWS, 8 * pairs, pairs, VOCABULARY, power_percent=100)
    rows, queries = np.nonzero(targets != NOT_SCORED)
    tokens[rows, queries + 1] = targets[rows, queries]
    return [row.tobytes().decode("ascii") for row in (tokens + FIRST).astype(np.uint8)]


def _arrangements(n: int, k: int) -> float:
    """ln n!/(n-k)!: of k different ones of n, in their order."""
    return math.lgamma(n + 1) - math.lgamma(n - k + 1)
