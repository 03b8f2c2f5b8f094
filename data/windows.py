"""Fixed windows over the tokens of a text: what losses over a held-out text are made of."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from arch.errors import InputError
from data.mixture import Assignment, Part


def window_starts(parts: Sequence[Part], context_length: int, validation_tokens: int) -> np.ndarray:
    """int64 [n]: where each window begins; window s predicts tokens s+1 .. s+context_length. `parts`: Corpus.parts.

    The windows do not overlap and lie evenly over each part, so that a few of them see as many documents as possible.
    Those of a mixture's parts follow one part after another, in proportion to the weights, so that the mean over all
    windows is that of the mixture; so the part that has the fewest for its weight limits all, and each has at least one
    where that allows it. Raises InputError where a part is shorter than one window.
    """
    available = [part.n_windows(context_length) for part in parts]
    for part, n_windows in zip(parts, available, strict=True):
        if n_windows < 1:
            of = f" of source {part.name}" if part.name else ""
            raise InputError(
                f"corpus: the validation split{of} has {part.n_tokens} tokens, too few for one window of "
                f"context_length={context_length}; raise corpus.validation_fraction or shorten the context"
            )
    order = Assignment([part.weight for part in parts])
    least = 1 + max(order.places_with(i, 0) for i in range(len(parts)))
    most = min(order.places_with(i, n_windows) for i, n_windows in enumerate(available))
    wanted = order.counts(min(most, max(least, validation_tokens // context_length)))
    starts = [
        part.first + np.arange(n, dtype=np.int64) * there // max(1, n) * context_length
        for part, n, there in zip(parts, wanted, available, strict=True)
    ]
    return np.concatenate(starts)


def part_of(parts: Sequence[Part], starts: np.ndarray) -> np.ndarray:
    """int64 [n]: the number of the part that each window lies in."""
    return np.searchsorted([part.first for part in parts], starts, side="right") - 1


def batches(tokens: Any, starts: Sequence[int] | np.ndarray, length: int, batch_rows: int) -> Iterator[np.ndarray]:
    """int64 [rows, length + 1] of token ids from `starts` on, the last one possibly of fewer rows."""
    for first in range(0, len(starts), batch_rows):
        rows = starts[first : first + batch_rows]
        yield np.stack([np.asarray(tokens[s : s + length + 1], dtype=np.int64) for s in rows])


def packed(nats: Sequence[float] | np.ndarray) -> str:
    """A number for each window as text: base64 of little-endian float32, 5.3 characters each."""
    return base64.b64encode(np.asarray(nats, dtype="<f4").tobytes()).decode("ascii")


def unpacked(text: str) -> np.ndarray:
    """float64 [n] of what `packed` wrote. Raises ValueError where it is something else."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float64)
