"""From a grid to prompts in tokens: lengths, depths, and at each of them a haystack with a needle and a question.

A prompt is an end-of-text token (what precedes every document of a corpus), the beginning of the haystack with the
needle in it, and the question, for a base model to complete. Together with the answer it has exactly the length asked
for, in the model's own tokens. Pieces are tokenised apart, so all prompts of a length share the haystack's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arch.errors import InputError

from .needles import CLASSIC, Needle, fact

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

    from .haystack import Haystack
    from .settings import NiahSettings, Variant

ASKED = {"en": "Question: {question}\nAnswer:", "zh": "问题：{question}\n答案："}
GAP = {"en": " ", "zh": ""}  # between "Answer:" and the answer


@dataclass(frozen=True)
class Cell:
    """One prompt. insert_at: the tokens of the haystack before the needle; n_haystack: all of them."""

    depth_percent: int
    needle: Needle
    needle_ids: np.ndarray
    question_ids: np.ndarray
    insert_at: int
    n_haystack: int


@dataclass(frozen=True)
class Column:
    """All prompts of one length (tokens, the answer's included), from shallow to deep."""

    length: int
    cells: list[Cell]


@dataclass(frozen=True)
class Prompts:
    """start: the token that every prompt begins with; haystack: int64, those of the longest prompt."""

    start: int
    haystack: np.ndarray
    columns: list[Column]

    def ids(self, cell: Cell) -> np.ndarray:
        """The whole prompt of a cell."""
        before, after = self.haystack[: cell.insert_at], self.haystack[cell.insert_at : cell.n_haystack]
        return np.concatenate([[self.start], before, cell.needle_ids, after, cell.question_ids])


def needle_text(needle: Needle, variant: Variant) -> str:
    """As it is hidden, on lines of its own: easy with its question in the form of the question at the end."""
    if variant.mode == "standard":
        return f"\n{needle.statement}\n"
    asked = ASKED[variant.language].format(question=needle.question)
    return f"\n{asked}{GAP[variant.language]}{needle.statement}\n"


def question_text(needle: Needle, language: str) -> str:
    return "\n\n" + ASKED[language].format(question=needle.question)


def too_short(length: int, needed: int) -> str:
    """Of a prompt of `length` tokens."""
    return (
        f"a length of {length} tokens leaves no room for needle, question and answer, which need {needed}; ask for "
        f"longer ones"
    )


def text_bytes(settings: NiahSettings, variant: Variant) -> tuple[int, int]:
    """UTF-8 bytes of a needle as it is hidden and of its question; a fact stands for all facts."""
    needle = CLASSIC[variant.language]
    if variant.facts:
        needle = fact(variant.language, settings.digits, str(settings.seed))
    return len(needle_text(needle, variant).encode()), len(question_text(needle, variant.language).encode())


def make_prompts(settings: NiahSettings, variant: Variant, haystack: Haystack, tokenizer: Tokenizer) -> Prompts:
    """The grid's prompts. Raises InputError where the haystack is too short, or a length leaves no room for it."""
    columns = []
    for length in settings.grid_lengths():
        cells = []
        for depth in settings.grid_depths():
            needle = CLASSIC[variant.language]
            if variant.facts:
                needle = fact(variant.language, settings.digits, f"{settings.seed} {length} {depth}")
            needle_ids = _ids(tokenizer, needle_text(needle, variant))
            question_ids = _ids(tokenizer, question_text(needle, variant.language))
            n_haystack = length - settings.max_new_tokens - 1 - len(needle_ids) - len(question_ids)
            if n_haystack < 0:
                raise InputError(too_short(length, length - n_haystack))
            insert_at = haystack.insert_at(n_haystack, depth)
            cells.append(Cell(depth, needle, needle_ids, question_ids, insert_at, n_haystack))
        columns.append(Column(length, cells))
    longest = max(cell.n_haystack for column in columns for cell in column.cells)
    return Prompts(tokenizer.eot_id, haystack.cut(longest), columns)


def _ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    return tokenizer.encode_array(text).astype(np.int64)
