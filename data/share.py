"""How much of a text a run may read: epochs, and the share that a target implies. Imports nothing heavy, for plans."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction


def share_of(n_tokens: int, target_tokens: int | None) -> Fraction:
    """The share of the text that a run of `n_tokens` reads so that it repeats as much of it as a run of `target_tokens`
    that reads all; 1 without a target."""
    return Fraction(1) if target_tokens is None else min(Fraction(1), Fraction(n_tokens, target_tokens))


def windows_read(n_windows: int, share: Fraction) -> int:
    """Of a part's windows those that a run reads which may read `share` of the text; at least one."""
    return max(1, math.ceil(share * n_windows))


def allowed_windows(n_windows: int, epochs: float) -> int:
    """floor(epochs * n_windows) of the decimal number that was written: 1.15 of 100 windows is 115, not 114."""
    return math.floor(Decimal(repr(float(epochs))) * n_windows)
