"""lm-eval's tasks as tasks of ours: rows from the data folder, requests tokenised once, scores as lm-eval's. Those of
TASKS have names, checked rows and columns of their own; any other is `lm_eval:NAME`."""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import math
import os
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from arch.errors import InputError
from data.files import sha256
from scaling.study.types import Count

from ..model import LoadedModel
from ..results import STDERR
from ..task import MissingData, Reader, Settings, Task, TaskContext
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
    """tasks: as lm-eval's evaluator takes them; tokens: of each text of the requests, by text, filled as the first
    model reads them; left_out: why, by task."""

    tasks: dict[str, Any]
    tokenizer: Any
    tokens: dict[str, np.ndarray] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class LmEvalTask(Task):
    """A task of TASKS; its data lies in the study's data folder."""

    Chosen: ClassVar[type[Settings]] = LmSettings
    cuts_all = True  # evaluated also where every prompt is cut, as the paper does SCROLLS

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
        require(self.name)
        path = self._file()
        status = path.stat()
        return _hash_of(path, self.name, self.spec.data, status.st_size, status.st_mtime_ns)

    def data_path(self) -> Path | None:
        return self._file()

    def _file(self) -> Path:
        return self.context.fetched_file(self.name, DATA[self.spec.data].file, self.name)

    def forward_tokens(self, reader: Reader) -> int | None:
        """A row of the file, as far as a window reaches, for each choice; half of it, since a request has one choice
        and the row has all of them. Of perplexities every window."""
        with open(self._file(), "rb") as lines:
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
        silence()
        from .harness import hf_tokenizer, local_task

        rows = read_rows(self._file(), self.name, self.spec.data)
        return Prepared({"tasks": {self.name: local_task(self.name, rows)}}, hf_tokenizer(tokenizer))

    def evaluate(self, model: LoadedModel, prepared: Prepared) -> dict[str, Any]:
        """lm-eval's values under its metrics' names, their standard errors as NAME_stderr (null where it gives none),
        and n_documents, n_requests, n_truncated (requests that lost tokens on their left), max_length."""
        from lm_eval.evaluator import evaluate

        from .harness import AnswerTooLong, CountingLM, PromptsTooLong, hf_model

        max_length, new_tokens = self._window(model.context_length)
        model.check_length(max_length)
        lm = CountingLM(hf_model(model.model), prepared.tokenizer, max_length, self.chosen.batch_size, new_tokens)
        lm.tokens, lm.cuts_all = prepared.tokens, self.cuts_all
        # bars of its own, which know nothing of the whole; an exception still comes through
        with model.reading(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                output = evaluate(
                    lm=lm,
                    task_dict=prepared.tasks,
                    limit=self.chosen.limit,
                    bootstrap_iters=BOOTSTRAPS,
                    log_samples=False,
                )
            except AnswerTooLong as error:
                raise InputError(
                    f"{self.name}: an answer is longer than the window of {max_length} tokens, it needs "
                    f"{error}: set evaluation.settings.{self.name}.max_length: {error}"
                ) from None
            except PromptsTooLong as error:
                raise InputError(
                    f"{self.name}: every prompt would be cut, the shortest needs {error.args[0]:,} tokens and the "
                    f"window has {max_length:,}: set evaluation.settings.{self.name}.max_length where the model reads "
                    f"beyond its training length, or a smaller num_fewshot or max_new_tokens"
                ) from None
        assert output is not None
        return {
            **self._scores(output),
            "n_documents": sum(n["effective"] for n in output["n-samples"].values()),
            "n_requests": lm.n_requests,
            "n_truncated": lm.n_truncated,
            "max_length": max_length,
        } | ({"max_new_tokens": new_tokens} if self._generates(prepared) else {})

    def _generates(self, prepared: Prepared) -> bool:
        return self.spec.scrolls is not None

    def _scores(self, output: Any) -> dict[str, Any]:
        values = _metrics(output["results"][self.name])
        return {name: values[name] for metric in self.spec.metrics for name in (metric, metric + STDERR)}


class NamedSettings(LmSettings):
    """num_fewshot: examples before each question; null: as many as the task itself asks for."""

    num_fewshot: Annotated[int, Field(ge=0)] | None = None


class NamedTask(LmEvalTask):
    """`lm_eval:NAME`: any task or group of lm-eval, its data lm_eval/DATASET/CONFIG/SPLIT.jsonl below the data
    folder."""

    Chosen: ClassVar[type[Settings]] = NamedSettings
    cuts_all = False

    def __init__(self, name: str, context: TaskContext) -> None:
        Task.__init__(self, name, context)
        self.known_as = name.partition(":")[2]

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"num_fewshot": getattr(self.chosen, "num_fewshot", 0)}  # RULER has none

    @cached_property
    def _made(self) -> tuple[dict[str, Any], list[Path]]:
        """The task as lm-eval's evaluator takes it, and the files that it read."""
        require(self.name)
        silence()
        from .named import Rows, check_name, make

        check_name(self.known_as)
        rows, shots = Rows(self.context.data), self.chosen.num_fewshot
        try:
            tasks = make(self.known_as, rows, {} if shots is None else {"num_fewshot": shots})
        except MissingData as error:
            raise MissingData(f"{self.name}: {error}: run `scaling eval fetch --tasks {self.name} FOLDER`") from None
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None
        return tasks, sorted(rows.files)

    def data_hash(self) -> str:
        hashes = [sha256(path) for path in self._made[1]]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()

    def data_path(self) -> Path | None:
        """The file that it reads, or the folder of all its files."""
        files = self._made[1]
        return Path(os.path.commonpath(files)) if files else None

    def forward_tokens(self, reader: Reader) -> int | None:
        return None

    def prepare(self, tokenizer: Tokenizer) -> Prepared:
        from .harness import hf_tokenizer

        return Prepared(self._made[0], hf_tokenizer(tokenizer))

    def evaluate(self, model: LoadedModel, prepared: Prepared) -> dict[str, Any]:
        """lm-eval's values as METRIC, or METRIC@FILTER where a task has several filters; of a group its averages, or
        where it has none those of its tasks as TASK METRIC; `by_task`: of a group's tasks. Prompts that were cut are a
        warning. Raises InputError where an answer leaves no room for a prompt."""
        max_length, new_tokens = self._window(model.context_length)
        for task in prepared.tasks["tasks"].values():
            if task.OUTPUT_TYPE == "generate_until" and task.config.generation_kwargs is not None:
                if self.chosen.max_new_tokens:
                    task.config.generation_kwargs["max_gen_toks"] = new_tokens
                if (n_answer := task.config.generation_kwargs.get("max_gen_toks", new_tokens)) >= max_length:
                    raise InputError(
                        f"{self.name}: {task.task_name} generates {n_answer} tokens, which leaves no room for a prompt "
                        f"in a window of {max_length} tokens: lower evaluation.settings.{self.name}.max_new_tokens"
                    )
        values, warnings = super().evaluate(model, prepared), model.warnings_at(max_length)
        if values["n_truncated"]:
            warnings.append(
                f"{self.name}: {values['n_truncated']:,} of {values['n_requests']:,} prompts were cut on their left to "
                f"{max_length:,} tokens"
            )
        return values | {"extrapolated": max_length > model.context_length, "warnings": warnings}

    def _generates(self, prepared: Prepared) -> bool:
        return any(task.OUTPUT_TYPE == "generate_until" for task in prepared.tasks["tasks"].values())

    def _scores(self, output: Any) -> dict[str, Any]:
        results = {name: _metrics(values) for name, values in output["results"].items()}
        own = results.pop(self.known_as, {})
        if not own:
            own = {f"{task} {name}": value for task, values in results.items() for name, value in values.items()}
        return own | ({"by_task": results} if results else {})


def _metrics(results: Mapping[str, Any]) -> dict[str, float | None]:
    """lm-eval's METRIC,FILTER and METRIC_stderr,FILTER of a task as METRIC and METRIC_stderr, with @FILTER behind the
    metric where there is a filter; null for no finite number."""
    values: dict[str, float | None] = {}
    for key, value in results.items():
        metric, comma, of = key.partition(",")
        if comma:
            name, is_error = metric.removesuffix(STDERR), metric.endswith(STDERR)
            name += f"@{of}" * (of != "none") + STDERR * is_error
            values[name] = float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    return values


def require(task: str, package: str = "lm_eval") -> None:
    """Raises InputError where a package of the extra is not installed."""
    if find_spec(package) is None:
        raise InputError(f"{task}: {package} is not installed: pip install 'linear-scaling[eval]'")


@lru_cache(maxsize=64)
def _hash_of(path: Path, task: str, data: str, size: int, mtime_ns: int) -> str:
    """The file's SHA-256, once its rows have been checked; computed again where the file has changed."""
    read_rows(path, task, data, CHECKED_BYTES)
    return sha256(path)


def silence() -> None:
    """Silence lm-eval's warnings of each task's defaults and the bars of `datasets`; the result counts what matters."""
    import datasets

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
