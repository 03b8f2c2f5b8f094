"""What an evaluation is: the protocol of a task, the model it is given, and the study it is asked for in.

A task is one named evaluation with its settings. It never loads a model, writes a file or decides what is missing: the
runner does (matrix.py, worker.py), so that a model is loaded once for all its tasks and a task's requests are tokenised
once for all models. A new one is a module here with `make(name, place)`, and its line in registry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from arch.config import ModelConfig
    from arch.lm import LanguageModel
    from data.tokenizer import Tokenizer

Say = Callable[[float, str], None]  # (share done 0..1, a few words)


@dataclass
class Loaded:
    """A checkpoint's model, guarded (its probe loss reproduced), in evaluation mode on `device`.

    autocast: read under bf16 autocast, as the run trained (never on a CPU). context_length: tokens, of the training.
    tokenizer: the one whose files the checkpoint carries.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    device: str
    autocast: bool
    context_length: int
    checkpoint: Path


@dataclass(frozen=True)
class Place:
    """Where tasks are asked for. corpus: the study's corpus directory; data: the folder of `scaling eval fetch`, None
    where the study names none; settings: `evaluation.settings` of the study file, by task name."""

    corpus: Path
    data: Path | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Task(Protocol):
    """One named evaluation. Reading its attributes loads neither torch nor data."""

    name: str
    version: int  # of the method: a change makes every stored result stale

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result but data and model: plain JSON, part of the result's key."""

    def data_hash(self) -> str:
        """Of the data read; quick, since every start asks for it. Raises InputError that names `scaling eval fetch`
        where it is missing."""

    def prepare(self, tokenizer: Tokenizer) -> Any:
        """The tokenised requests: made once for each tokenizer, shared by all checkpoints, not to be changed."""

    def evaluate(self, model: Loaded, prepared: Any, say: Say) -> dict[str, Any]:
        """The result's values: numbers (null where there is none), or lists and dictionaries of them.

        Numbers at the top level become rows of results/evals.parquet. Raises InputError where this model cannot be
        evaluated: the pair has failed, the others go on.
        """
