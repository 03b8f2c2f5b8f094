"""Needle in a haystack as an evaluation: niah-easy, niah-standard, and both with -facts and -zh behind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.evals.model import LoadedModel
from analysis.evals.planning import Planned, Reader
from analysis.evals.task import MissingData, Say, TaskContext
from arch.errors import InputError
from flops import decode_state

from .prompts import Prompts, folder_hash, make_prompts, read_haystack, text_bytes, text_files, too_little, too_short
from .scores import measures, score, shares
from .settings import CPU_STATE_BYTES, VARIANTS, NiahSettings

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer


class Niah:
    version = 1

    def __init__(self, name: str, context: TaskContext) -> None:
        self.name, self.context = name, context
        self._hash: str | None = None
        self.variant, self.chosen = VARIANTS[name], context.settings_of(name, NiahSettings)

    def settings(self) -> dict[str, Any]:
        return self.chosen.model_dump(mode="json", exclude={"haystack"})  # the data hash knows what lies there

    def folder(self) -> Path:
        """The haystack's folder. Raises MissingData where it is missing."""
        named = self.chosen.haystack
        if self.context.data is None and not (named and Path(named).expanduser().is_absolute()):
            return self.context.data_file(self.name, named or self.variant.data)
        folder = (self.context.data or Path()) / Path(named or self.variant.data).expanduser()  # maybe absolute
        if not folder.is_dir():
            raise MissingData(
                f"{self.name}: {folder} is not a folder; put text into it (.txt; LLMTest_NeedleInAHaystack's "
                f"essays are the usual one), or name another as evaluation.settings.{self.name}.haystack"
            )
        return folder

    def data_path(self) -> Path:
        return self.folder()

    def data_hash(self) -> str:
        if self._hash is None:
            self._hash = folder_hash(self.folder())
        return self._hash

    def planned(self, reader: Reader) -> Planned:
        """The tokens of the haystack, once for each length and batch, of what follows the needle of each cell, and of
        whole answers."""
        tokens = 0
        lengths, depths = self.chosen.grid_lengths(), self.chosen.grid_depths()
        needle, question = (reader.tokens_of(n) for n in text_bytes(self.chosen, self.variant))
        for length in lengths:
            n_haystack = max(0, length - self.chosen.max_new_tokens - 1 - needle - question)
            state_bytes = decode_state(reader.config, length, 2 if reader.autocast else 4)["bytes"]
            n_batches = math.ceil(len(depths) / max(1, CPU_STATE_BYTES // state_bytes))
            behind = sum(n_haystack - n_haystack * min(depth, 100) // 100 for depth in depths)
            tokens += n_batches + n_haystack * (n_batches + 1) // 2 + behind  # a batch ends at its deepest needle
            tokens += len(depths) * (needle + question + self.chosen.max_new_tokens - 1)
        return Planned(
            tokens, len(lengths) * len(depths), "cells", "needles at ends of sentences, answers of any length"
        )

    def check(self, reader: Reader) -> None:
        """Where tokens are bytes: raise InputError where the shortest prompt has no room for needle, question and
        answer, or the haystack does not fill the longest prompt."""
        needle, question = text_bytes(self.chosen, self.variant)
        lengths, answer = self.chosen.grid_lengths(), self.chosen.max_new_tokens
        if not reader.exact:
            return
        if lengths[0] < needle + question + answer + 1:
            raise InputError(f"{self.name}: {too_short(lengths[0], needle + question + answer + 1)}")
        n_bytes = sum(path.stat().st_size + 2 for path in text_files(self.folder()))
        if (wanted := lengths[-1] - needle - question - answer - 1) > n_bytes:
            raise InputError(f"{self.name}: {too_little(n_bytes, wanted)}")

    def prepare(self, tokenizer: Tokenizer) -> Prompts:
        try:
            return make_prompts(self.chosen, self.variant, read_haystack(self.folder(), tokenizer), tokenizer)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    def evaluate(self, model: LoadedModel, prepared: Prompts, say: Say) -> dict[str, Any]:
        """The tables' columns in per cent (scores.py), the mean over lengths inside and beyond the training context,
        and the grid: `scores` 1..10 and `answers`, [n_lengths][n_depths].

        acc_shuffled: the same answers scored against the next cell's expected one, for facts: what guessing gives.
        """
        from .retrieve import generate_answers

        lengths = [column.length for column in prepared.columns]
        beyond = [length > model.context_length for length in lengths]
        answers: list[list[str]] = []
        for i, column in enumerate(prepared.columns):
            say(sum(lengths[:i]) / sum(lengths), f"length {column.length:,}")
            answers.append(generate_answers(model, prepared, column.cells, self.chosen.max_new_tokens))
        needles = [[cell.needle for cell in column.cells] for column in prepared.columns]
        scores = _scores(answers, needles)
        values = measures(scores, lengths, self.chosen.alpha_c, self.chosen.alpha_d, self.chosen.threshold)
        values |= {"acc_trained": _mean(scores, ~np.array(beyond)), "acc_extrapolated": _mean(scores, np.array(beyond))}
        if self.variant.facts:
            flat = [needle for row in needles for needle in row]
            shuffled = np.roll(np.array(flat, dtype=object), 1).reshape(scores.shape).tolist()
            values["acc_shuffled"] = 100 * float(shares(_scores(answers, shuffled)).mean())
        return values | {
            "extrapolated": any(beyond),
            "warnings": model.warnings_at(lengths[-1]),
            "context_length": model.context_length,
            "lengths": lengths,
            "depths_percent": [cell.depth_percent for cell in prepared.columns[0].cells],
            "scores": scores.tolist(),
            "answers": answers,
        }


def _scores(answers: list[list[str]], needles: list[list[Any]]) -> np.ndarray:
    return np.array(
        [
            [score(text, needle.answer, needle.question) for text, needle in zip(row, wanted, strict=True)]
            for row, wanted in zip(answers, needles, strict=True)
        ]
    )


def _mean(scores: np.ndarray, lengths: np.ndarray) -> float | None:
    return 100 * float(shares(scores)[lengths].mean()) if lengths.any() else None


make = Niah
