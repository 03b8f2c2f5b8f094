"""What an evaluation is: the protocol of a task, and what a study gives it.

A task is one named evaluation with its settings. It never loads a model, writes a file or decides what is missing. The
runner does that (matrix.py, worker.py): a model is loaded once for all its tasks, and a task's requests are tokenised
once for all models. A new task is a module here with `make(name, context)` and a line in registry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from arch.errors import InputError
from scaling.study.file import validate

from .model import LoadedModel  # a task of another package takes it from here too

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

Say = Callable[[float, str], None]  # (share done 0..1, a few words)


class MissingData(InputError):
    """A task's data are not where the study says they are."""


class Settings(BaseModel):
    """The base of a task's settings: the keys below evaluation.settings.TASK of a study file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class TaskContext:
    """What a study gives its tasks. corpus: the corpus directory; data: the folder of `scaling eval fetch`, None
    where the study names none; settings: `evaluation.settings` of the study file, by task name."""

    corpus: Path
    data: Path | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def settings_of(self, task: str, kind: type[S]) -> S:
        """The task's settings with their defaults. Raises InputError for an unknown key or an invalid value."""
        settings: S = validate(kind, dict(self.settings.get(task, {})), f"evaluation.settings.{task}", [])
        return settings

    def data_file(self, task: str, name: str, fetch: str | None = None) -> Path:
        """The path of a file or folder below the data folder, or an absolute path. fetch: its name for `scaling eval
        fetch` (default: the task; "": that command does not have it). Raises MissingData where the path, or the data
        folder, is missing."""
        path = Path(name).expanduser()
        if not path.is_absolute():
            if self.data is None:
                raise MissingData(
                    f"{task}: needs {name}: set the data folder in the study file (evaluation.data: FOLDER), which "
                    f"`scaling eval fetch FOLDER` fills"
                )
            path = self.data / path
        if not path.exists():
            word = task if fetch is None else fetch
            remedy = f"run `scaling eval fetch --tasks {word} {self.data}`" if word else "put it there"
            folder = (
                "" if self.data is None or self.data.is_dir() else f" (evaluation.data, {self.data}, is not a folder)"
            )
            raise MissingData(f"{task}: {path} does not exist{folder}: {remedy}")
        return path


class Task(Protocol):
    """One named evaluation. Reading its attributes loads neither torch nor data. It may have a method `data_path`: the
    file or folder of its texts, None for the corpus' held-out text; without it they cannot be compared with the
    training text (contamination)."""

    name: str
    version: int  # of the method: a change makes every stored result stale

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result beside data and model: plain JSON, part of the result's key."""

    def data_hash(self) -> str:
        """A hash of the data read; quick, since every start asks for it. Raises InputError where they do not have the
        form that the task reads, MissingData, which names `scaling eval fetch`, where they are missing."""

    def prepare(self, tokenizer: Tokenizer) -> Any:
        """The tokenised requests: made once for each tokenizer and shared by all checkpoints, so they must not be
        changed."""

    def evaluate(self, model: LoadedModel, prepared: Any, say: Say) -> dict[str, Any]:
        """The result's values: numbers (null where a number is missing), or lists and dictionaries of numbers.

        Numbers at the top level become rows of results/evals.parquet; `warnings`, a list of lines, is shown once.
        Values of contexts beyond the training length stand beside `extrapolated: true`. Raises InputError where this
        model cannot be evaluated: the pair has failed, the others go on.
        """
