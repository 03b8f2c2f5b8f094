"""Needle in a haystack as an evaluation: niah-easy, niah-standard, and both with -facts and -zh behind."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.evals.model import LoadedModel
from analysis.evals.task import MissingData, Plan, Reader, Say, Task
from arch.errors import InputError

from .prompts import Prompts, folder_hash, make_prompts, read_haystack, text_bytes, text_files
from .scores import measures, score, shares
from .settings import VARIANTS, NiahSettings, Variant

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer


class Niah(Task):
    Chosen = NiahSettings

    @property
    def variant(self) -> Variant:
        return VARIANTS[self.name]

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.chosen.model_dump(mode="json", exclude={"haystack"})  # data_hash knows it
        return settings

    def data_path(self) -> Path:
        """The haystack's folder. Raises MissingData where it is missing."""
        name = str(Path(self.chosen.haystack or self.variant.data).expanduser())
        if self.context.data is None and not Path(name).is_absolute():
            return self.context.data_file(self.name, name)
        folder = (self.context.data or Path()) / name
        if not folder.is_dir():
            raise MissingData(
                f"{self.name}: {folder} is not a folder; put text into it (.txt; LLMTest_NeedleInAHaystack's "
                f"essays are the usual one), or name another as evaluation.settings.{self.name}.haystack"
            )
        return folder

    @cached_property
    def _hash(self) -> str:
        return folder_hash(self.data_path())

    def data_hash(self) -> str:
        return self._hash

    def check(self, reader: Reader) -> None:
        """As `prepare`, where a byte is a token; else only what a tokenizer twice as good or bad would not change."""
        slack, lengths = 1 if reader.exact else 2, self.chosen.grid_lengths()
        beside = sum(reader.tokens_of(n) for n in text_bytes(self.chosen, self.variant)) / slack
        beside += self.chosen.max_new_tokens + 1
        if lengths[0] < beside:
            raise InputError(
                f"{self.name}: a length of {lengths[0]} tokens leaves no room for needle, question and answer, which "
                f"need {beside:,.0f}: raise evaluation.settings.{self.name}.first_length"
            )
        files = text_files(self.data_path())
        there = reader.tokens_of(sum(path.stat().st_size + 2 for path in files) - 2) * slack
        if there < (needed := lengths[-1] - beside):
            raise InputError(
                f"{self.name}: the haystack has about {there:,} tokens and {needed:,.0f} are asked for: add text to "
                f"{self.data_path()}, or lower evaluation.settings.{self.name}.last_length"
            )

    def plan(self, reader: Reader) -> Plan:
        """The tokens of the haystack, once for each length, of what follows the needle of each cell, and of whole
        answers."""
        lengths, depths = self.chosen.grid_lengths(), self.chosen.grid_depths()
        needle, question = (reader.tokens_of(n) for n in text_bytes(self.chosen, self.variant))
        beside = needle + question + self.chosen.max_new_tokens - 1
        tokens = 0
        for length in lengths:
            n_haystack = max(0, length - beside - 2)
            behind = sum(n_haystack - n_haystack * depth // 100 for depth in depths)
            tokens += 1 + n_haystack + behind + len(depths) * beside
        return Plan(tokens, len(lengths) * len(depths), "cells", "needles at ends of sentences, answers of any length")

    def prepare(self, tokenizer: Tokenizer) -> Prompts:
        try:
            haystack = read_haystack(self.data_path(), tokenizer)
            return make_prompts(self.chosen, self.variant, haystack, tokenizer)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    def evaluate(self, model: LoadedModel, prepared: Prompts, say: Say) -> dict[str, Any]:
        """The tables' columns in per cent (scores.py), the mean over lengths inside and beyond the training context,
        and the grid: `scores` 1..10 and `answers`, [n_lengths][n_depths].

        acc_shuffled: the same answers scored against the next cell's expected one, for facts: what guessing gives.
        """
        from .retrieve import generate_answers

        lengths = [column.length for column in prepared.columns]
        beyond = np.array(lengths) > model.context_length
        answers: list[list[str]] = []
        for i, column in enumerate(prepared.columns):
            say(sum(lengths[:i]) / sum(lengths))
            answers.append(generate_answers(model, prepared, column.cells, self.chosen.max_new_tokens))
        needles = [[cell.needle for cell in column.cells] for column in prepared.columns]
        scores = _scores(answers, needles)
        values = measures(scores, lengths, self.chosen.alpha_c, self.chosen.alpha_d, self.chosen.threshold)
        values |= {"acc_trained": _mean(scores[~beyond]), "acc_extrapolated": _mean(scores[beyond])}
        if self.variant.facts:
            flat = np.array([needle for row in needles for needle in row], dtype=object)
            values["acc_shuffled"] = _mean(_scores(answers, np.roll(flat, 1).reshape(scores.shape).tolist()))
        return values | {
            "extrapolated": bool(beyond.any()),
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


def _mean(scores: np.ndarray) -> float | None:
    return 100 * float(shares(scores).mean()) if scores.size else None


make = Niah
