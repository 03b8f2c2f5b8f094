"""Needle in a haystack as an evaluation: niah-easy, niah-standard, and both with -facts behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.evals.model import LoadedModel
from analysis.evals.task import MissingData, Reader, Task, TaskContext
from arch.errors import InputError

from .prompts import Needle, Prompts, folder_hash, make_prompts, read_haystack
from .scores import measures, score, shares
from .settings import VARIANTS, NiahSettings

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer


class Niah(Task):
    Chosen = NiahSettings

    def __init__(self, name: str, context: TaskContext) -> None:
        super().__init__(name, context)
        self.variant = VARIANTS[name]
        self._prompts: dict[str, Prompts] = {}

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.chosen.model_dump(mode="json", exclude={"haystack"})  # data_hash knows it
        return settings

    def data_path(self) -> Path:
        """The haystack's folder. Raises MissingData where it is missing."""
        remedy = (
            f"put text into it (.txt; LLMTest_NeedleInAHaystack's essays are the usual one), or name another as "
            f"evaluation.settings.{self.name}.haystack"
        )
        folder = self.context.data_file(self.name, self.chosen.haystack or self.variant.data, remedy)
        if not folder.is_dir():
            raise MissingData(f"{self.name}: {folder} is not a folder: {remedy}")
        return folder

    def data_hash(self) -> str:
        with self._named():
            return folder_hash(self.data_path())

    def check(self, reader: Reader) -> None:
        """Makes the prompts, as soon as there is a tokenizer."""
        if reader.tokenizer is not None:
            self.prepare(reader.tokenizer)

    def forward_tokens(self, reader: Reader) -> int:
        """The haystack once for each length, and for each cell what follows the needle, on average half of it."""
        return round(sum(self.chosen.grid_lengths()) * (1 + len(self.chosen.grid_depths()) / 2))

    def prepare(self, tokenizer: Tokenizer) -> Prompts:
        if tokenizer.identity not in self._prompts:
            with self._named():
                haystack = read_haystack(self.data_path(), tokenizer, self.chosen.grid_lengths()[-1])
                prompts = make_prompts(self.chosen, self.variant, haystack, tokenizer)
                self._prompts[tokenizer.identity] = prompts
        return self._prompts[tokenizer.identity]

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors name the task."""
        try:
            yield
        except MissingData:
            raise
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    def evaluate(self, model: LoadedModel, prepared: Prompts) -> dict[str, Any]:
        """The tables' columns in per cent (scores.py), the mean over lengths inside and beyond the training context,
        and the grid: `scores` 1..10 and `answers`, [n_lengths][n_depths].

        acc_shuffled: the same answers scored against the next cell's expected one, for facts: what guessing gives.
        """
        from .retrieve import generate_answers

        lengths = list(prepared.columns)
        beyond = np.array(lengths) > model.context_length
        answers = [
            generate_answers(model, prepared, cells, self.chosen.max_new_tokens) for cells in prepared.columns.values()
        ]
        needles = [cell.needle for cells in prepared.columns.values() for cell in cells]
        scores = _scores(answers, needles)
        values = measures(scores, lengths, self.chosen.alpha_c, self.chosen.alpha_d, self.chosen.threshold)
        values |= {"acc_trained": _mean(scores[~beyond]), "acc_extrapolated": _mean(scores[beyond])}
        if self.variant.facts:
            values["acc_shuffled"] = _mean(_scores(answers, [needles[-1], *needles[:-1]]))
        return values | {
            "extrapolated": bool(beyond.any()),
            "warnings": model.warnings_at(lengths[-1]),
            "context_length": model.context_length,
            "lengths": lengths,
            "depths_percent": self.chosen.grid_depths(),
            "scores": scores.tolist(),
            "answers": answers,
        }


def _scores(answers: list[list[str]], needles: list[Needle]) -> np.ndarray:
    """[n_lengths, n_depths]; needles: of all cells, length by length."""
    given = [answer for row in answers for answer in row]
    scores = [score(text, needle.answer, needle.question) for text, needle in zip(given, needles, strict=True)]
    return np.array(scores).reshape(len(answers), -1)


def _mean(scores: np.ndarray) -> float | None:
    return 100 * float(shares(scores).mean()) if scores.size else None
