"""One of lm-eval's tasks as a task of ours: rows from the data folder, requests tokenised once, scores as lm-eval's."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from arch.errors import InputError
from data.files import sha256
from data.tokenizer import get_tokenizer, is_at_hand
from scaling.study.types import Count

from ..model import LoadedModel
from ..planning import Planned, Reader
from ..task import Say, Settings, TaskContext
from .prompts import longest, planned
from .rows import read_rows
from .sets import DATA, TASKS, LmTask

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

DEFAULT_NEW_TOKENS = 256  # lm-eval's own default
CHECKED_BYTES = 1 << 26  # of rows, at every start; all SuperGLUE and common-sense files are smaller
BOOTSTRAPS = 1000  # of standard errors that have no closed form


class LmSettings(Settings):
    """limit: the first so many documents, null: all. max_length: tokens of a window; null: the training's context.
    max_new_tokens: of a generated answer; null: 256, or half the window where that is less. batch_size: rows at once;
    decides no number but by rounding, so it is not part of the result's key."""

    limit: Count | None = None
    max_length: Annotated[Count, Field(gt=1)] | None = None
    max_new_tokens: Count | None = None
    batch_size: Count = 16


@dataclass
class Prepared:
    task: Any
    tokenizer: Any
    encoded: dict[tuple[str, Any], list[int]] = field(default_factory=dict)


class LmEvalTask:
    """A task of TASKS; its data lies in the study's data folder."""

    def __init__(self, name: str, context: TaskContext) -> None:
        self.version = TASKS[name].version
        self.name, self._place, self._chosen = name, context, context.settings_of(name, LmSettings)
        self._planned: dict[tuple[float, ...], Planned] = {}

    @property
    def spec(self) -> LmTask:
        return TASKS[self.name]

    def settings(self) -> dict[str, Any]:
        from importlib.metadata import version

        return self._chosen.model_dump(exclude={"batch_size"}) | {"lm_eval": version("lm-eval"), "num_fewshot": 0}

    def data_hash(self) -> str:
        """The file's SHA-256. Also checks rows against their layout: the first rows of a large file; `prepare` checks
        all."""
        if find_spec("lm_eval") is None:
            raise InputError(f"{self.name}: lm-eval is not installed: pip install 'linear-scaling[eval]'")
        path = self._file()
        status = path.stat()
        return _hash_of(path, self.name, self.spec.data, status.st_size, status.st_mtime_ns)

    def data_path(self) -> Path:
        return self._file()

    def _file(self) -> Path:
        return self._place.data_file(self.name, DATA[self.spec.data].file)

    def planned(self, reader: Reader) -> Planned:
        """An estimate from the lengths of the parts of lm-eval's prompts."""
        window = self._window(reader.context_length)
        key = (*window, reader.bytes_per_token)
        if key not in self._planned:
            rows, share = read_rows(self._file(), self.name, self.spec.data, CHECKED_BYTES)
            if self.spec.scrolls:  # one document a question, whatever the number of its answers
                rows = list({row["id"]: row for row in rows}.values())
            self._planned[key] = planned(self.spec.data, rows, share, reader, window, self._chosen.limit)
        return self._planned[key]

    def check(self, reader: Reader) -> None:
        """Raise InputError for a window that is too short for a prompt or, where rows and tokenizer are available, for
        an answer."""
        max_length, _ = self._window(reader.context_length)
        self._file()
        if not is_at_hand(reader.tokenizer, reader.corpus):  # its file, or the corpus that it is trained on
            return
        if (needed := self._longest_answer(get_tokenizer(reader.tokenizer, reader.corpus))) > max_length:
            raise self._too_short(max_length, needed)

    def _longest_answer(self, tokenizer: Tokenizer) -> int:
        """The longest answer in tokens, among the rows that are checked at every start. 0 where rows do not have their
        layout, which `data_hash` reports. Raises MissingData."""
        file = self._file()
        status = file.stat()
        key = (file, self.name, self.spec.data, tokenizer, self._chosen.limit, status.st_size, status.st_mtime_ns)
        return _longest_of(*key)

    def _too_short(self, max_length: int, needed: int) -> InputError:
        return InputError(
            f"{self.name}: an answer is longer than the window of {max_length} tokens, it needs at least {needed}: set "
            f"evaluation.settings.{self.name}.max_length: {needed}"
        )

    def _window(self, context_length: int) -> tuple[int, int]:
        """The tokens of a window, and of a generated answer at most. Raises InputError where no prompt fits beside the
        answer."""
        max_length = self._chosen.max_length or context_length
        new_tokens = self._chosen.max_new_tokens or min(DEFAULT_NEW_TOKENS, max_length // 2)
        if new_tokens >= max_length:
            raise InputError(
                f"evaluation.settings.{self.name}.max_new_tokens={new_tokens} leaves no room for a prompt in a window "
                f"of {max_length} tokens: lower it"
            )
        return max_length, new_tokens

    def prepare(self, tokenizer: Tokenizer) -> Prepared:
        _quiet()
        from .harness import hf_tokenizer, local_task

        rows, _ = read_rows(self._file(), self.name, self.spec.data)
        return Prepared(local_task(self.name, rows), hf_tokenizer(tokenizer))

    def evaluate(self, model: LoadedModel, prepared: Prepared, say: Say) -> dict[str, Any]:
        """lm-eval's values under its metrics' names, their standard errors as NAME_stderr (null where it gives none),
        and n_documents, n_requests, n_truncated (requests that lost tokens on their left), max_length."""
        from lm_eval.evaluator import evaluate

        from .harness import CountingLM, hf_model

        max_length, new_tokens = self._window(model.context_length)
        wrapped = hf_model(model.model)
        lm = CountingLM(
            wrapped, prepared.tokenizer, max_length, self._chosen.batch_size, say, prepared.encoded, new_tokens
        )
        # bars of its own, which know nothing of the whole; an exception still comes through
        with model.reading(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                output = evaluate(
                    lm=lm,
                    task_dict={self.name: prepared.task},
                    limit=self._chosen.limit,
                    bootstrap_iters=BOOTSTRAPS,
                    log_samples=False,
                )
            except AssertionError:  # of lm-eval, which scores no answer longer than the window
                raise self._too_short(max_length, self._longest_answer(model.tokenizer)) from None
        assert output is not None
        return {
            **_values(output["results"][self.name], self.spec.metrics),
            "n_documents": output["n-samples"][self.name]["effective"],
            "n_requests": lm.n_requests,
            "n_truncated": lm.n_truncated,
            "max_length": max_length,
        } | ({"max_new_tokens": new_tokens} if self.spec.scrolls else {})


make = LmEvalTask


@lru_cache(maxsize=64)
def _longest_of(
    path: Path, task: str, data: str, tokenizer: Tokenizer, limit: int | None, size: int, mtime_ns: int
) -> int:
    """The longest answer of the file's rows in tokens; computed again where the file has changed."""
    try:
        rows, _ = read_rows(path, task, data, CHECKED_BYTES)
    except InputError:
        return 0
    return longest(data, rows[:limit], lambda text: len(tokenizer.encode_array(text)))


@lru_cache(maxsize=64)
def _hash_of(path: Path, task: str, data: str, size: int, mtime_ns: int) -> str:
    """The file's SHA-256, once its rows have been checked; computed again where the file has changed."""
    read_rows(path, task, data, CHECKED_BYTES)
    return sha256(path)


def _values(results: dict[str, Any], metrics: tuple[str, ...]) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for metric in metrics:
        values[metric] = float(results[f"{metric},none"])
        error = results.get(f"{metric}_stderr,none")
        values[f"{metric}_stderr"] = float(error) if isinstance(error, (int, float)) else None
    return values


def _quiet() -> None:
    """Silence lm-eval's warnings of each task's defaults and the bars of `datasets`; the result counts what matters."""
    import datasets

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
