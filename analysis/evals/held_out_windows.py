"""The windows of a study's held-out text on the device that reads them: made once a worker, scored without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from arch.model.layout import check_ids, ids_checked
from data.windows import batches, part_of, window_starts

from .token_losses import nats_of

if TYPE_CHECKING:
    from data.corpus import Corpus
    from data.tokenizer import Tokenizer

    from .task import LoadedModel

PART = 1 << 24  # tokens that lie on the device together: 128 MiB


class HeldOut:
    """Windows of `corpus`' validation split, about n_tokens of them, read `batch_rows` at a time."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, n_tokens: int, batch_rows: int) -> None:
        self._tokens, self._parts, self._bytes_of = corpus.validation, corpus.parts("validation"), tokenizer.n_bytes
        self._wanted, self._rows = n_tokens, batch_rows
        self._counts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._kept: dict[int, Tensor] = {}

    def counts(self, length: int) -> tuple[int, int]:
        """Windows of `length` tokens, and bytes of the tokens that they score."""
        windows, n_bytes = self._by_part(length)
        return int(windows.sum()), int(n_bytes.sum())

    def by_source(self, length: int) -> dict[str, tuple[slice, int]]:
        """Of a mixture: which of the windows are of each source, and bytes of the tokens that they score."""
        windows, n_bytes = (counts.tolist() for counts in self._by_part(length))
        ends = np.cumsum(windows).tolist()
        return {
            part.name: (slice(end - n, end), size)
            for part, end, n, size in zip(self._parts, ends, windows, n_bytes, strict=True)
            if part.name
        }

    def _by_part(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        if length not in self._counts:
            part, k = part_of(self._parts, self._starts(length)), len(self._parts)
            each = np.concatenate([self._bytes_of[rows[:, 1:]].sum(1) for rows in self._read(length)])
            n_bytes = np.array([each[part == i].sum() for i in range(k)], dtype=np.int64)
            self._counts[length] = np.bincount(part, minlength=k), n_bytes
        return self._counts[length]

    def parts(self, length: int, device: str) -> Iterator[Tensor]:
        """int64 [windows, length + 1] on `device`, the same each time; kept there where one part is all."""
        if length in self._kept:
            yield self._kept[length]
            return
        for rows in self._read(length):
            part = torch.from_numpy(rows)
            if device != "cpu":
                part = part.pin_memory().to(device, non_blocking=True)
            if len(part) == len(self._starts(length)):
                self._kept[length] = part
            yield part

    def score(self, model: LoadedModel, part: Tensor, say: Callable[[int], None]) -> list[float]:
        """Nats of each window of a part. Between the first batch and the last nothing waits for a GPU. say: windows
        done, as far as the host is. Raises InputError for ids that are not of the model's vocabulary."""
        nats = torch.empty(len(part), part.shape[1] - 1, dtype=torch.float32, device=part.device)
        with model.reading():
            check_ids(part, model.config.vocab_size)
        read = nats_of if model.passes is None else model.passes.nats
        with ids_checked():
            for first in range(0, len(part), self._rows):
                ids = part[first : first + self._rows]
                nats[first : first + len(ids)] = read(model, ids)
                say(first + len(ids))
        return [total for batch in nats.cpu().split(self._rows) for total in batch.numpy().sum(1, dtype=float).tolist()]

    def _read(self, length: int) -> Iterator[np.ndarray]:
        per_part = max(1, PART // (length + 1) // self._rows) * self._rows
        return batches(self._tokens, self._starts(length), length, per_part)

    def _starts(self, length: int) -> np.ndarray:
        return window_starts(self._parts, length, self._wanted)
