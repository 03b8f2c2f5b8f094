"""The entropy rate of a source whose truth is known, ends of documents included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EntropyRate:
    """Of documents that are drawn alike, each on its own.

    nats: the mean entropy of a document, where it ends included. n_bytes: the mean bytes of its text; in a corpus one
    end-of-text token follows. By the law of large numbers (renewal-reward) the stream of tokens has the entropy rate
    nats / (mean tokens of a document).
    """

    nats: float
    n_bytes: float


def entropy(odds: Sequence[int]) -> float:
    """Nats of one draw with these odds."""
    total = sum(odds)
    return -sum(count / total * math.log(count / total) for count in odds if count)
