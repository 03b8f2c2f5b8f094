"""The settings of a needle-in-a-haystack task; every value is part of the result's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from analysis.evals.task import Settings
from scaling.study.types import Count, Positive, Seed

Cells = Annotated[Count, Field(le=10_000)]


@dataclass(frozen=True)
class Variant:
    """easy: the question stands before the hidden answer too; facts: a number of its own in each cell, instead of the
    classic needle."""

    easy: bool
    facts: bool
    data = "needle"  # the haystack's folder below the data folder

    @property
    def about(self) -> str:
        hidden = "question and answer" if self.easy else "the answer alone"
        kind = "a number of its own in each cell" if self.facts else "the classic needle"
        return f"needle in a haystack, {hidden} hidden; {kind}"


VARIANTS = {
    "niah-easy": Variant(easy=True, facts=False),
    "niah-standard": Variant(easy=False, facts=False),
    "niah-easy-facts": Variant(easy=True, facts=True),
    "niah-standard-facts": Variant(easy=False, facts=True),
}


class NiahSettings(Settings):
    """Settings of evaluation.settings.niah-easy and of the other variants. The grid has n_lengths from first_length to
    last_length tokens and n_depths from 0 to 100%, both evenly spaced; the defaults are the paper's. haystack: a folder
    of .txt files, below the data folder unless absolute; null: `needle` there."""

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
        return sorted(
            set(np.linspace(self.first_length, self.last_length, self.n_lengths).round().astype(int).tolist())
        )

    def grid_depths(self) -> list[int]:
        """The depths, in per cent of the haystack before the needle."""
        return list(np.linspace(0, 100, self.n_depths).round().astype(int).tolist())
