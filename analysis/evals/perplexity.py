"""Perplexity of a text (WikiText-2's test split by default): every token scored once, in fixed windows.

The text is one stream, end-of-text before its first token; the rows of a JSONL file follow each other. A window is
`window` tokens long (the training length unless settings say otherwise) and begins `stride` tokens after the one before
it (default: a window, so none overlaps); of each, only the tokens that no earlier window scored count. The last window
is moved back to be whole. The sum of nats is divided by tokens (depends on the tokenizer), by bytes and by words of the
text (do not). Words are runs of characters that are not white space. Raw text: lm-eval's `wikitext` cleans it and reads
it by article, so the two differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import model_validator

from arch.errors import InputError
from data.files import reading, regular, sha256
from data.json_lines import are_json_rows, json_rows
from data.sources.content import BOM
from data.tokenizer import Tokenizer
from scaling.study.types import Count

from .model import LoadedModel, token_nats
from .task import Plan, Reader, Say, Settings, Task
from .validation import exp_or_none, losses

WIKITEXT = "wikitext/test.jsonl"  # as `scaling eval fetch` writes it


def read_text(path: Path, task: str, text_key: str | None = None) -> str:
    """The text at `path`. Of JSON lines, where there is a `text_key`, it is the texts of the rows with nothing between
    them. Raises InputError for a missing file, one that is not UTF-8 or has no text, a row that is no record or has no
    such text, and for JSON lines without a `text_key`."""
    with reading(f"{task}: {path}", "give a text file"):
        content = regular(path).read_bytes()
    if path.suffix == ".jsonl" or are_json_rows(content):
        if text_key is None:
            raise InputError(f"{task}: {path} holds JSON lines, which this task does not read; give plain text")
        text = "".join(_rows(content, path, task, text_key))
    else:
        try:
            text = content.removeprefix(BOM).decode("utf-8")  # as a corpus is read: line ends stay, and count as bytes
        except UnicodeDecodeError as error:
            raise InputError(f"{task}: {path} is not UTF-8 text ({error.reason}); give another file") from None
    if not text.strip():
        raise InputError(f"{task}: {path} holds no text; give another file")
    return text


def _rows(content: bytes, path: Path, task: str, key: str) -> Iterator[str]:
    for number, row in json_rows(content.split(b"\n"), f"{task}: {path}"):
        if not isinstance(row, dict) or not isinstance(row.get(key), str):
            has = f"; it has {', '.join(row)}" if isinstance(row, dict) and row else ""
            raise InputError(
                f"{task}: {path}: line {number} has no text {key!r}{has}: name the column in "
                f"evaluation.settings.{task}.text_key"
            )
        yield row[key]


class PerplexitySettings(Settings):
    """file: plain text or .jsonl, below the data folder unless absolute; text_key: the column of a .jsonl file; window,
    stride: in tokens, null for the training length and for the window."""

    file: str = WIKITEXT
    text_key: str = "page"
    window: Count | None = None
    stride: Count | None = None
    batch_rows: Count = 16

    @model_validator(mode="after")
    def _fits(self) -> PerplexitySettings:
        if self.window and self.stride and self.stride > self.window:
            raise ValueError(_too_far(self.stride, self.window))
        return self


def _too_far(stride: int, window: int) -> str:
    return (
        f"stride {stride} is larger than the window of {window} tokens, so some tokens would never be scored: give at "
        f"most the window"
    )


@dataclass(frozen=True)
class Text:
    """A tokenised text. ids: end-of-text, then the text's tokens; n_bytes, n_words: of the text."""

    ids: np.ndarray
    n_bytes: int
    n_words: int


def tokenized(text: str, tokenizer: Tokenizer) -> Text:
    ids = np.concatenate([[tokenizer.eot_id], tokenizer.encode_array(text).astype(np.int64)])
    return Text(ids, len(text.encode()), len(text.split()))


def spans(n_targets: int, window: int, stride: int) -> Iterator[tuple[int, int]]:
    """(start, n_scored) of each window over ids[0 .. n_targets]: it predicts ids[start + 1 .. start + window], of which
    the last `n_scored` count. Each of the n_targets is scored once."""
    window = min(window, n_targets)
    done = 0
    while done < n_targets:
        end = min(n_targets, done + stride) if done else window
        yield end - window, end - done
        done = end


class Perplexity(Task):
    version = 2
    Chosen = PerplexitySettings

    @cached_property
    def _path(self) -> Path:
        file = self.chosen.file
        return self.context.data_file(self.name, file, "wikitext" if file == WIKITEXT else "")

    def data_path(self) -> Path:
        return self._path

    def data_hash(self) -> str:
        self._text()
        return sha256(self._path)

    def plan(self, reader: Reader) -> Plan:
        window, stride = self._windows(reader.context_length)
        n_tokens = reader.tokens_of(len(self._text().encode()))
        n_windows = sum(1 for _ in spans(n_tokens, window, stride))
        return Plan(n_windows * min(window, n_tokens), n_windows, "windows", reader.estimate)

    def check(self, reader: Reader) -> None:
        self._windows(reader.context_length)

    def prepare(self, tokenizer: Tokenizer) -> Text:
        return tokenized(self._text(), tokenizer)

    def _text(self) -> str:
        return read_text(self._path, self.name, self.chosen.text_key)

    def _windows(self, context_length: int) -> tuple[int, int]:
        """Window and stride. Raises InputError where the stride is larger than the window."""
        window = self.chosen.window or context_length
        stride = self.chosen.stride or window
        if stride > window:
            raise InputError(f"evaluation.settings.{self.name}: {_too_far(stride, window)}")
        return window, stride

    def evaluate(self, model: LoadedModel, prepared: Text, say: Say) -> dict[str, Any]:
        window, stride = self._windows(model.context_length)
        n_tokens = len(prepared.ids) - 1
        windows = list(spans(n_tokens, window, stride))
        window = min(window, n_tokens)
        nats, step = 0.0, self.chosen.batch_rows
        for first in range(0, len(windows), step):
            batch = windows[first : first + step]
            rows = token_nats(model, np.stack([prepared.ids[s : s + window + 1] for s, _ in batch]))
            nats += sum(float(row[-n:].sum(dtype=float)) for row, (_, n) in zip(rows, batch, strict=True))
            say((first + len(batch)) / len(windows))
        return losses(nats, n_tokens, prepared.n_bytes) | {
            "byte_perplexity": exp_or_none(nats / prepared.n_bytes),
            "word_perplexity": exp_or_none(nats / prepared.n_words),
            "n_tokens_scored": n_tokens,
            "n_bytes_scored": prepared.n_bytes,
            "n_words_scored": prepared.n_words,
            "n_windows": len(windows),
            "window": window,
            "stride": stride,
            "extrapolated": window > model.context_length,
        }


make = Perplexity
