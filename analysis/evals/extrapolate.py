"""Perplexity against context length, up to 16 times the training length.

One span of text is cut into windows of each length in turn, so that every length scores the very same tokens and only
what they see differs: a token of a window of n tokens has between 1 and n tokens before it. Where a length does not
divide the longest, the last of its windows in each of the longest is moved back to be whole, and only tokens that no
earlier window scored count. The mean over lengths is the "avg" of HGRN's table (Qin et al. 2023, table 14).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
from .perplexity import read_text, spans, tokenized
from .task import Plan, Reader, Say, Settings, Task
from .validation import exp_or_none

SHORTEST, FACTOR = 512, 16


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
    doublings = {context_length * 2**k for k in range(1 + int(math.log2(FACTOR)))}
    below = {SHORTEST * 2**k for k in range(40) if SHORTEST * 2**k < context_length}
    return sorted(doublings | below)


@dataclass(frozen=True)
class Grid:
    """wanted: the lengths asked for; lengths: those that every part of the text has; starts: where windows of the
    longest begin, of a mixture in its proportions."""

    wanted: list[int]
    lengths: list[int]
    starts: Sequence[int] | np.ndarray

    @property
    def longest(self) -> int:
        return self.lengths[-1]


class Extrapolate(Task):
    version = 5  # every length scores the same tokens, of texts with line ends as they are
    Chosen = ExtrapolateSettings

    @cached_property
    def _path(self) -> Path:
        return self.context.data_file(self.name, self.chosen.file)

    def data_path(self) -> Path | None:
        return self._path if self.chosen.file else None

    def data_hash(self) -> str:
        from data.corpus import open_corpus

        if not self.chosen.file:
            return open_corpus(self.context.corpus).fingerprint
        read_text(self._path, self.name)
        return sha256(self._path)

    def _grid(self, context_length: int, parts: Sequence[Part]) -> Grid:
        """Raises InputError where the text is too short for all lengths."""
        n_text = min(part.n_tokens for part in parts)
        wanted = sorted(set(self.chosen.lengths or default_lengths(context_length)))
        lengths = [n for n in wanted if n < n_text]
        if not lengths:
            raise InputError(
                f"{self.name}: the text has {n_text:,} tokens, too few for one window of {wanted[0]:,}: give more "
                f"text, or evaluation.settings.{self.name}.lengths"
            )
        longest = lengths[-1]
        if len(parts) > 1:
            return Grid(wanted, lengths, window_starts(parts, longest, self.chosen.n_tokens))
        n_windows = min((n_text - 1) // longest, max(1, self.chosen.n_tokens // longest))
        return Grid(wanted, lengths, range(0, n_windows * longest, longest))

    def plan(self, reader: Reader) -> Plan:
        if self.chosen.file:
            parts, estimate = whole(1 + reader.tokens_of(self._path.stat().st_size)), reader.estimate
        elif reader.held_out is not None:
            parts, estimate = list(reader.held_out), ""
        else:
            parts, estimate = whole(1 << 62), "there is no corpus yet"
        grid = self._grid(reader.context_length, parts)
        windows = {length: -(-grid.longest // length) * len(grid.starts) for length in grid.lengths}
        n_tokens = sum(length * n for length, n in windows.items())
        return Plan(n_tokens, sum(windows.values()), f"windows of {counted(len(windows), 'length')}", estimate)

    def check(self, reader: Reader) -> None:
        if self.chosen.file or reader.held_out is not None:
            self.plan(reader)

    def prepare(self, tokenizer: Tokenizer) -> tuple[Any, list[Part]]:
        """Token ids and their parts; in front of a file's text stands end-of-text."""
        from data.corpus import open_corpus

        if not self.chosen.file:
            corpus = open_corpus(self.context.corpus)
            return corpus.validation, corpus.parts("validation")
        ids = tokenized(read_text(self._path, self.name), tokenizer).ids
        return ids, whole(len(ids))

    def evaluate(self, model: LoadedModel, prepared: tuple[Any, list[Part]], say: Say) -> dict[str, Any]:
        """The result's values: perplexity@N for each length N. Lengths beyond the text are left out and counted."""
        tokens, parts = prepared
        grid = self._grid(model.context_length, parts)
        longest, n_windows = grid.longest, len(grid.starts)
        perplexity: dict[int, float | None] = {}
        n_read, n_all = 0, sum(-(-longest // length) * length for length in grid.lengths) * n_windows
        for length in grid.lengths:
            offsets, n_new = map(np.array, zip(*spans(longest, length, length), strict=True))
            starts = np.concatenate([start + offsets for start in grid.starts])
            nats = []
            for rows in batches(tokens, starts, length, max(1, self.chosen.batch_tokens // length)):
                nats.append(token_nats(model, rows))
                n_read += rows[:, 1:].size
                say(n_read / n_all)
            counts = np.arange(length) >= length - np.tile(n_new, n_windows)[:, None]
            perplexity[length] = exp_or_none(float(np.concatenate(nats)[counts].mean(dtype=float)))
        finite = [value for value in perplexity.values() if value is not None]
        return {
            **{f"perplexity@{length}": value for length, value in perplexity.items()},
            "perplexity_avg": float(np.mean(finite)) if len(finite) == len(perplexity) else None,
            "n_tokens_scored": n_windows * longest,
            "n_lengths_left_out": len(grid.wanted) - len(grid.lengths),
            "lengths_left_out": grid.wanted[len(grid.lengths) :],
            "context_length": model.context_length,
            "extrapolated": longest > model.context_length,
            "warnings": model.warnings_at(longest),
        }


make = Extrapolate
