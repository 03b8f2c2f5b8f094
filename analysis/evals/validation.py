"""Held-out loss of a checkpoint: nats a token, perplexity and bits a byte, over fixed windows of the validation split.

The windows do not overlap, are one context long and lie evenly over the split; every model of a study is scored on the
same windows. In each, the first token is predicted from the token before it, as in a training sequence. Bits a byte
divide by the bytes of the tokens scored (an end-of-text token is scored but has no bytes), so they compare across
tokenizers. The sum of each window is kept, so that two models can be compared window by window (analysis.held_out).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from data.tokenizer import Tokenizer
from data.windows import batches, packed, part_of, window_starts

from .model import LoadedModel, token_nats
from .task import Plan, Reader, Say, Settings, Task

if TYPE_CHECKING:
    from data.mixture import Part


@dataclass(frozen=True)
class HeldOut:
    """A corpus' validation split; bytes_of: of each token of the vocabulary."""

    tokens: Any
    parts: Sequence[Part]
    bytes_of: np.ndarray


class ValidationSettings(Settings):
    """validation_tokens: of the split, rounded down to whole windows, at least one; batch_rows: of a forward pass. Both
    stand in `evaluation` of the study file."""

    validation_tokens: int = 65_536
    batch_rows: int = 16


class Validation(Task):
    version = 3
    Chosen = ValidationSettings

    def data_path(self) -> None:
        """None: duplicates of the held-out text in the training text were cut when the corpus was made."""

    def data_hash(self) -> str:
        from data.corpus import open_corpus

        return open_corpus(self.context.corpus).fingerprint

    def plan(self, reader: Reader) -> Plan:
        length, wanted = reader.context_length, self.chosen.validation_tokens
        if reader.held_out is None:
            n_windows, estimate = max(1, wanted // length), "there is no corpus yet"
        else:
            n_windows, estimate = len(window_starts(reader.held_out, length, wanted)), ""
        return Plan(n_windows * length, n_windows, "windows", estimate)

    def prepare(self, tokenizer: Tokenizer) -> HeldOut:
        from data.corpus import open_corpus

        corpus = open_corpus(self.context.corpus)
        return HeldOut(corpus.validation, corpus.parts("validation"), tokenizer.n_bytes)

    def evaluate(self, model: LoadedModel, prepared: HeldOut, say: Say) -> dict[str, Any]:
        """`loss` is the mean over all scored tokens in nats; null, with `reason`, where it is not finite.

        `by_source`: of a mixture the same of each source's windows. `window_nats`: the sum over each window, as
        data.windows.packed writes it; missing where a sum is not finite.
        """
        length = model.context_length
        starts = window_starts(prepared.parts, length, self.chosen.validation_tokens)
        sums, sizes = [], []
        for rows in batches(prepared.tokens, starts, length, self.chosen.batch_rows):
            sums += token_nats(model, rows).sum(1, dtype=float).tolist()
            sizes += prepared.bytes_of[rows[:, 1:]].sum(1).tolist()
            say(len(sums) / len(starts))
        nats, n_bytes, part = np.array(sums), np.array(sizes, dtype=np.int64), part_of(prepared.parts, starts)
        values = _losses_of_windows(nats, n_bytes, length) | {
            "n_tokens_scored": len(nats) * length,
            "n_bytes_scored": int(n_bytes.sum()),
            "context_length": length,
        }
        if values["loss"] is not None:
            values["window_nats"] = packed(nats)
        sources = {
            source.name: _losses_of_windows(nats[part == i], n_bytes[part == i], length)
            for i, source in enumerate(prepared.parts)
            if source.name and (part == i).any()
        }
        return values | ({"by_source": sources} if sources else {})


def _losses_of_windows(nats: np.ndarray, n_bytes: np.ndarray, length: int) -> dict[str, Any]:
    total = math.fsum(nats) if np.isfinite(nats).all() else math.nan
    return losses(total, len(nats) * length, int(n_bytes.sum())) | {"n_windows": len(nats)}


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
    """exp(nats), None where it is not finite or beyond float64."""
    return math.exp(nats) if math.isfinite(nats) and nats < 700 else None


make = Validation
