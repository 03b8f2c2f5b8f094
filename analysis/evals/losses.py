"""Losses on fixed windows: the held-out loss, the perplexity of a text, and perplexity against context length.

- validation: the corpus' held-out text in windows of the training length, spread evenly over it. The sum of nats of
  each window is kept, so that two checkpoints can be compared window by window (analysis.held_out).
- perplexity: a text (WikiText-2's test split by default) as one stream, end-of-text before its first token; the rows of
  a JSONL file follow each other. Windows begin `stride` tokens apart, and of each only the tokens count that no earlier
  window scored; the last is moved back to be whole. The sum is divided by tokens (depends on the tokenizer), by bytes
  and by words, which are runs of characters that are not white space. Raw text: lm-eval's `wikitext` cleans it and
  reads it by article, so the two differ.
- extrapolate: spans of a text, cut into windows of each length in turn, so that every length scores the very same
  tokens and only what they see differs: a token of a window of n tokens has between 1 and n tokens before it. The mean
  over lengths is the "avg" of HGRN's table (Qin et al. 2023, table 14).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from arch.errors import InputError
from data.files import reading, regular, sha256
from data.json_lines import are_json_rows, json_rows
from data.mixture import Part, whole
from data.sources.content import BOM
from data.tokenizer import Tokenizer
from data.windows import batches, packed, part_of, window_starts
from scaling.study.types import Count, Distinct

from .model import LoadedModel, token_nats
from .task import Reader, Settings, Task

WIKITEXT = "wikitext/test.jsonl"  # as `scaling eval fetch` writes it
SHORTEST, FACTOR = 512, 16  # context lengths of `extrapolate`: tokens, and times the training length
FileName = Annotated[str, Field(min_length=1)]
Span = tuple[int, int]  # start of a window, and how many of its last tokens count


@dataclass(frozen=True)
class Text:
    """A tokenised text. parts: of a mixture, or the whole; text: what was tokenised, "" for the corpus' held-out
    text."""

    tokens: Any
    parts: Sequence[Part]
    text: str = ""


class OfText(Task):
    """A task of the corpus' held-out text, or of a text file where its settings name one."""

    @cached_property
    def path(self) -> Path | None:
        file = getattr(self.chosen, "file", None)
        if file == WIKITEXT:
            return self.context.fetched_file(self.name, file, "wikitext")
        return file and self.context.data_file(self.name, file)

    def data_path(self) -> Path | None:
        """None: duplicates of the held-out text in the training text were cut when the corpus was made."""
        return self.path

    def data_hash(self) -> str:
        from data.corpus import open_corpus

        if self.path is None:
            return open_corpus(self.context.corpus).fingerprint
        read_text(self.path, self.name, getattr(self.chosen, "text_key", None))
        return sha256(self.path)

    def parts(self, reader: Reader) -> Sequence[Part] | None:
        """The text's parts, of a file by its size alone; None before there is a corpus."""
        return whole(1 + reader.tokens_of(self.path.stat().st_size)) if self.path else reader.held_out

    def prepare(self, tokenizer: Tokenizer) -> Text:
        from data.corpus import open_corpus

        if self.path is None:
            from .hf_model import retokenised

            return Text(*retokenised(open_corpus(self.context.corpus), tokenizer))
        text = read_text(self.path, self.name, getattr(self.chosen, "text_key", None))
        ids = np.concatenate([[tokenizer.eot_id], tokenizer.encode_array(text).astype(np.int64)])
        return Text(ids, whole(len(ids)), text)


def read_text(path: Path, task: str, text_key: str | None = None) -> str:
    """The text at `path`. Of JSON lines, where there is a `text_key`, it is the texts of the rows with nothing between
    them. Raises InputError for a missing file, one that is not UTF-8 or has no text, a row that is no record or has no
    such text, and for JSON lines without a `text_key`."""
    with reading(f"{task}: {path}", "give a text file"):
        content = regular(path).read_bytes()
    if path.suffix == ".jsonl" or are_json_rows(content):
        if text_key is None:
            raise InputError(f"{task}: {path} holds JSON lines, which this task does not read; give plain text")
        text = "".join(_rows(content, f"{task}: {path}", text_key))
    else:
        try:
            text = content.removeprefix(BOM).decode("utf-8")  # as a corpus is read: line ends stay, and count as bytes
        except UnicodeDecodeError as error:
            raise InputError(f"{task}: {path} is not UTF-8 text ({error.reason}); give another file") from None
    if not text.strip():
        raise InputError(f"{task}: {path} holds no text; give another file")
    return text


def _rows(content: bytes, where: str, key: str) -> Iterator[str]:
    for number, row in json_rows(content.split(b"\n"), where):
        if not isinstance(row, dict) or not isinstance(row.get(key), str):
            has = f"; it has {', '.join(row)}" if isinstance(row, dict) and row else ""
            raise InputError(f"{where}: line {number} has no text {key!r}{has}: name the column as text_key")
        yield row[key]


def spans(n_targets: int, window: int, stride: int) -> Iterator[Span]:
    """The windows over ids[0 .. n_targets]: one that begins at s predicts ids[s + 1 .. s + window]. Each of the
    n_targets is scored once."""
    done = 0
    while done < n_targets:
        end = min(n_targets, done + stride) if done else window
        yield end - window, end - done
        done = end


def scored(model: LoadedModel, tokens: Any, windows: Sequence[Span], length: int, rows: int) -> Iterator[np.ndarray]:
    """Of each window of `length` tokens the nats of those of its tokens that count. rows: of a forward pass."""
    counts = iter(windows)
    for batch in batches(tokens, [start for start, _ in windows], length, rows):
        for nats in token_nats(model, batch):
            _, n_new = next(counts)
            yield nats[length - n_new :]


def losses(nats: float, n_tokens: int, n_bytes: int) -> dict[str, Any]:
    """loss (nats a token), perplexity and bits_per_byte of a sum of nats; null where they are no finite number."""
    loss = nats / n_tokens
    if not math.isfinite(loss):
        return {"loss": None, "perplexity": None, "bits_per_byte": None, "reason": "the loss is not finite"}
    bits = nats / math.log(2) / n_bytes if n_bytes else None
    return {"loss": loss, "perplexity": exp_or_none(loss), "bits_per_byte": bits}


def exp_or_none(nats: float) -> float | None:
    """exp(nats), None where it is not finite or beyond float64."""
    return math.exp(nats) if math.isfinite(nats) and nats < 700 else None


class ValidationSettings(Settings):
    """validation_tokens: of the split, rounded down to whole windows, at least one; batch_rows: of a forward pass. Both
    stand in `evaluation` of the study file."""

    validation_tokens: int = 65_536
    batch_rows: int = 16


class Validation(OfText):
    version = 3
    Chosen = ValidationSettings

    def forward_tokens(self, reader: Reader) -> int:
        length, wanted = reader.context_length, self.chosen.validation_tokens
        if reader.held_out is None:
            return max(1, wanted // length) * length
        return len(window_starts(reader.held_out, length, wanted)) * length

    def evaluate(self, model: LoadedModel, prepared: Text) -> dict[str, Any]:
        """`loss` is the mean over all scored tokens in nats; null, with `reason`, where it is not finite.

        `by_source`: of a mixture the same of each source's windows. `window_nats`: the sum over each window, as
        data.windows.packed writes it; missing where a sum is not finite.
        """
        length, tokens, bytes_of = model.context_length, prepared.tokens, model.tokenizer.n_bytes
        starts = window_starts(prepared.parts, length, self.chosen.validation_tokens)
        windows = [(start, length) for start in starts.tolist()]
        rows = list(scored(model, tokens, windows, length, self.chosen.batch_rows))
        nats, targets = np.array([row.sum(dtype=float) for row in rows]), np.array([len(row) for row in rows])
        n_bytes = np.array([bytes_of[tokens[start : start + 1 + length][1:]].sum() for start, _ in windows])

        def of(chosen: np.ndarray) -> dict[str, Any]:
            total = math.fsum(nats[chosen]) if np.isfinite(nats[chosen]).all() else math.nan
            n_windows = int(chosen.sum())
            return losses(total, int(targets[chosen].sum()), int(n_bytes[chosen].sum())) | {"n_windows": n_windows}

        values = of(np.ones(len(nats), dtype=bool)) | {
            "n_tokens_scored": int(targets.sum()),
            "n_bytes_scored": int(n_bytes.sum()),
            "context_length": length,
        }
        if values["loss"] is not None:
            values["window_nats"] = packed(nats)
        part = part_of(prepared.parts, starts)
        sources = {
            source.name: of(part == i) for i, source in enumerate(prepared.parts) if source.name and (part == i).any()
        }
        return values | ({"by_source": sources} if sources else {})


class PerplexitySettings(Settings):
    """file: plain text or .jsonl, below the data folder unless absolute; text_key: the column of a .jsonl file; window,
    stride: in tokens, null for the training length and for the window."""

    file: FileName = WIKITEXT
    text_key: str = "page"
    window: Count | None = None
    stride: Count | None = None
    batch_rows: Count = 16


class Perplexity(OfText):
    version = 2
    Chosen = PerplexitySettings

    def _windows(self, context_length: int, n_tokens: int) -> tuple[int, list[Span]]:
        """The length of a window, and all of them. Raises InputError where the stride is larger than a window."""
        window = self.chosen.window or context_length
        stride = self.chosen.stride or window
        if stride > window:
            raise InputError(
                f"evaluation.settings.{self.name}: stride {stride} is larger than the window of {window} tokens, so "
                f"some tokens would never be scored: give at most the window"
            )
        window = min(window, n_tokens)
        return window, list(spans(n_tokens, window, stride))

    def forward_tokens(self, reader: Reader) -> int:
        (part,) = self.parts(reader) or ()
        window, windows = self._windows(reader.context_length, part.n_tokens - 1)
        return len(windows) * window

    def check(self, reader: Reader) -> None:
        self._windows(reader.context_length, 1)

    def evaluate(self, model: LoadedModel, prepared: Text) -> dict[str, Any]:
        n_tokens, n_bytes, n_words = len(prepared.tokens) - 1, len(prepared.text.encode()), len(prepared.text.split())
        window, windows = self._windows(model.context_length, n_tokens)
        rows = scored(model, prepared.tokens, windows, window, self.chosen.batch_rows)
        nats = sum(float(row.sum(dtype=float)) for row in rows)
        return losses(nats, n_tokens, n_bytes) | {
            "byte_perplexity": exp_or_none(nats / n_bytes),
            "word_perplexity": exp_or_none(nats / n_words),
            "n_tokens_scored": n_tokens,
            "n_bytes_scored": n_bytes,
            "n_words_scored": n_words,
            "n_windows": len(windows),
            "window": window,
            "extrapolated": window > model.context_length,
        }


class ExtrapolateSettings(Settings):
    """lengths: tokens, null for doublings from 512 (or the training length, where that is shorter) to 16 times the
    training length; n_tokens: scored at each length, rounded to windows of the longest, at least one; file: below the
    data folder, null for the corpus' validation split; batch_tokens: of a forward pass, at least one window."""

    lengths: Annotated[list[Count], Distinct] | None = None
    n_tokens: Count = 131_072
    file: FileName | None = None
    batch_tokens: Count = 16_384


def default_lengths(context_length: int) -> list[int]:
    """The lengths without settings, ascending; the training length is one of them."""
    doublings = {context_length * 2**k for k in range(1 + int(math.log2(FACTOR)))}
    below = {SHORTEST * 2**k for k in range(40) if SHORTEST * 2**k < context_length}
    return sorted(doublings | below)


class Extrapolate(OfText):
    version = 7  # bits a byte too; every length scores the same tokens, of spans that are spread over the text
    Chosen = ExtrapolateSettings

    def _lengths(self, context_length: int) -> list[int]:
        return sorted(self.chosen.lengths or default_lengths(context_length))

    def _windows(self, wanted: Iterable[int], parts: Sequence[Part]) -> dict[int, list[Span]]:
        """By length, of those that every part has. Raises InputError where the text is too short for all."""
        n_text = min(part.n_tokens for part in parts)
        lengths = [n for n in wanted if n < n_text]
        if not lengths:
            raise InputError(
                f"{self.name}: the text has {n_text:,} tokens, too few for one window of {min(wanted):,}: give more "
                f"text, or evaluation.settings.{self.name}.lengths"
            )
        starts = window_starts(parts, lengths[-1], self.chosen.n_tokens).tolist()
        return {n: [(start + at, new) for start in starts for at, new in spans(lengths[-1], n, n)] for n in lengths}

    def forward_tokens(self, reader: Reader) -> int:
        wanted = self._lengths(reader.context_length)
        windows = self._windows(wanted, self.parts(reader) or whole(1 << 62))
        return sum(length * len(of_length) for length, of_length in windows.items())

    def check(self, reader: Reader) -> None:
        if parts := self.parts(reader):
            self._windows(self._lengths(reader.context_length), parts)

    def evaluate(self, model: LoadedModel, prepared: Text) -> dict[str, Any]:
        """perplexity@N and bits_per_byte@N for each length N. Lengths beyond the text are left out and counted."""
        wanted = self._lengths(model.context_length)
        windows = self._windows(wanted, prepared.parts)
        longest = max(windows)
        read, bytes_of = prepared.tokens, model.tokenizer.n_bytes
        n_bytes = sum(int(bytes_of[read[at + 1 : at + 1 + longest]].sum()) for at, _ in windows[longest])
        perplexity, bits = dict[str, float | None](), dict[str, float | None]()
        for length, of_length in windows.items():
            rows = max(1, self.chosen.batch_tokens // length)
            nats = np.concatenate(list(scored(model, prepared.tokens, of_length, length, rows)))
            values = losses(float(nats.sum(dtype=float)), len(nats), n_bytes)
            perplexity[f"perplexity@{length}"] = values["perplexity"]
            bits[f"bits_per_byte@{length}"] = values["bits_per_byte"]
        finite = [value for value in perplexity.values() if value is not None]
        return {
            **perplexity,
            **bits,
            "perplexity_avg": float(np.mean(finite)) if len(finite) == len(perplexity) else None,
            "n_tokens_scored": len(nats),
            "lengths_left_out": wanted[len(windows) :],
            "context_length": model.context_length,
            "extrapolated": longest > model.context_length,
            "warnings": model.warnings_at(longest),
        }
