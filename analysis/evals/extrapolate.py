"""Perplexity against context length, up to 16 times the training length, and loss by position.

One span of text is cut into windows of each length in turn, so that every length scores the very same tokens and only
what they see differs: a token of a window of n tokens has between 1 and n tokens before it. Where a length does not
divide the longest, the last of its windows in each of the longest is moved back to be whole, and only tokens that no
earlier window scored count. The mean over lengths is the "avg" of HGRN's table (Qin et al. 2023, table 14). Loss by
position is that of the longest windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from arch.amounts import counted
from arch.errors import InputError
from data.files import sha256
from data.mixture import Part, whole
from data.tokenizer import Tokenizer
from data.windows import batches, window_starts
from scaling.study.types import Count, Distinct

from .model import LoadedModel, token_nats
from .perplexity import read_text, spans
from .planning import Planned, Reader, by_tokenizer
from .task import Say, Settings, TaskContext
from .validation import exp_or_none

SHORTEST, FACTOR = 512, 16
BINS_PER_OCTAVE = 4


class ExtrapolateSettings(Settings):
    """lengths: tokens, null for doublings from 512 (or the training length, where that is shorter) to 16 times the
    training length; n_tokens: scored at each length, rounded to windows of the longest, at least one; file: below the
    data folder, null for the corpus' validation split; batch_tokens: of a forward pass, at least one window."""

    lengths: Annotated[list[Count], Distinct] | None = None
    n_tokens: Count = 131_072
    file: str | None = None
    batch_tokens: Count = 16_384


def default_lengths(context_length: int) -> list[int]:
    """The lengths without settings, ascending; the training length is one of them."""
    longest = FACTOR * context_length
    doublings = {context_length * 2**k for k in range(5)}
    below = {SHORTEST * 2**k for k in range(40) if SHORTEST * 2**k < context_length}
    return sorted(n for n in doublings | below if n <= longest)


class Extrapolate:
    def __init__(self, name: str, context: TaskContext) -> None:
        self.name, self._place, self._settings = name, context, context.settings_of(name, ExtrapolateSettings)
        # of a file 1: line ends of other systems were read as newlines
        self.version = 2 if self._settings.file else 1
        if any(longer % length for length, longer in combinations(sorted(self._settings.lengths or []), 2)):
            self.version += 2  # before: the lengths scored other tokens

    @cached_property
    def _path(self) -> Any:
        return self._place.data_file(self.name, self._settings.file or "", fetch="")

    def settings(self) -> dict[str, Any]:
        return self._settings.model_dump()

    def data_path(self) -> Path | None:
        return Path(self._path) if self._settings.file else None

    def data_hash(self) -> str:
        from data.corpus import open_corpus

        if not self._settings.file:
            return open_corpus(self._place.corpus).fingerprint
        read_text(self._path, self.name)
        return sha256(self._path)

    def _grid(
        self, context_length: int, parts: Sequence[Part]
    ) -> tuple[list[int], list[int], Sequence[int] | np.ndarray]:
        """(the lengths asked for, those that every part of the text has, where windows of the longest begin: of a
        mixture in its proportions). Raises InputError where the text is too short for all."""
        n_text = min(part.n_tokens for part in parts)
        wanted = sorted(set(self._settings.lengths or default_lengths(context_length)))
        lengths = [n for n in wanted if n < n_text]
        if not lengths:
            raise InputError(
                f"{self.name}: the text has {n_text:,} tokens, too few for one window of {wanted[0]:,}: give "
                f"more text, or evaluation.settings.{self.name}.lengths"
            )
        longest = lengths[-1]
        if len(parts) > 1:
            return wanted, lengths, window_starts(parts, longest, self._settings.n_tokens)
        n_windows = min((n_text - 1) // longest, max(1, self._settings.n_tokens // longest))
        return wanted, lengths, range(0, n_windows * longest, longest)

    def planned(self, reader: Reader) -> Planned:
        if self._settings.file:
            parts, estimate = whole(1 + reader.tokens_of(self._path.stat().st_size)), by_tokenizer(reader)
        elif reader.held_out is not None:
            parts, estimate = list(reader.held_out), ""
        else:
            parts, estimate = whole(1 << 62), "there is no corpus yet"
        _, lengths, starts = self._grid(reader.context_length, parts)
        longest, n_windows = lengths[-1], len(starts)
        each = [-(-longest // length) * n_windows for length in lengths]
        tokens = sum(count * length for count, length in zip(each, lengths, strict=True))
        return Planned(tokens, sum(each), f"windows of {counted(len(lengths), 'length')}", estimate)

    def check(self, reader: Reader) -> None:
        if self._settings.file or reader.held_out is not None:
            self.planned(reader)

    def prepare(self, tokenizer: Tokenizer) -> tuple[Any, list[Part]]:
        """Token ids and their parts; in front of a file's text stands end-of-text."""
        from data.corpus import open_corpus

        if not self._settings.file:
            corpus = open_corpus(self._place.corpus)
            return corpus.validation, corpus.parts("validation")
        ids = tokenizer.encode_array(read_text(self._path, self.name)).astype(np.int64)
        return np.concatenate([[tokenizer.eot_id], ids]), whole(1 + len(ids))

    def evaluate(self, model: LoadedModel, prepared: tuple[Any, list[Part]], say: Say) -> dict[str, Any]:
        """The result's values: perplexity@N for each length N, by_length and by_position. Lengths beyond the text are
        left out and counted."""
        tokens, parts = prepared
        wanted, lengths, starts = self._grid(model.context_length, parts)
        longest, n_windows = lengths[-1], len(starts)
        by_length, read, last = [], 0, np.empty((0, 0))
        all_tokens = sum(-(-longest // length) * length for length in lengths) * n_windows
        for length in lengths:
            offsets, new = map(np.array, zip(*spans(longest, length, length), strict=True))
            inner = np.concatenate([start + offsets for start in starts])
            rows = max(1, self._settings.batch_tokens // length)
            nats = []
            for batch in batches(tokens, inner, length, rows):
                nats.append(token_nats(model, batch))
                read += batch[:, 1:].size
                say(read / all_tokens, f"context {length:,}")
            last = np.concatenate(nats)
            counts = np.arange(length) >= length - np.tile(new, n_windows)[:, None]
            by_length.append(self._row(length, last[counts], model.context_length))
        finite = [row["perplexity"] for row in by_length if row["perplexity"] is not None]
        return {
            **{f"perplexity@{row['length']}": row["perplexity"] for row in by_length},
            "perplexity_avg": float(np.mean(finite)) if len(finite) == len(by_length) else None,
            "n_tokens_scored": n_windows * longest,
            "n_lengths_left_out": len(wanted) - len(lengths),
            "lengths_left_out": wanted[len(lengths) :],
            "context_length": model.context_length,
            "extrapolated": longest > model.context_length,
            "by_length": by_length,
            "by_position": by_position(last, model.context_length),
            "warnings": model.warnings_at(longest),
        }

    @staticmethod
    def _row(length: int, nats: np.ndarray, context_length: int) -> dict[str, Any]:
        loss = float(nats.mean(dtype=float))
        return {
            "length": length,
            "loss": loss if math.isfinite(loss) else None,
            "perplexity": exp_or_none(loss) if math.isfinite(loss) else None,
            "n_tokens_scored": nats.size,
            "extrapolated": length > context_length,
        }


def by_position(nats: np.ndarray, context_length: int) -> list[dict[str, Any]]:
    """Mean loss of nats [windows, T] over ranges of positions, four for each octave. A position, from 1 on, is the
    number of tokens read when a token is predicted."""
    length = nats.shape[1]
    edges = {1, length + 1} | {round(2 ** (k / BINS_PER_OCTAVE)) for k in range(int(4 * math.log2(length)))}
    ordered = sorted(edge for edge in edges if edge <= length + 1)
    rows = []
    for first, end in pairwise(ordered):
        loss = float(nats[:, first - 1 : end - 1].mean(dtype=float))
        rows.append(
            {
                "first": first,
                "last": end - 1,
                "loss": loss if math.isfinite(loss) else None,
                "n_tokens_scored": nats.shape[0] * (end - first),
                "extrapolated": end - 1 > context_length,
            }
        )
    return rows


make = Extrapolate
