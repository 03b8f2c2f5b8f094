"""The best reader of `powerlaw:` text: it knows all odds and facts, and nothing of what stood before its window."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np

from data.synthetic import mix64
from data.truth.powerlaw import ENDS, FACT, FACTS, ODDS, STEP_BITS, PowerLaw

DEEPEST = 8  # letters that may be hidden before a window, distinguished; facts behind longer ones count as drawn alike
END_OF_TEXT = 256


class BestReader:
    def __init__(self, source: PowerLaw) -> None:
        self.r = source.follow / (1 << STEP_BITS)
        self.q = np.array(ODDS) / sum(ODDS)
        self.salt = np.uint64(mix64(source.seed + 1))
        self._prior = cache(self._facts_behind)

    def nats(self, tokens: np.ndarray) -> tuple[float, float]:
        """-log P(tokens[1:] | tokens[0]): what a reader pays who knows what stood before, and what not knowing adds."""
        at = int(
            np.argmax((tokens == END_OF_TEXT) | ((tokens >= ord("A")) & (tokens <= ord("P"))))
        )  # first known place
        letters = tokens[:at] - ord("a")
        paid, more = 0.0, 0.0
        if at:  # the window begins inside a key
            paid -= sum(math.log(self.r * self.q[letter]) for letter in letters[1:]) + math.log(1 - self.r)
            more -= math.log(self._prior(tuple(letters.tolist()))[self._fact(tokens[at : at + FACT])])
            at += FACT
        elif tokens[0] != END_OF_TEXT:  # inside a fact: its first letter, or its second?
            table = self._prior(()).reshape(FACTS, FACTS)  # second letter, first letter: (of a whole key)
            seen = int(tokens[0]) - ord("A")
            first, second = table[:, seen].sum(), table[seen].sum()
            if ord("A") <= tokens[1] <= ord("P"):
                more -= math.log(table[int(tokens[1]) - ord("A"), seen] / (first + second))
                at = 2
            else:
                more -= math.log(second / (first + second))
                at = 1
        else:
            at = 0
        return paid + self._after_a_word(tokens[at:], known=tokens[0] == END_OF_TEXT), more

    def _after_a_word(self, tokens: np.ndarray, known: bool) -> float:
        """Nats of tokens that follow a whole word (or, `known`, of those behind an end of text that stands first)."""
        total, place = 0.0, -1 if known else 0  # letters of the key so far; 0: between words; -1: a document begins
        for token in tokens[1:] if known else tokens:
            if token == END_OF_TEXT:
                total -= math.log(1 / ENDS)
                place = -1
            elif token >= ord("a"):
                if place > 0:
                    total -= math.log(self.r)
                elif place == 0:
                    total -= math.log(1 - 1 / ENDS)
                total -= math.log(self.q[token - ord("a")])
                place = max(place, 0) + 1
            elif place > 0:  # the fact begins
                total -= math.log(1 - self.r)
                place = 0
        return total

    def _fact(self, letters: np.ndarray) -> int:
        return sum((int(letter) - ord("A")) << (4 * i) for i, letter in enumerate(letters))

    def _facts_behind(self, seen: tuple[int, ...]) -> np.ndarray:
        """[256]: chances of the facts behind the letters `seen`, over the letters that may stand before; with none
        seen, over whole keys."""
        counts = np.zeros(FACTS**FACT)
        weight = 1.0
        for hidden in range(DEEPEST + 1):
            sums, chances = _prefixes(hidden)
            if seen or hidden:
                key = sums + np.uint64(
                    sum(mix64((hidden + i) * 8 + letter) for i, letter in enumerate(seen)) & (2**64 - 1)
                )
                facts = (mix64(key ^ self.salt) & np.uint64(FACTS**FACT - 1)).astype(np.int64)
                counts += np.bincount(facts, weight * (1 - self.r) * chances, minlength=len(counts))
                weight *= self.r
            else:
                continue
        return counts + weight / len(counts)


@lru_cache(None)
def _prefixes(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Of all keys of `length` letters the sums of their codes, and their chances given the length."""
    sums, chances = np.zeros(1, np.uint64), np.ones(1)
    for place in range(length):
        codes = mix64(np.arange(len(ODDS), dtype=np.uint64) + np.uint64(8 * place))
        sums = (sums[:, None] + codes).ravel()
        chances = (chances[:, None] * (np.array(ODDS) / sum(ODDS))).ravel()
    return sums, chances
