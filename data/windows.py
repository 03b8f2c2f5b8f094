"""Fixed windows over the tokens of a text: what losses over a held-out text are made of."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from arch.errors import InputError


def window_starts(n_split_tokens: int, context_length: int, validation_tokens: int) -> np.ndarray:
    """int64 [n]: where each window begins; window s predicts tokens s+1 .. s+context_length.

    The windows do not overlap and lie evenly over the split, so that a few of them see as many documents as possible.
    Raises InputError where the split is shorter than one window.
    """
    available = (n_split_tokens - 1) // context_length
    if available < 1:
        raise InputError(
            f"corpus: the validation split has {n_split_tokens} tokens, too few for one window of context_length="
            f"{context_length}; raise corpus.validation_fraction or shorten the context"
        )
    wanted = min(available, max(1, validation_tokens // context_length))
    return np.arange(wanted, dtype=np.int64) * available // wanted * context_length


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
