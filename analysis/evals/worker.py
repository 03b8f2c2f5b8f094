"""One worker of a matrix: it evaluates pairs that no other worker has claimed, checkpoint after checkpoint.

A model is loaded once for all of its tasks, and requests are prepared once for each tokenizer. In a first round a
worker passes over checkpoints that another worker is at; in a second round it helps with their remaining tasks. A pair
that fails, for whatever reason, is recorded, and the worker goes on with the next pair.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.claims import claimed, is_taken
from arch.errors import InputError

from .matrix import Matrix, Pair, RunCheckpoint
from .model import LoadedModel

if TYPE_CHECKING:
    from data.corpus import Corpus


class Worker:
    """corpus: the study's corpus directory; device: "cpu" or "cuda"; attempt: pairs recorded as failed under this name
    are left alone; say: gets a line for each pair; since: when this process began, by time.perf_counter (None: now):
    the first pair's setup is counted from then."""

    def __init__(
        self,
        corpus: Path,
        device: str,
        attempt: str,
        say: Callable[[str], None] = print,
        since: float | None = None,
    ) -> None:
        self._folder, self._device, self._attempt, self._say = corpus, device, attempt, say
        self._path: Path | None = None
        self._model: LoadedModel | InputError | None = None
        self._prepared: dict[tuple[str, str], Any] = {}
        self._since = time.perf_counter() if since is None else since
        self.n_done = self.n_failed = 0

    @cached_property
    def _corpus(self) -> Corpus:
        from data.corpus import open_corpus

        return open_corpus(self._folder)

    def work(self, matrix: Matrix) -> None:
        """Evaluate the matrix. Raises InputError where results cannot be written."""
        busy = []
        for pairs in matrix.by_checkpoint:
            if any(not self._is_settled(pair) and is_taken(pair.checkpoint.results, pair.task.name) for pair in pairs):
                busy += pairs
            else:
                busy += [pair for pair in pairs if not self._visit(pair)]
        for pair in busy:
            self._visit(pair)

    def _visit(self, pair: Pair) -> bool:
        """Evaluate the pair unless it has a result; False where another worker has claimed it."""
        if self._is_settled(pair):
            return True
        try:
            with claimed(pair.checkpoint.results, pair.task.name) as is_ours:
                if not is_ours or self._is_settled(pair):  # by whoever held the claim before
                    return is_ours
                if reason := self._evaluate(pair):
                    pair.fail(self._attempt, reason)
        except OSError as error:
            raise InputError(f"{pair.path}: cannot be written ({error.strerror}); mend that and run again") from None
        self.n_done += not reason
        self.n_failed += bool(reason)
        self._say(f"{pair.name}: {'failed: ' + reason if reason else 'done'}")
        return True

    def _is_settled(self, pair: Pair) -> bool:
        return pair.stored() is not None or pair.failed(self._attempt) is not None

    def _evaluate(self, pair: Pair) -> str:
        """Evaluate and store one pair. Returns why it failed, "" where it did not."""
        try:
            model = self._open(pair.checkpoint)
            key = (pair.task.name, model.tokenizer.identity)
            if key not in self._prepared:
                self._prepared[key] = pair.task.prepare(model.tokenizer)
            start = time.perf_counter()
            model.n_tokens_read = 0
            values = pair.task.evaluate(model, self._prepared[key])
            seconds = time.perf_counter() - start
        except InputError as error:
            return str(error).removeprefix(f"{pair.task.name}: ")
        except Exception as error:  # a task may fail in any way, and the others go on
            traceback.print_exc()
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        finally:
            since, self._since = self._since, time.perf_counter()  # storing counts to the next pair's setup
        cost = {"seconds": round(seconds, 4), "setup_seconds": round(start - since, 4)}
        try:
            pair.store(values, device=model.device, forward_tokens=model.n_tokens_read, **cost)
        except (TypeError, ValueError) as error:
            return f"its values cannot be stored as JSON ({error})"
        return ""

    def _open(self, checkpoint: RunCheckpoint) -> LoadedModel:
        """The checkpoint's model, kept until another checkpoint is opened; a refusal is kept too."""
        if self._path != checkpoint.path:
            self._path, self._model = checkpoint.path, None  # the last model goes first: two may not fit
            try:
                self._model = checkpoint.load(self._corpus, self._device)
            except InputError as error:
                self._model = error
        if not isinstance(self._model, LoadedModel):
            raise self._model or InputError(f"{checkpoint.path}: could not be loaded")
        return self._model
