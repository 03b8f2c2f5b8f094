"""The settings of a needle-in-a-haystack task; every value is part of the result's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from analysis.evals.task import Settings
from scaling.study.types import Count, Positive, Seed

Cells = Annotated[Count, Field(le=10_000)]


@dataclass(frozen=True)
class Variant:
    """The variant that a task's name stands for: niah-easy, niah-standard-facts, niah-easy-facts-zh, .."""

    mode: Literal["easy", "standard"]  # easy: the question stands before the hidden answer too
    facts: bool  # a number of its own in each cell, instead of the classic needle
    language: Literal["en", "zh"]

    @property
    def name(self) -> str:
        return f"niah-{self.mode}{'-facts' if self.facts else ''}{'-zh' if self.language == 'zh' else ''}"

    @property
    def about(self) -> str:
        hidden = "question and answer" if self.mode == "easy" else "the answer alone"
        kind = "a number of its own in each cell" if self.facts else "the classic needle"
        return f"needle in a haystack, {hidden} hidden; {kind}{', in Chinese' if self.language == 'zh' else ''}"

    @property
    def data(self) -> str:
        """The haystack's folder below the data folder."""
        return "needle-zh" if self.language == "zh" else "needle"


MODES: tuple[Literal["easy"], Literal["standard"]] = ("easy", "standard")
LANGUAGES: tuple[Literal["en"], Literal["zh"]] = ("en", "zh")
VARIANTS = {
    variant.name: variant
    for language in LANGUAGES
    for facts in (False, True)
    for mode in MODES
    for variant in [Variant(mode, facts, language)]
}


class NiahSettings(Settings):
    """Settings of evaluation.settings.niah-easy and of the other variants. The grid has n_lengths from first_length to
    last_length tokens and n_depths from 0 to 100%, both evenly spaced; the defaults are the paper's. haystack: a folder
    of .txt files, below the data folder unless absolute; null: `needle` there for English, `needle-zh` for Chinese."""

    first_length: Count = 1000
    last_length: Count = 16_000
    n_lengths: Cells = 35
    n_depths: Cells = 35
    haystack: str | None = None
    digits: Annotated[int, Field(ge=1, le=18)] = 7  # of a fact's number
    seed: Seed = 0  # of the facts, one for each cell
    max_new_tokens: Count = 50
    alpha_c: Positive = 1.01
    alpha_d: Positive = 1.01
    threshold: Annotated[int, Field(ge=2, le=10)] = 7  # the lowest score that the NIAH score counts as a success

    @model_validator(mode="after")
    def _ascending(self) -> NiahSettings:
        if self.n_lengths > 1 and self.first_length > self.last_length:
            raise ValueError(
                f"first_length {self.first_length:,} is over last_length {self.last_length:,}: give the shorter one "
                f"first"
            )
        return self

    def grid_lengths(self) -> list[int]:
        """The lengths in tokens of whole prompts with their answers, ascending, without repetitions."""
        return sorted(set(_spaced(self.first_length, self.last_length, self.n_lengths)))

    def grid_depths(self) -> list[int]:
        """The depths, in per cent of the haystack before the needle."""
        return _spaced(0, 100, self.n_depths)


def _spaced(first: int, last: int, n: int) -> list[int]:
    """n whole numbers, evenly spaced but for rounding; only the first where n is 1."""
    return [round(first + i * (last - first) / max(1, n - 1)) for i in range(n)]
