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

    @property
    def nats_per_token(self) -> float:
        """Of the tokenizer `bytes`, where a token is a byte or an end of text."""
        return self.nats / (self.n_bytes + 1)

    @property
    def bits_per_byte(self) -> float:
        """All entropy of a document over the bytes of its text, as bits per byte are evaluated: an end of text costs
        nats and has no bytes. The same for every tokenizer."""
        return self.nats / self.n_bytes / math.log(2)


def entropy(odds: Sequence[int]) -> float:
    """Nats of one draw with these odds."""
    total = sum(odds)
    return -sum(count / total * math.log(count / total) for count in odds if count)
