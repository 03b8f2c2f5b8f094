"""What a task's score means: which way is better, between which ends it lies, and what guessing gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arch.errors import InputError

ACCURACY, PERPLEXITY, TREND = "accuracy", "perplexity", "trend"
KINDS = (ACCURACY, PERPLEXITY, TREND)


@dataclass(frozen=True)
class Scale:
    """kind: "accuracy" (a share of right answers), "perplexity", or "trend" (a score without a known form); full: what
    a perfect score reads, 1 or 100; chance: what guessing gives as a share, 0 where answers are free; higher_is_better.

    Raises InputError for a kind that there is not, and a chance outside of [0, 1).
    """

    kind: str
    full: float = 1.0
    chance: float = 0.0
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"a score's kind is {', '.join(KINDS)}, not {self.kind!r}")
        if not (0 <= self.chance < 1 and self.full > 0 and math.isfinite(self.full)):
            raise InputError(f"a score from 0 to {self.full:g} by chance {self.chance:g}: chance is a share in [0, 1)")
