"""What an evaluation is: the protocol of a task, the model it is given, and the study it is asked for in.

A task is one named evaluation with its settings. It never loads a model, writes a file or decides what is missing: the
runner does (matrix.py, worker.py), so that a model is loaded once for all its tasks and a task's requests are tokenised
once for all models. A new one is a module here with `make(name, place)`, and its line in registry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from arch.errors import InputError
from scaling.study.file import validate

from .meter import Meter

if TYPE_CHECKING:
    from arch.config import ModelConfig
    from arch.model.lm import LanguageModel
    from data.tokenizer import Tokenizer

Say = Callable[[float, str], None]  # (share done 0..1, a few words)


@dataclass
class Loaded:
    """A checkpoint's model, guarded (its probe loss reproduced), in evaluation mode on `device`.

    autocast: read under bf16 autocast, as the run trained (never on a CPU). context_length: tokens, of the training.
    tokenizer: the one whose files the checkpoint carries. meter: counts what the model reads.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    device: str
    autocast: bool
    context_length: int
    checkpoint: Path
    meter: Meter = field(default_factory=Meter)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Forward passes go in here: no gradients, the run's precision."""
        import torch

        with torch.inference_mode(), torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.autocast):
            yield

    def warnings_at(self, length: int) -> list[str]:
        """What to tell people where texts of up to `length` tokens are read: put it into the values as `warnings`."""
        if self.config.arch != "llama" or length <= self.context_length:
            return []
        return [
            f"LLaMA was trained at {self.context_length:,} tokens and is read at up to {length:,}: rotary positions "
            f"beyond the training length were never trained"
        ]


class MissingData(InputError):
    """The data of a task are not where the study says they are."""


class Settings(BaseModel):
    """Base of a task's settings: what a study file may say below evaluation.settings.TASK."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Place:
    """Where tasks are asked for. corpus: the study's corpus directory; data: the folder of `scaling eval fetch`, None
    where the study names none; settings: `evaluation.settings` of the study file, by task name."""

    corpus: Path
    data: Path | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def settings_of(self, task: str, kind: type[S]) -> S:
        """The task's settings, defaults filled in. Raises InputError: an unknown key, a value that cannot be."""
        found: S = validate(kind, dict(self.settings.get(task, {})), f"evaluation.settings.{task}", [])
        return found

    def data_file(self, task: str, name: str, fetch: str | None = None) -> Path:
        """A file or folder below the data folder, or an absolute path; fetch: what `scaling eval fetch` calls it
        (default: the task; "": it does not have it). Raises MissingData where it is not there, or no folder is named or
        there."""
        path = Path(name).expanduser()
        if not path.is_absolute():
            if self.data is None:
                raise MissingData(
                    f"{task}: needs {name}: name the data folder in the study file (evaluation.data: FOLDER, filled by "
                    f"`scaling eval fetch FOLDER`)"
                )
            path = self.data / path
        if not path.exists():
            word = task if fetch is None else fetch
            remedy = f"run `scaling eval fetch --tasks {word} {self.data}`" if word else "put it there"
            folder = "" if self.data is None or self.data.is_dir() else f" (evaluation.data, {self.data}, is no folder)"
            raise MissingData(f"{task}: {path} does not exist{folder}: {remedy}")
        return path


class Task(Protocol):
    """One named evaluation. Reading its attributes loads neither torch nor data."""

    name: str
    version: int  # of the method: a change makes every stored result stale

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result but data and model: plain JSON, part of the result's key."""

    def data_hash(self) -> str:
        """Of the data read; quick, since every start asks for it. Raises InputError where they are not of the form that
        the task reads, MissingData, which names `scaling eval fetch`, where they are not there."""

    def prepare(self, tokenizer: Tokenizer) -> Any:
        """The tokenised requests: made once for each tokenizer, shared by all checkpoints, not to be changed."""

    def evaluate(self, model: Loaded, prepared: Any, say: Say) -> dict[str, Any]:
        """The result's values: numbers (null where there is none), or lists and dictionaries of them.

        Numbers at the top level become rows of results/evals.parquet; `warnings`, a list of lines, is shown once.
        Values of contexts beyond the training length stand beside `extrapolated: true`. Raises InputError where this
        model cannot be evaluated: the pair has failed, the others go on.
        """
