"""Whether a corpus has the text that a run is planned to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from arch.errors import InputError
from data.corpus import Corpus
from data.mixture import Short, short_of


def require_tokens(
    corpus: Corpus,
    n_tokens: int,
    epochs: float,
    context_length: int,
    batch_rows: int,
    share: Fraction = Fraction(1),
) -> None:
    """Raise InputError unless `epochs` passes over `share` of every part of the training split feed
    ceil(n_tokens / batch tokens) steps."""
    short = short_of(corpus.parts("train"), n_tokens, epochs, context_length, batch_rows, share)
    if not short:
        return
    name, available = _shown(short, epochs)
    planned = sum(part.needed for part in short) * context_length
    missing = sum(part.missing for part in short) * context_length
    raise InputError(
        f"corpus at {corpus.directory} is too small: {planned:,} tokens{name} are planned and its training split "
        f"({available}) falls {missing:,} tokens short; {_remedy(short, context_length)}"
    )


def _shown(short: Sequence[Short], epochs: float) -> tuple[str, str]:
    parts = [shortage.part for shortage in short]
    if not parts[0].name:
        return "", f"{parts[0].n_tokens:,} tokens, {epochs:g} epochs"
    available = ", ".join(f"{part.name}: {part.n_tokens:,} tokens" for part in parts)
    return f" of source {' and '.join(part.name for part in parts)}", f"{available}; {epochs:g} epochs"


def _remedy(short: Sequence[Short], context_length: int) -> str:
    if all(part.n_windows for part in short):
        enough = max(math.ceil(100 * Decimal(part.needed) / part.n_windows) / 100 for part in short)
        remedy = "plan fewer tokens, "
        if short[0].part.name:
            remedy += "lower its weight, "
        return f"give more text, {remedy}or allow repetition with corpus.epochs: {enough:g}"
    return f"one window of context_length {context_length} is longer than the whole split; give more text"
