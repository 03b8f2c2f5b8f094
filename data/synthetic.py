"""Seeded data with something to learn, the same on every machine and Python version: integers only, no `random`.

Text (`synthetic_documents`): words of an invented vocabulary follow an order-2 Markov chain (each pair of words allows
four successors, with odds 8:4:2:2), inside brackets of three kinds that nest and close in the right order. A bigram
model learns the spelling, a longer context the chain, a memory the brackets.

Recall (`mqar_batch`): key-value pairs, then the keys again; only a memory of the pairs gives the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

import numpy as np

from arch.errors import InputError

MASK = (1 << 64) - 1
N_WORDS = 32
WORDS_PER_DOCUMENT = 400
MAX_DEPTH = 4
BRACKETS = ("()", "[]", "{}")
SYLLABLES = tuple(c + v for c in "bdgklmnprstvz" for v in "aeiou")
NOT_SCORED = -100
WEIGHT_BITS = 30
Word = TypeVar("Word", int, np.ndarray)


def mix64(x: Word) -> Word:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014): a bijection of 64-bit integers that scatters them.

    Of an integer, or of each element of a uint64 array.
    """
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Draws:
    """A stream of seeded random integers, of one key: (seed, a number, ..)."""

    def __init__(self, *key: int) -> None:
        self._key = 0
        for part in key:
            self._key = mix64(mix64(self._key) ^ part)
        self._n_drawn = 0

    def below(self, n: int | np.ndarray, *shape: int) -> np.ndarray:
        """int64 [*shape]: integers of 0 .. n - 1, all equally likely to within n / 2^32; n: at most 2^32, a number or
        an array that broadcasts to the shape."""
        size = math.prod(shape)
        counters = np.arange(self._n_drawn, self._n_drawn + size, dtype=np.uint64).reshape(shape)
        self._n_drawn += size
        high = mix64(np.uint64(self._key) ^ mix64(counters)) >> np.uint64(32)
        return (high * np.asarray(n, np.uint64) >> np.uint64(32)).astype(np.int64)


def vocabulary(seed: int) -> list[str]:
    """`N_WORDS` different words of one to three syllables."""
    words: list[str] = []
    state = mix64(seed)
    while len(words) < N_WORDS:
        state = mix64(state)
        word = "".join(SYLLABLES[(state >> (8 * i)) % len(SYLLABLES)] for i in range(1 + (state >> 60) % 3))
        if word not in words:
            words.append(word)
    return words


def synthetic_documents(seed: int, n_bytes: int) -> Iterator[str]:
    """Documents of about 2 KB, `n_bytes` ASCII bytes in all (the last one is cut).

    Document i depends on (seed, i) alone: a longer text starts with the shorter one.
    """
    words = vocabulary(seed)
    index = 0
    while n_bytes > 0:
        text = _document(seed, index, words)[:n_bytes]
        n_bytes -= len(text)
        index += 1
        yield text


def _document(seed: int, index: int, words: list[str]) -> str:
    chain = mix64(mix64(seed))
    state = mix64(mix64(seed) ^ index)
    before, last = state % N_WORDS, (state >> 8) % N_WORDS
    parts: list[str] = []
    open_brackets: list[str] = []
    for _ in range(WORDS_PER_DOCUMENT):
        state = mix64(state)
        draw = state & 15
        choice = 0 if draw < 8 else 1 if draw < 12 else 2 if draw < 14 else 3
        successor = (mix64(chain ^ (before * N_WORDS + last)) >> (16 * choice)) % N_WORDS
        before, last = last, successor
        event = (state >> 8) & 31
        if event < 3 and len(open_brackets) < MAX_DEPTH:
            bracket = BRACKETS[event]
            open_brackets.append(bracket[1])
            parts.append(f" {bracket[0]}{words[last]}")
        elif event < 7 and open_brackets:
            parts.append(f" {words[last]}{open_brackets.pop()}")
        elif event < 9:
            parts.append(f" {words[last]}.")
        else:
            parts.append(f" {words[last]}")
    return "".join(parts).lstrip() + "".join(reversed(open_brackets)) + ".\n"


def mqar_batch(
    seed: int,
    step: int,
    rows: int,
    length: int,
    n_pairs: int,
    vocab_size: int,
    *,
    power_percent: int = 1,
    part: slice | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Batch `step` (from 0) of multi-query associative recall: inputs and targets, both int64 [rows, length].

    A row begins with `n_pairs` keys, each followed by its value. After them come (length - 2 n_pairs) // 2 slots of two
    tokens; each key appears once more, at the head of a slot of its own, and the target there is its value. Every other
    target is -100 and every other token filler. In turn, each pair draws its slot among those still free with odds
    i^(power_percent/100 - 1) for slot i = 1, 2, ...: mostly close behind the pairs; 100 makes all slots equally likely.
    Keys are different tokens of 1 .. vocab_size//2 - 1, values different ones of vocab_size//2 .. vocab_size - 1.
    Filler is any token but the row's keys.

    A row depends on (seed, step, its number) and on the task alone, so `part` (the rows wanted, all by default) gives
    each process its share. Train and test are two seeds.

    Source: Arora, Eyuboglu et al., "Zoology: measuring and improving recall in efficient language models"
    (arXiv:2312.04927, appendix E) and the authors' `multiquery_ar`, whose power_a = 0.01 is power_percent = 1. Theirs
    draws filler from the whole vocabulary, so that it may repeat a key.

    Raises InputError: a length, number of pairs or vocabulary in which the task does not fit; a power not in 1..100.
    """
    half, context = vocab_size // 2, 2 * n_pairs
    _require(rows >= 1 and step >= 0, f"rows={rows} and step={step}: give at least one row and a step from 0")
    _require(n_pairs >= 1, f"n_pairs={n_pairs}: give at least one pair")
    _require(length >= 2 * context, f"length={length} is too short for {n_pairs} pairs: give at least {2 * context}")
    _require(n_pairs < half, f"vocab_size={vocab_size} is too small for {n_pairs} pairs: give at least {context + 2}")
    _require(1 <= power_percent <= 100, f"power_percent={power_percent}: give 1 (zoology's) to 100 (uniform)")
    numbers = np.arange(rows, dtype=np.uint64)[part or slice(None)]
    streams = mix64(numbers ^ np.uint64(mix64(mix64(seed) ^ step)))

    def draws(purpose: int, n: int) -> np.ndarray:
        return mix64(mix64(streams ^ np.uint64(purpose))[:, None] + np.arange(n, dtype=np.uint64))

    keys = 1 + _distinct(draws(1, n_pairs), half - 1)
    values = half + _distinct(draws(2, n_pairs), vocab_size - half)
    queries = context + 2 * _slots(draws(3, n_pairs), _power_weights((length - context) // 2, power_percent))

    filler = (draws(4, length) % np.uint64(vocab_size - n_pairs)).astype(np.int64)
    inputs = _past(filler, np.sort(keys, axis=1))
    inputs[:, 0:context:2], inputs[:, 1:context:2] = keys, values
    np.put_along_axis(inputs, queries, keys, axis=1)
    targets = np.full_like(inputs, NOT_SCORED)
    np.put_along_axis(targets, queries, values, axis=1)
    return inputs, targets


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(f"associative recall: {message}")


def _past(x: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """The x-th (from 0) of the numbers 0, 1, ... that are not in `taken` [rows, k], ascending; x: [rows, n]."""
    for number in taken.T:
        x = x + (x >= number[:, None])
    return x


def _distinct(draws: np.ndarray, n: int) -> np.ndarray:
    """For `draws` [rows, k], k different numbers of 0 .. n - 1 in each row, all choices equally likely."""
    chosen = np.empty(draws.shape, dtype=np.int64)
    for i in range(draws.shape[1]):
        x = (draws[:, i : i + 1] % np.uint64(n - i)).astype(np.int64)
        chosen[:, i : i + 1] = _past(x, np.sort(chosen[:, :i], axis=1))
    return chosen


def _slots(draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """For `draws` [rows, k], k different slots in each row, each drawn by `weights` among those still free."""
    left = np.tile(weights, (len(draws), 1))
    chosen = np.empty(draws.shape, dtype=np.int64)
    for i in range(draws.shape[1]):
        ends = left.cumsum(axis=1)
        x = (draws[:, i] % ends[:, -1].astype(np.uint64)).astype(np.int64)
        chosen[:, i] = (ends <= x[:, None]).sum(axis=1)
        np.put_along_axis(left, chosen[:, i : i + 1], 0, axis=1)
    return chosen


@cache
def _power_weights(n: int, percent: int) -> np.ndarray:
    """floor(2^30 i^(percent/100 - 1)) for i = 1 .. n, int64 [n], by exact integer roots: libraries' powers differ."""
    divisor = math.gcd(percent, 100)
    root, power = 100 // divisor, (100 - percent) // divisor
    weights, weight = [], 1 << WEIGHT_BITS
    for i in range(1, n + 1):
        goal = (1 << (WEIGHT_BITS * root)) // i**power
        low, high = 0, weight  # weights fall
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**root <= goal else (low, middle - 1)
        weight = low
        weights.append(weight)
    return np.array(weights, dtype=np.int64)
