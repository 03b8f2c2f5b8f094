"""Tokens of a step at each size of a proposal."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST_STEPS = 500  # of the shortest run: fewer are warm-up
MOST_BATCH = 65_536  # tokens
SWEPT_STEPS = 2  # times as many steps, where shorter runs are swept


def batch_of(shortest: float, context: int) -> int:
    """Tokens of a step, a power of two of sequences, so that a run of `shortest` tokens has LEAST_STEPS steps; at least
    one sequence, at most MOST_BATCH tokens."""
    return int(2 ** math.floor(math.log2(_rows(shortest, context)))) * context


def expected(shortest: float, context: int) -> float:
    """The same without a step from one power of two to the next: for the search of a size that costs a budget."""
    return max(1.0, _rows(shortest, context) / math.sqrt(2)) * context


def _rows(shortest: float, context: int) -> float:
    return max(1.0, min(shortest / LEAST_STEPS, MOST_BATCH) / context)


def decisive(shortest: Sequence[float], swept: bool) -> list[float]:
    """Of each size the tokens whose steps decide on its batch. With a sweep all sizes have one batch, so that its law
    needs no term in it; its shortest runs then have an eighth of the steps."""
    return [min(shortest) / SWEPT_STEPS] * len(shortest) if swept else list(shortest)
