"""ListOps of the Long Range Arena, made from a seed: a nested list of operators and digits, and the digit that it is.

`[MAX 4 [MIN 2 3 ] 1 [SM 5 9 ] ]` is 4. The rules are those of the arena (Tay et al. 2020, arXiv:2011.04006, and its
published generator), after Nangia & Bowman 2018 (arXiv:1804.06028): down to depth 10 an element is, with
probability 1/4, a list of 2 to 10 elements under an operator, else a digit, at depth 10 always a digit; lists of more
than 500 and fewer than 2,000 tokens are kept. MED is the median rounded down, SM the sum modulo 10. The brackets around
arguments, which the arena's files have and its reader drops, are not written. No list is drawn twice in practice: each
holds hundreds of random digits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .synthetic import Draws

OPERATORS = ("MIN", "MAX", "MED", "SM")  # token ids 10 .. 13, after the digits
END = 14  # the closing bracket
PADDING = 15
MAX_DEPTH = 10
MAX_ARGUMENTS = 10
LENGTHS = range(501, 2000)  # tokens of a list that is kept
TREES = 4096  # drawn at a time; about one in twelve is kept


class Level(NamedTuple):
    """The elements at one depth of many lists, [n] each: the list of each, and how many arguments it has, 0 of a digit.
    The arguments of an element stand together in the next level, in its order."""

    trees: np.ndarray
    n_arguments: np.ndarray

    def first_arguments(self) -> np.ndarray:
        """Where the arguments of each list of arguments begin in the next level, [lists]."""
        counts = self.n_arguments[self.n_arguments > 0]
        return np.cumsum(counts) - counts


def examples(seed: int, n: int, unit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The n examples of part `unit` of a set: tokens (uint8, one list after another), lengths and values (int64 [n]).
    They depend on the arguments alone."""
    draws, made, n_made = Draws(seed, unit), [], 0
    while n_made < n:
        made.append(_written(*_kept(_trees(draws)), draws))
        n_made += len(made[-1][1])
    tokens, lengths, values = (np.concatenate(parts) for parts in zip(*made, strict=True))
    return tokens[: lengths[:n].sum()], lengths[:n], values[:n]


def _trees(draws: Draws) -> list[Level]:
    levels, trees = [], np.arange(TREES)
    for depth in range(1, MAX_DEPTH + 1):
        is_list = (draws.below(4, len(trees)) == 0) & (depth < MAX_DEPTH)
        levels.append(Level(trees, np.where(is_list, 2 + draws.below(MAX_ARGUMENTS - 1, len(trees)), 0)))
        trees = np.repeat(trees, levels[-1].n_arguments)
    return levels


def _kept(levels: list[Level]) -> tuple[list[Level], np.ndarray]:
    """The lists of a length that is kept, numbered anew, and their lengths in tokens."""
    counts = [np.bincount(level.trees, 1 + (level.n_arguments > 0), TREES) for level in levels]
    length = np.sum(counts, axis=0).astype(np.int64)
    is_kept = (length >= LENGTHS.start) & (length < LENGTHS.stop)
    number = np.cumsum(is_kept) - 1
    kept = (Level(*(part[is_kept[level.trees]] for part in level)) for level in levels)
    return [Level(number[level.trees], level.n_arguments) for level in kept], length[is_kept]


def _written(levels: list[Level], lengths: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Digits and operators are drawn; values and lengths of elements follow from the deepest up, places from the top
    down."""
    symbols, sizes = [], []  # by level, the deepest first: ids of tokens; tokens
    value = size = np.zeros(0, np.int64)
    for level in reversed(levels):
        is_list, starts = level.n_arguments > 0, level.first_arguments()
        symbol = np.where(is_list, 10 + draws.below(len(OPERATORS), len(is_list)), draws.below(10, len(is_list)))
        inner, argument_value, size, value = size, value, np.ones_like(symbol), symbol.copy()
        if len(starts):
            size[is_list] = 2 + np.add.reduceat(inner, starts)
            value[is_list] = _values(symbol[is_list] - 10, argument_value, starts, level.n_arguments[is_list])
        symbols.append(symbol)
        sizes.append(size)
    tokens = np.full(int(lengths.sum()), END, np.uint8)
    place = np.cumsum(lengths) - lengths
    for level, symbol, inner in zip(levels, reversed(symbols), [*reversed(sizes[:-1]), size[:0]], strict=True):
        tokens[place] = symbol
        before = np.cumsum(inner) - inner  # tokens of the arguments before it, of all lists
        counts = level.n_arguments[level.n_arguments > 0]
        offset = before - np.repeat(before[level.first_arguments()], counts)
        place = np.repeat(place[level.n_arguments > 0] + 1, counts) + offset
    return tokens, lengths, value


def _values(operators: np.ndarray, arguments: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The value of each list, [lists]; operators: their numbers in OPERATORS."""
    ordered = arguments[np.lexsort((arguments, np.repeat(np.arange(len(counts)), counts)))]
    median = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) // 2
    least, largest = ordered[starts], ordered[starts + counts - 1]
    return np.choose(operators, (least, largest, median, np.add.reduceat(arguments, starts) % 10))
