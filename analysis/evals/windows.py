"""Fixed windows over a text, and a model's nats on each of their tokens: what all the losses here are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from arch.errors import InputError

if TYPE_CHECKING:
    from .task import Loaded

MAX_LOGITS = 1 << 28  # of one slice: 1 GiB in fp32


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


def token_nats(model: Loaded, rows: np.ndarray) -> np.ndarray:
    """float32 [B, T]: -log p of each token of rows [B, T + 1] but the first, given those before it in its row.

    The head runs over slices, so that the logits of a long row of a large vocabulary need not lie in memory at once.
    """
    import torch
    import torch.nn.functional as nnf

    ids = torch.from_numpy(rows).to(model.device)
    nats = torch.empty(ids.shape[0], ids.shape[1] - 1, dtype=torch.float32)
    step = max(1, MAX_LOGITS // (len(ids) * model.config.vocab_size))
    with model.reading():
        hidden, _ = model.model.decoder(ids[:, :-1].contiguous(), None, None, None, False, None)
        for start in range(0, nats.shape[1], step):
            logits = model.model.lm_head(hidden[:, start : start + step])
            with model.meter.span(), torch.autocast(logits.device.type, enabled=False):
                targets = ids[:, 1 + start : 1 + start + logits.shape[1]].flatten()
                losses = nnf.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
            nats[:, start : start + step] = losses.view(len(ids), -1).cpu()
    return nats.numpy()
