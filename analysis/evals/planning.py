"""What an evaluation will read, known before there is a model: examples, forward tokens, impossible settings.

Imports no torch. A task that can say so has `planned` and `check`; one from another package need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from arch.errors import InputError
from data.files import MANIFEST, read_manifest
from data.manifest import parts_of

from .task import MissingData

if TYPE_CHECKING:
    from arch.config import ModelConfig
    from data.mixture import Part
    from scaling.study.run import RunSpec

    from .task import Task, TaskContext

BYTES_PER_TOKEN = {"bytes": 1.0}  # others: as the study's corpus has it
ASSUMED_BYTES_PER_TOKEN = 4.0  # before there is a corpus


@dataclass(frozen=True)
class Reader:
    """What is known of a run's model before training. context_length: tokens, of the training; bytes_per_token: UTF-8
    bytes of text a token; exact: whether that is the same for every text; held_out: the corpus' validation split
    by its parts, None before there is a corpus; autocast: read under bf16 autocast on a GPU;
    tokenizer: by name; corpus: the study's directory of it, None before that is made."""

    config: ModelConfig
    context_length: int
    bytes_per_token: float
    exact: bool
    held_out: tuple[Part, ...] | None
    autocast: bool
    tokenizer: str = "bytes"
    corpus: Path | None = None

    def tokens_of(self, n_bytes: float) -> int:
        """Of a text of so many bytes; an estimate unless `exact`."""
        return round(n_bytes / self.bytes_per_token)


@dataclass(frozen=True)
class Planned:
    """One evaluation of one checkpoint. tokens: that pass through the model; items: windows, cells or documents, as
    `unit` says; estimate: in what way `tokens` is no exact count, "" where it is one."""

    tokens: int
    items: int
    unit: str
    estimate: str = ""


@runtime_checkable
class Plannable(Protocol):
    """A task that knows in advance what it will read."""

    def planned(self, reader: Reader) -> Planned:
        """What one evaluation of such a model reads. Raises InputError where data are missing."""

    def check(self, reader: Reader) -> None:
        """Raise InputError where settings and sizes of data cannot go with such a model, MissingData where it takes
        data that are not there to know. Loads no torch."""


def readers(corpus: Path, tokenizer: str, runs: Iterable[RunSpec]) -> dict[str, Reader]:
    """By run_id. corpus: the study's directory of it, which need not be there; tokenizer: by name."""
    manifest = read_manifest(corpus, verify=False, partial=True) or {}
    splits: Mapping[str, Mapping[str, int]] = manifest.get("splits", {})
    held_out = tuple(parts_of(manifest, "validation")) if splits else None
    exact = tokenizer in BYTES_PER_TOKEN
    per_token = BYTES_PER_TOKEN.get(tokenizer, ASSUMED_BYTES_PER_TOKEN)
    if splits and not exact:
        per_token = sum(one["bytes"] for one in splits.values()) / max(1, sum(one["tokens"] for one in splits.values()))
    return {
        run.run_id: Reader(
            *(run.config, run.context_length, per_token, exact, held_out, run.training.precision == "bf16"),
            *(tokenizer, corpus if splits else None),
        )
        for run in runs
    }


def planned(tasks: Iterable[Task], reader: Reader) -> dict[str, Planned]:
    """By task name, without tasks that cannot say so. Raises InputError where a task's data are missing."""
    return {task.name: task.planned(reader) for task in tasks if isinstance(task, Plannable)}


def by_tokenizer(reader: Reader) -> str:
    """Planned.estimate of a count that is exact but for the tokenizer."""
    return "" if reader.exact else f"at {reader.bytes_per_token:.2f} bytes a token"


def check_settings(tasks: Iterable[Task], models: Iterable[Reader]) -> None:
    """Raise InputError where a task cannot evaluate one of the models, as far as that is known without its data."""
    different = list({(one.config, one.context_length, one.held_out): one for one in models}.values())
    for task in tasks:
        if isinstance(task, Plannable):
            for reader in different:
                with suppress(MissingData):
                    task.check(reader)


def check_data(tasks: Iterable[Task], context: TaskContext) -> None:
    """Raise InputError where a task's data are not of the form that it reads, MissingData where they are not there.
    A corpus that has not been made yet is not checked."""
    for task in tasks:
        try:
            task.data_hash()
        except InputError as error:
            if (context.corpus / MANIFEST).exists() or str(context.corpus) not in str(error):
                raise
        except OSError as error:
            raise InputError(f"{task.name}: {error.filename}: cannot be read ({error.strerror})") from None
