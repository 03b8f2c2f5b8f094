"""One worker of a matrix: it evaluates pairs that no other worker has claimed, checkpoint after checkpoint.

A model is loaded once for all of its tasks, and requests are prepared once for each tokenizer. In a first round a
worker takes checkpoints that no other worker has; in a second round it helps with the others' checkpoints. A pair that
fails, for whatever reason, is recorded, and the worker goes on with the next pair.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.claims import Claim, progress_of, take
from arch.errors import InputError

from .matrix import Matrix, Pair, RunCheckpoint
from .model import LoadedModel

if TYPE_CHECKING:
    from .loaded import ModelCache

MODEL = ".model"  # the claim of who has a checkpoint's model loaded, and so does all of its tasks


class Worker:
    """corpus: the study's corpus directory; device: "cpu" or "cuda"; attempt: pairs recorded as failed under this name
    are left alone; tell: gets a line for each pair; since: when this process began, by time.perf_counter (None: now):
    the first pair's setup is counted from then."""

    def __init__(
        self,
        corpus: Path,
        device: str,
        attempt: str,
        tell: Callable[[str], None] = print,
        since: float | None = None,
    ) -> None:
        self._corpus, self._device, self._attempt, self._tell = corpus, device, attempt, tell
        self._path: Path | None = None
        self._model: LoadedModel | InputError | None = None
        self._cache: ModelCache | None = None
        self._order: list[tuple[RunCheckpoint, list[Pair]]] = []  # of this round
        self._prepared: dict[tuple[str, str], Any] = {}
        self._since = time.perf_counter() if since is None else since
        self.n_done = self.n_failed = 0

    def work(self, matrix: Matrix) -> None:
        """Evaluate the matrix. Raises InputError where results cannot be written."""
        left = list(matrix.checkpoints())
        for visit in (self._visit_alone, self._visit):
            self._order = left
            left = [(checkpoint, pairs) for checkpoint, pairs in left if not visit(checkpoint, pairs)]

    def _visit_alone(self, checkpoint: RunCheckpoint, pairs: list[Pair]) -> bool:
        """As `_visit`, unless another worker has this model: then False."""
        pairs = [pair for pair in pairs if not self._is_settled(pair)]
        if not pairs:
            return True
        claim = self._take(checkpoint.results, MODEL)
        if claim is None:
            return False
        with claim:
            return self._visit(checkpoint, pairs)

    def _visit(self, checkpoint: RunCheckpoint, pairs: list[Pair]) -> bool:
        """Evaluate the pairs that no other worker has claimed. Returns whether these were all."""
        return all([self._attempt_pair(pair) for pair in pairs])

    def _take(self, directory: Path, name: str) -> Claim | None:
        try:
            return take(directory, name)
        except OSError as error:
            raise InputError(f"{directory}: cannot be written ({error.strerror}); mend that and run again") from None

    def _attempt_pair(self, pair: Pair) -> bool:
        """Evaluate the pair unless it has a result; False where another worker has claimed it."""
        if self._is_settled(pair):
            return True
        claim = self._take(pair.checkpoint.results, pair.task.name)
        if claim is None:
            return False
        with claim:
            if self._is_settled(pair):  # by whoever held the claim before
                return True
            try:
                reason = self._evaluate(pair, claim)
                if reason is not None:
                    pair.fail(self._attempt, reason)
            except OSError as error:
                message = f"{pair.path}: cannot be written ({error.strerror}); mend that and run again"
                raise InputError(message) from None
        self.n_done += reason is None
        self.n_failed += reason is not None
        self._tell(f"{pair.name}: {'failed: ' + reason if reason else 'done'}")
        return True

    def _is_settled(self, pair: Pair) -> bool:
        return pair.stored() is not None or pair.failed(self._attempt) is not None

    def _evaluate(self, pair: Pair, claim: Claim) -> str | None:
        """Evaluate and store one pair. Returns why it failed, None where it did not."""
        try:
            model = self._open(pair.checkpoint)
            key = (pair.task.name, model.tokenizer.identity)
            if key not in self._prepared:
                self._prepared[key] = pair.task.prepare(model.tokenizer)
            begun = time.perf_counter()
            model.meter.reset()
            values = pair.task.evaluate(model, self._prepared[key], claim.say)
            seconds = time.perf_counter() - begun
        except InputError as error:
            return str(error).removeprefix(f"{pair.task.name}: ")
        except Exception as error:  # a task may fail in any way, and the others go on
            traceback.print_exc()
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        finally:
            since, self._since = self._since, time.perf_counter()  # storing counts to the next pair's setup
        try:
            pair.store(
                values,
                device=model.device,
                seconds=round(seconds, 4),
                setup_seconds=round(begun - since, 4),
                forward_seconds=round(model.meter.seconds, 4),
                forward_tokens=model.meter.tokens,
            )
        except (TypeError, ValueError) as error:
            return f"its values cannot be stored as JSON ({error})"
        return None

    def _open(self, checkpoint: RunCheckpoint) -> LoadedModel:
        """The checkpoint's model, kept until another checkpoint is opened; a refusal is kept too."""
        from .loaded import ModelCache, load_guarded

        if self._path != checkpoint.path:
            self._path, self._model = checkpoint.path, None  # the last model goes first: two may not fit
            self._cache = self._cache or ModelCache.of_device(self._device)
            try:
                self._model = load_guarded(
                    checkpoint.path, self._corpus, self._device, checkpoint.autocast, self._cache
                )
            except InputError as error:
                self._model = error
            if (following := self._after(checkpoint)) is not None:
                self._cache.ahead.start(following.path)
        if not isinstance(self._model, LoadedModel):
            raise self._model or InputError(f"{checkpoint.path}: could not be loaded")
        return self._model

    def _after(self, checkpoint: RunCheckpoint) -> RunCheckpoint | None:
        """The checkpoint that will probably be opened next (other workers may be quicker)."""
        paths = [candidate.path for candidate, _ in self._order]
        for later, pairs in self._order[paths.index(checkpoint.path) + 1 :]:
            if progress_of(later.results, MODEL) is None and not all(self._is_settled(pair) for pair in pairs):
                return later
        return None
