"""Held-out loss of a checkpoint: nats a token, perplexity and bits a byte, over fixed windows of the validation split.

The windows do not overlap, are one context long and lie evenly over the split; every model of a study is scored on the
same windows. In each, the first token is predicted from the token before it, as in a training sequence. Bits a byte
divide by the bytes of the tokens scored (an end-of-text token is scored but has no bytes), so they compare across
tokenizers. The sum of each window is kept, so that two models can be compared window by window (analysis.held_out). The
windows are put on the device once for each worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from data.tokenizer import Tokenizer
from data.windows import batches, packed, part_of, window_starts

from .model import LoadedModel, nats_of
from .planning import Planned, Reader
from .task import Say, Settings, TaskContext

if TYPE_CHECKING:
    from torch import Tensor

    from data.corpus import Corpus


PART = 1 << 24  # tokens that lie on the device together: 128 MiB


class HeldOut:
    """Windows of `corpus`' validation split, about n_tokens of them, read `batch_rows` at a time."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, n_tokens: int, batch_rows: int) -> None:
        self._tokens, self._parts, self._bytes_of = corpus.validation, corpus.parts("validation"), tokenizer.n_bytes
        self._wanted, self._rows = n_tokens, batch_rows
        self._counts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._kept: dict[int, Tensor] = {}

    def counts(self, length: int) -> tuple[int, int]:
        """The number of windows of `length` tokens, and of bytes of the tokens that they score."""
        windows, n_bytes = self._by_part(length)
        return int(windows.sum()), int(n_bytes.sum())

    def by_source(self, length: int) -> dict[str, tuple[slice, int]]:
        """For a mixture: by source its windows, and the number of bytes of the tokens that they score."""
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
        """int64 [windows, length + 1] on `device`, the same each time; kept there where there is a single part."""
        import torch

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
        """Nats of each window of a part. Between the first batch and the last nothing waits for a GPU. say: gets the
        windows that the host has passed on. Raises InputError for ids outside of the model's vocabulary."""
        import torch

        from arch.model.layout import check_ids, ids_checked

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


class ValidationSettings(Settings):
    """validation_tokens: of the split, rounded down to whole windows, at least one; batch_rows: of a forward pass. Both
    stand in `evaluation` of the study file."""

    validation_tokens: int = 65_536
    batch_rows: int = 16


class Validation:
    version = 3  # 2: without the windows' nats

    def __init__(self, name: str, context: TaskContext) -> None:
        self.name, self._corpus = name, context.corpus
        self._settings = context.settings_of(name, ValidationSettings)

    def settings(self) -> dict[str, Any]:
        return self._settings.model_dump()

    def data_path(self) -> None:
        """None: the text is the corpus' held-out text, and duplicates of it in the training text were cut when it was
        made."""

    def data_hash(self) -> str:
        from data.corpus import open_corpus

        return open_corpus(self._corpus).fingerprint

    def planned(self, reader: Reader) -> Planned:
        length, wanted = reader.context_length, self._settings.validation_tokens
        if reader.held_out is None:
            n_windows, estimate = max(1, wanted // length), "there is no corpus yet"
        else:
            n_windows, estimate = len(window_starts(reader.held_out, length, wanted)), ""
        return Planned(n_windows * length, n_windows, "windows", estimate)

    def check(self, reader: Reader) -> None:
        """The corpus is checked where it is made (scaling.stages.corpus)."""

    def prepare(self, tokenizer: Tokenizer) -> HeldOut:
        """The corpus' windows, whose tokens are made already."""
        from data.corpus import open_corpus

        wanted = self._settings
        return HeldOut(open_corpus(self._corpus), tokenizer, wanted.validation_tokens, wanted.batch_rows)

    def evaluate(self, model: LoadedModel, prepared: HeldOut, say: Say) -> dict[str, Any]:
        """`loss` is the mean over all scored tokens in nats; null, with `reason`, where it is not finite.

        `by_source`: of a mixture the same of each source's windows. `window_nats`: the sum over each window, as
        data.windows.packed writes it; missing where a sum is not finite.
        """
        length = model.context_length
        n_windows, n_bytes = prepared.counts(length)
        nats, n_scored = list[float](), n_windows * length

        def report(n_done: int) -> None:
            n_read = (len(nats) + n_done) * length
            say(n_read / n_scored, f"{n_read:,} tokens")

        for part in prepared.parts(length, model.device):
            nats += prepared.score(model, part, report)
        counts = {"n_tokens_scored": n_scored, "n_bytes_scored": n_bytes, "n_windows": n_windows}
        total = math.fsum(nats) if all(map(math.isfinite, nats)) else math.nan
        windows = {"window_nats": packed(nats)} if math.isfinite(total) else {}
        sources = {
            name: losses(math.fsum(nats[which]), len(nats[which]) * length, size) | {"n_windows": len(nats[which])}
            for name, (which, size) in prepared.by_source(length).items()
            if nats[which]
        }
        values = losses(total, n_scored, n_bytes) | counts | {"context_length": length} | windows
        return values | ({"by_source": sources} if sources else {})


def losses(nats: float, n_tokens: int, n_bytes: int) -> dict[str, Any]:
    """loss (nats a token), perplexity and bits_per_byte of a sum of nats; null where they are no finite number."""
    loss = nats / n_tokens
    if not math.isfinite(loss):
        return {"loss": None, "perplexity": None, "bits_per_byte": None, "reason": "the loss is not finite"}
    return {
        "loss": loss,
        "perplexity": exp_or_none(loss),
        "bits_per_byte": nats / math.log(2) / n_bytes if n_bytes else None,
    }


def exp_or_none(nats: float) -> float | None:
    """exp(nats), None where it is beyond float64."""
    return math.exp(nats) if nats < 700 else None


make = Validation
