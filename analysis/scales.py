"""What a task's score means: which way is better, between which ends it lies, and what guessing gives."""

from __future__ import annotations

from dataclasses import dataclass

ACCURACY, PERPLEXITY, TREND = "accuracy", "perplexity", "trend"


@dataclass(frozen=True)
class Scale:
    """kind: "accuracy" (a share of right answers), "perplexity", or "trend" (a score without a known form); full: what
    a perfect score reads, 1 or 100; chance: what guessing gives as a share, 0 where answers are free; higher_is_better.
    """

    kind: str
    full: float = 1.0
    chance: float = 0.0
    higher_is_better: bool = True
