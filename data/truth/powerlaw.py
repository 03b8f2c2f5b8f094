"""Facts used by a power law: text whose excess entropy grows as a power of its length, and whose rate is known exactly.

The text is a sequence of words without spaces. A word is a key and a fact:

    key    letters of a, b, c, d drawn with odds 7:4:3:2; after each letter another follows with probability r
    fact   FACT capital letters of A .. P that the key determines: a seeded hash, the same everywhere in the text

After a word the document ends with probability 1/256. All draws are independent.

The keys are those of a monkey at a typewriter (Miller 1957): a word of probability p has rank k with p ~ k^-zipf, where
sum over letters of (r q)^(1/zipf) = 1 (Mandelbrot 1953; Conrad & Mitzenmacher 2004). `zipf` is a setting of the source,
and r follows from it, to 1/1024. There are infinitely many keys, so infinitely many facts; this is a Santa Fe process
(Debowski, "On the vocabulary of grammar-based codes and the logical consistency of texts", 2011): n words state about
n^(1/zipf) facts for the first time, and so much, in facts, is the excess entropy of n words.

**Entropy rate.** A fact is fixed for all the text, so in the limit only keys and ends are left:

    nats per word        h = (H(q) + H(r)) / (1 - r) + H(1/256)        H(p) of a coin is -p ln p - (1-p) ln(1-p)
    bytes per word       1 / (1 - r) + FACT

**Above it.** Who knows the facts of the keys in a set S loses ln 16 FACT nats a word for each key outside it, times its
probability. With the n most frequent keys that is ~ n^-(zipf - 1); with all keys of n words that were read, as Hutter
("Learning curve theory", 2021) has it, sum p (1 - p)^n ~ n^-(1 - 1/zipf).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arch.errors import InputError
from data.synthetic import mix64
from data.truth.rate import EntropyRate, entropy

ODDS = (7, 4, 3, 2)  # of the letters of keys, of 16
FACT = 2  # letters
FACTS = 16  # different letters of facts
ENDS = 256  # words of a document, in the mean
STEP_BITS = 10  # r is a multiple of 2^-10
DRAWN = 4096  # letters drawn at a time


@dataclass(frozen=True)
class PowerLaw:
    """The source of seed `seed` whose keys fall as k^-zipf. Raises InputError for a zipf not in 1.1 .. 3."""

    seed: int
    zipf: float = 1.5

    def __post_init__(self) -> None:
        if not 1.1 <= self.zipf <= 3:
            raise InputError(f"zipf {self.zipf:g}: give 1.1 (facts without number) to 3 (few)")

    @property
    def follow(self) -> int:
        """r times 2^10: the odds that another letter of the key follows."""
        low, high = 0, 1 << STEP_BITS
        while high - low > 1:
            r = (low + high) / 2 / (1 << STEP_BITS)
            total = sum((r * odds / sum(ODDS)) ** (1 / self.zipf) for odds in ODDS)
            low, high = ((low + high) // 2, high) if total <= 1 else (low, (low + high) // 2)
        return low

    @property
    def bytes_per_word(self) -> float:
        return 1 / (1 - self.follow / (1 << STEP_BITS)) + FACT

    @property
    def rate(self) -> EntropyRate:
        r = self.follow / (1 << STEP_BITS)
        follow = entropy((self.follow, (1 << STEP_BITS) - self.follow))
        word = (entropy(ODDS) + follow) / (1 - r) + entropy((1, ENDS - 1))
        return EntropyRate(ENDS * word, ENDS * self.bytes_per_word)

    def document(self, index: int) -> str:
        """Document `index`, of (seed, zipf, index) alone."""
        stream = np.uint64(mix64(mix64(mix64(self.seed)) ^ index))
        drawn = np.empty(0, np.uint64)
        while True:
            places = np.arange(len(drawn), len(drawn) + DRAWN, dtype=np.uint64)
            drawn = np.concatenate([drawn, mix64(stream + places)])
            stops = (drawn >> np.uint64(4)) % np.uint64(1 << STEP_BITS) >= self.follow
            last = np.flatnonzero(stops & ((drawn >> np.uint64(20)) % np.uint64(ENDS) == 0))
            if len(last):
                n = int(last[0]) + 1
                return self._spelt((drawn[:n] % np.uint64(16)).astype(np.int64), stops[:n])

    def _spelt(self, draws: np.ndarray, stops: np.ndarray) -> str:
        """The text of letters drawn (0 .. 15, by odds) and of where keys stop."""
        letters = np.searchsorted(np.cumsum(ODDS), draws, side="right")
        ends = np.flatnonzero(stops)
        starts = np.concatenate([[0], ends[:-1] + 1])
        place = np.arange(len(letters)) - np.repeat(starts, ends - starts + 1)
        codes = mix64(place.astype(np.uint64) * np.uint64(8) + letters.astype(np.uint64))
        facts = mix64(np.add.reduceat(codes, starts) ^ np.uint64(mix64(self.seed + 1)))
        text = np.full((len(letters), 1 + FACT), 0, dtype=np.uint8)
        text[:, 0] = letters + ord("a")
        for i in range(FACT):
            text[ends, 1 + i] = (facts >> np.uint64(4 * i)) % np.uint64(FACTS) + np.uint64(ord("A"))
        return text[text > 0].tobytes().decode("ascii")
