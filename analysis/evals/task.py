"""What an evaluation is, what a study gives it, and what is known of a model before it is trained.

A task is one named evaluation with its settings. It never loads a model, writes a file or decides what is missing. The
runner does that (matrix.py, worker.py): a model is loaded once for all its tasks, and a task's requests are tokenised
once for all models. A new task is a subclass of `Task` in a module here, and a line in registry.py; or in a module of
your own with `make(name, context)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from arch.errors import InputError
from data.sources.published import layout
from scaling.study.file import validate

if TYPE_CHECKING:
    from data.mixture import Part
    from data.tokenizer import Tokenizer

    from .model import LoadedModel


class MissingData(InputError):
    """A task's data are not where the study says they are."""


class Settings(BaseModel):
    """The base of a task's settings: the keys below evaluation.settings.TASK of a study file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


@dataclass(frozen=True)
class TaskContext:
    """What a study gives its tasks. corpus: the corpus directory; data: the folder of `scaling eval fetch`, None
    where the study names none; settings: `evaluation.settings` of the study file, by task name."""

    corpus: Path
    data: Path | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def data_file(self, task: str, name: str, remedy: str = "put it there") -> Path:
        """The path of a file or folder below the data folder, or an absolute path. Raises MissingData with the `remedy`
        where it, or the data folder, is missing."""
        path = Path(name).expanduser()
        if not path.is_absolute():
            if self.data is None:
                raise MissingData(
                    f"{task}: needs {name}: set the data folder in the study file (evaluation.data: FOLDER), which "
                    f"`scaling eval fetch FOLDER` fills"
                )
            path = self.data / path
        if not path.exists():
            raise MissingData(f"{task}: {path} does not exist: {remedy}{layout(str(path))}")
        return path

    def fetched_file(self, task: str, name: str, fetch: str) -> Path:
        """`data_file` of what `scaling eval fetch --tasks FETCH` writes."""
        return self.data_file(task, name, f"run `scaling eval fetch --tasks {fetch} {self.data}`")


@dataclass(frozen=True)
class Reader:
    """How a run's model will read text, as far as that is known before training. context_length: of the training, in
    tokens; tokenizer: None where it is not made yet, or not on this machine; bytes_per_token: UTF-8 bytes of text, of
    the corpus or assumed; held_out: the parts of the corpus' validation split, None before there is a corpus."""

    context_length: int
    tokenizer: Tokenizer | None
    bytes_per_token: float
    held_out: tuple[Part, ...] | None

    def tokens_of(self, n_bytes: float) -> int:
        """About the number of tokens of a text of `n_bytes`; exact where a byte is a token."""
        return round(n_bytes / self.bytes_per_token)


class Task(ABC):
    """One named evaluation. Making it and reading its settings loads neither torch nor data. Raises InputError for
    unknown or invalid settings.

    version: of the method: a change makes every stored result stale; Chosen: the class of its settings.
    """

    version: int = 1
    Chosen: ClassVar[type[Settings]] = Settings

    def __init__(self, name: str, context: TaskContext) -> None:
        self.name, self.context = name, context
        self.chosen: Any = validate(
            self.Chosen, dict(context.settings.get(name, {})), f"evaluation.settings.{name}", []
        )

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result beside data and model: plain JSON, part of the result's key."""
        return dict(self.chosen.model_dump(mode="json"))

    @abstractmethod
    def data_path(self) -> Path | None:
        """The file or folder of its texts, which may overlap with the training text; None for the corpus' held-out
        text."""

    @abstractmethod
    def data_hash(self) -> str:
        """A hash of the data read; quick, since every start asks for it. Raises InputError where they do not have the
        form that the task reads, MissingData, which names `scaling eval fetch`, where they are missing."""

    def forward_tokens(self, reader: Reader) -> int | None:
        """About how many tokens one evaluation passes through such a model, None where the task does not know. Raises
        InputError where data are missing."""
        return None

    def check(self, reader: Reader) -> None:  # noqa: B027
        """Raise InputError where settings and sizes of data do not suit such a model, MissingData where data are
        missing that decide it. Loads no torch."""

    @abstractmethod
    def prepare(self, tokenizer: Tokenizer) -> Any:
        """The tokenised requests: made once for each tokenizer and shared by all checkpoints, so they must not be
        changed."""

    @abstractmethod
    def evaluate(self, model: LoadedModel, prepared: Any) -> dict[str, Any]:
        """The result's values: numbers (null where a number is missing), or lists and dictionaries of numbers.

        Numbers at the top level become rows of results/evals.parquet, NAME_stderr the standard error of NAME;
        `warnings`, a list of lines, is shown once. Values of contexts beyond the training length stand beside
        `extrapolated: true`. Raises InputError where this model cannot be evaluated: the pair has failed, the others go
        on.
        """
