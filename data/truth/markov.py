"""A Markov source: the next letter depends on the last `order` ones, and its entropy rate is computed exactly.

For every context of `order` letters the seed draws the odds of the next letter, each 1, 2, 4 .. or 128. A document
begins as if `order` times the first letter stood before it, and after each letter it ends with probability 1/1024.

**Entropy rate.** Let P [m^order, m^order] be the transitions of contexts, h the entropies of their rows, e_0 the
first context. A document visits contexts v = e_0 (I - (1 - 1/1024) P)^-1 times in the mean, one visit a letter, so its
entropy is v h + 1024 H(1/1024) (Cover & Thomas, Elements of information theory, section 4.2, with the visits in place
of the stationary distribution). Without ends, of one endless document, the rate is mu h with mu = mu P: `endless`.

It saturates: a model that holds m^order rows of odds has nothing left to learn. For laws use `powerlaw:`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from arch.errors import InputError
from data.synthetic import mix64
from data.truth.rate import EntropyRate, entropy

ENDS = 1024  # letters of a document, in the mean
MOST_CONTEXTS = 1024
STEPS = 8  # of odds: 1, 2, 4 .. 128


@dataclass(frozen=True)
class Markov:
    """The source of seed `seed`: letters a, b, .. (`letters` of them), each depending on the `order` before it.

    Raises InputError: order or letters without meaning, or more than 1,024 contexts.
    """

    seed: int
    order: int = 2
    letters: int = 4

    def __post_init__(self) -> None:
        if self.order < 1 or not 2 <= self.letters <= 26 or self.letters**self.order > MOST_CONTEXTS:
            raise InputError(
                f"order {self.order} of {self.letters} letters: give an order from 1 and 2 to 26 letters, "
                f"letters^order at most {MOST_CONTEXTS:,}"
            )

    @cached_property
    def odds(self) -> list[list[int]]:
        """[contexts][letters]; a context's number has its last letter in its lowest place."""
        chain = mix64(mix64(self.seed))
        hashes = [mix64(chain ^ context) for context in range(self.letters**self.order)]
        return [
            [1 << (mix64(context_hash ^ letter) % STEPS) for letter in range(self.letters)] for context_hash in hashes
        ]

    @cached_property
    def transitions(self) -> np.ndarray:
        """P [contexts, contexts]."""
        n = len(self.odds)
        matrix = np.zeros((n, n))
        for context, odds in enumerate(self.odds):
            for letter, weight in enumerate(odds):
                matrix[context, self._next(context, letter)] += weight / sum(odds)
        return matrix

    @property
    def rate(self) -> EntropyRate:
        rows = np.array([entropy(odds) for odds in self.odds])
        visits = np.linalg.solve(np.eye(len(rows)) - (1 - 1 / ENDS) * self.transitions.T, np.eye(len(rows))[0])
        return EntropyRate(float(visits @ rows) + ENDS * entropy((1, ENDS - 1)), ENDS)

    def document(self, index: int) -> str:
        """Document `index`, of (seed, order, letters, index) alone."""
        state = mix64(mix64(mix64(self.seed + 1)) ^ index)
        ends = self._ends
        context, letters = 0, []
        while True:
            state = mix64(state)
            letter = bisect_right(ends[context], (state >> 10) % ends[context][-1])
            letters.append(letter)
            context = self._next(context, letter)
            if state % ENDS == 0:
                return bytes(ord("a") + number for number in letters).decode("ascii")

    @cached_property
    def _ends(self) -> list[list[int]]:
        return [list(accumulate(odds)) for odds in self.odds]

    def _next(self, context: int, letter: int) -> int:
        return (context * self.letters + letter) % len(self.odds)
