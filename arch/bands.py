"""The interval of a law over compute, as fits store it and costs read it."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

NEAR = 1.01  # a compute this near to the end of a range is still in it


@dataclass(frozen=True)
class Band:
    """A law's interval [low, high] at C [FLOP], rising; None where it has no end."""

    c: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]

    def at(self, c: float) -> tuple[float, float] | None:
        """Between two of its points by a line in log-log, at an end as there; None outside of them (NEAR), or where it
        has no end."""
        if not self.c[0] / NEAR < c < self.c[-1] * NEAR:
            return None
        after = min(max(bisect_left(self.c, c), 1), len(self.c) - 1)
        before = after - 1
        share = min(max(math.log(c / self.c[before]) / math.log(self.c[after] / self.c[before]), 0.0), 1.0)
        ends = []
        for values in (self.low, self.high):
            start, end = values[before], values[after]
            if start is None or end is None:
                return None
            ends.append(math.exp((1 - share) * math.log(start) + share * math.log(end)))
        return ends[0], ends[1]
