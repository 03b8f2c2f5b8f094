"""One of lm-eval's tasks as a task of ours: rows from the data folder, requests tokenised once, scores as lm-eval's."""

from __future__ import annotations

import io
import itertools
import logging
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from arch.errors import InputError
from data.files import sha256
from scaling.study.types import Count

from ..model import LoadedModel
from ..task import Reader, Settings, Task, TaskContext
from .rows import read_rows
from .sets import DATA, TASKS

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
    """tokens: of each text of the requests, by text, filled as the first model reads them."""

    task: Any
    tokenizer: Any
    tokens: dict[str, np.ndarray] = field(default_factory=dict)


class LmEvalTask(Task):
    """A task of TASKS; its data lies in the study's data folder."""

    Chosen = LmSettings

    def __init__(self, name: str, context: TaskContext) -> None:
        super().__init__(name, context)
        self.spec = TASKS[name]
        self.version = self.spec.version

    def settings(self) -> dict[str, Any]:
        from importlib.metadata import version

        return self.chosen.model_dump(exclude={"batch_size"}) | {"lm_eval": version("lm-eval"), "num_fewshot": 0}

    def data_hash(self) -> str:
        """The file's SHA-256. Also checks rows against their layout: the first rows of a large file; `prepare` checks
        all."""
        if find_spec("lm_eval") is None:
            raise InputError(f"{self.name}: lm-eval is not installed: pip install 'linear-scaling[eval]'")
        path = self.data_path()
        status = path.stat()
        return _hash_of(path, self.name, self.spec.data, status.st_size, status.st_mtime_ns)

    def data_path(self) -> Path:
        return self.context.fetched_file(self.name, DATA[self.spec.data].file, self.name)

    def forward_tokens(self, reader: Reader) -> int:
        """A row of the file, as far as a window reaches, for each choice; half of it, since a request has one choice
        and the row has all of them. Of perplexities every window."""
        with open(self.data_path(), "rb") as lines:
            rows = [reader.tokens_of(len(line)) for line in itertools.islice(lines, self.chosen.limit)]
        if "perplexity" in self.spec.metrics[0]:
            return sum(rows)
        max_length, _ = self._window(reader.context_length)
        return round(((self.spec.choices or 1) + 1) / 2 * sum(min(n, max_length) for n in rows))

    def check(self, reader: Reader) -> None:
        """Raise InputError for a window that is too short for a prompt."""
        self._window(reader.context_length)

    def _window(self, context_length: int) -> tuple[int, int]:
        """The tokens of a window, and of a generated answer at most. Raises InputError where no prompt fits beside the
        answer."""
        max_length = self.chosen.max_length or context_length
        new_tokens = self.chosen.max_new_tokens or min(DEFAULT_NEW_TOKENS, max_length // 2)
        if new_tokens >= max_length:
            raise InputError(
                f"evaluation.settings.{self.name}.max_new_tokens={new_tokens} leaves no room for a prompt in a window "
                f"of {max_length} tokens: lower it"
            )
        return max_length, new_tokens

    def prepare(self, tokenizer: Tokenizer) -> Prepared:
        _silence()
        from .harness import hf_tokenizer, local_task

        rows = read_rows(self.data_path(), self.name, self.spec.data)
        return Prepared(local_task(self.name, rows), hf_tokenizer(tokenizer))

    def evaluate(self, model: LoadedModel, prepared: Prepared) -> dict[str, Any]:
        """lm-eval's values under its metrics' names, their standard errors as NAME_stderr (null where it gives none),
        and n_documents, n_requests, n_truncated (requests that lost tokens on their left), max_length."""
        from lm_eval.evaluator import evaluate

        from .harness import AnswerTooLong, CountingLM, hf_model

        max_length, new_tokens = self._window(model.context_length)
        lm = CountingLM(hf_model(model.model), prepared.tokenizer, max_length, self.chosen.batch_size, new_tokens)
        lm.tokens = prepared.tokens
        # bars of its own, which know nothing of the whole; an exception still comes through
        with model.reading(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                output = evaluate(
                    lm=lm,
                    task_dict={self.name: prepared.task},
                    limit=self.chosen.limit,
                    bootstrap_iters=BOOTSTRAPS,
                    log_samples=False,
                )
            except AnswerTooLong as error:
                raise InputError(
                    f"{self.name}: an answer is longer than the window of {max_length} tokens, it needs "
                    f"{error.n_tokens}: set evaluation.settings.{self.name}.max_length: {error.n_tokens}"
                ) from None
        assert output is not None
        results, values = output["results"][self.name], dict[str, float | None]()
        for metric in self.spec.metrics:
            stderr = results.get(f"{metric}_stderr,none")
            values[metric] = float(results[f"{metric},none"])
            values[f"{metric}_stderr"] = float(stderr) if isinstance(stderr, (int, float)) else None
        return {
            **values,
            "n_documents": output["n-samples"][self.name]["effective"],
            "n_requests": lm.n_requests,
            "n_truncated": lm.n_truncated,
            "max_length": max_length,
        } | ({"max_new_tokens": new_tokens} if self.spec.scrolls else {})


@lru_cache(maxsize=64)
def _hash_of(path: Path, task: str, data: str, size: int, mtime_ns: int) -> str:
    """The file's SHA-256, once its rows have been checked; computed again where the file has changed."""
    read_rows(path, task, data, CHECKED_BYTES)
    return sha256(path)


def _silence() -> None:
    """Silence lm-eval's warnings of each task's defaults and the bars of `datasets`; the result counts what matters."""
    import datasets

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
