"""Which source each window of a run is of, so that every beginning of a run holds the sources in their proportions.

Place p of a run (its p-th window) goes to a source by Tijdeman's assignment (The chairman assignment problem, 1980):
after n places a source of share w has had n w windows, but for less than one. It repeats after as many places as the
weights, as whole numbers, add up to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data.settings import whole_weights
from data.share import allowed_windows, windows_read


class Part(NamedTuple):
    """The tokens of one source in a split: tokens[first : first + n_tokens]. A corpus without a mixture has one part,
    without a name."""

    name: str
    weight: float
    first: int
    n_tokens: int

    def n_windows(self, context_length: int) -> int:
        """Windows of context_length + 1 tokens that share their border tokens."""
        return max(0, self.n_tokens - 1) // context_length


def whole(n_tokens: int) -> list[Part]:
    """The one part of tokens that are no mixture."""
    return [Part("", 1.0, 0, n_tokens)]


class Short(NamedTuple):
    """A part of which more windows are planned than may be read: `missing` of the `needed`; it has `n_windows`."""

    part: Part
    missing: int
    needed: int
    n_windows: int


class Assignment:
    """The order of sources with these weights."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = np.array(whole_weights(list(weights)), dtype=np.int64)
        self.period = int(self.weights.sum())
        self.order = _tijdeman(tuple(self.weights.tolist()))
        self._places = [np.flatnonzero(self.order == i) for i in range(len(self.weights))]
        self._nth = np.empty(self.period, np.int64)  # how many of the same source a period has had before
        for places in self._places:
            self._nth[places] = np.arange(len(places))

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of places int64 [n]: the source of each, and how many places before had the same; int64 [n] both."""
        rounds, within = np.divmod(places, self.period)
        source = self.order[within]
        return source, rounds * self.weights[source] + self._nth[within]

    def counts(self, n_places: int) -> list[int]:
        """How many of the first `n_places` each source has."""
        rounds, rest = divmod(n_places, self.period)
        return (rounds * self.weights + np.bincount(self.order[:rest], minlength=len(self.weights))).tolist()

    def places_with(self, source: int, n: int) -> int:
        """How many places there are before the one that would be the (n + 1)-th of a source."""
        rounds, rest = divmod(n, int(self.weights[source]))
        return rounds * self.period + int(self._places[source][rest])


@lru_cache(maxsize=64)
def _tijdeman(weights: tuple[int, ...]) -> np.ndarray:
    """int64 [sum of weights]: the source of each place of a period.

    At every place the sources come into question that are behind their share by 1 / (2k - 2) or more, k sources in
    all; of them the one is taken that would first be behind by more than 1 - 1 / (2k - 2). Exact, in whole numbers.
    """
    k, period, common = len(weights), sum(weights), math.lcm(*weights)
    if k == 1:
        return np.zeros(1, np.int64)
    scale, had = 2 * k - 2, [0] * k
    order = np.empty(period, np.int64)
    due = [(scale - 1) * (common // weight) for weight in weights]  # when, in units of period / (scale * common)
    for place in range(period):
        ready = (i for i in range(k) if scale * (weights[i] * (place + 1) - period * had[i]) >= period)
        chosen = min(ready, key=due.__getitem__)
        order[place] = chosen
        had[chosen] += 1
        due[chosen] = ((had[chosen] + 1) * scale - 1) * (common // weights[chosen])
    return order


def short_of(
    parts: Sequence[Part],
    n_tokens: int,
    epochs: float,
    context_length: int,
    batch_rows: int,
    share: Fraction = Fraction(1),
) -> list[Short]:
    """The parts of which `epochs` passes hold fewer windows than ceil(n_tokens / batch tokens) steps need."""
    counts = Assignment([part.weight for part in parts]).counts(n_places(n_tokens, context_length, batch_rows))
    short = []
    for part, needed in zip(parts, counts, strict=True):
        n_windows = part.n_windows(context_length)
        n_windows = windows_read(n_windows, share) if n_windows else 0
        if (missing := needed - allowed_windows(n_windows, epochs)) > 0:
            short.append(Short(part, missing, needed, n_windows))
    return short


def epochs_of(
    parts: Sequence[Part], n_tokens: int, context_length: int, batch_rows: int, share: Fraction = Fraction(1)
) -> dict[str, float]:
    """How often a run of so many tokens reads each part, by its name: 1.5 has read half of it a second time."""
    counts = Assignment([part.weight for part in parts]).counts(n_places(n_tokens, context_length, batch_rows))
    there = [windows_read(part.n_windows(context_length), share) for part in parts]
    return {part.name: count / windows for part, count, windows in zip(parts, counts, there, strict=True)}


def n_places(n_tokens: int, context_length: int, batch_rows: int) -> int:
    """Windows that a run of so many tokens reads, in whole batches."""
    return math.ceil(n_tokens / (batch_rows * context_length)) * batch_rows
