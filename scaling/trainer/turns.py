"""Runs that take turns: each is a generator that hands over between its steps, so that one process trains several.

On a GPU each has a stream of its own. A small run's kernels do not fill the GPU, and those of several streams run at
the same time; results are those of the run alone, to the bit.
"""

from __future__ import annotations

import contextvars
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

# At the end of a turn it reports how many seconds it waited for the GPU, and gets its part of all runs' waiting in the
# round before, None where it is alone. It returns the exit code.
Steps = Generator[float, float | None, int]


def finish(steps: Steps) -> int:
    """Make all steps, without turns of other runs; returns the exit code."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return int(ended.value)


class Lane:
    """The place of a run among others: its stream, and its context variables, such as the guard of its files."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._stream: AbstractContextManager[Any] | None = None

    def entered(self) -> AbstractContextManager[Any]:
        """What is launched inside goes to the lane's stream, where a GPU is in use."""
        torch = sys.modules.get("torch")  # a run that has nothing to train imports none
        if torch is None:
            return nullcontext()
        if self._stream is None:
            gpu = torch.cuda.is_available()
            self._stream = torch.cuda.stream(torch.cuda.Stream()) if gpu else nullcontext()
        return self._stream

    def send(self, steps: Steps, waiting: float | None) -> float:
        """One turn of `steps` in this lane, as their `send`."""
        with self.entered():
            return self._context.run(steps.send, waiting)


class Clock:
    """A run's own seconds. Of a GPU that runs share, all their seconds together are the time that passes: each has its
    own turns, but for the waiting in them, of which all have the same part: the first in a round waits for all."""

    def __init__(self) -> None:
        self._away = self._waited = 0.0
        self.in_company = False

    def now(self) -> float:
        return time.perf_counter() - self._away

    def wait(self, work: Callable[[], object]) -> None:
        """Do what waits for the GPU."""
        begin = time.perf_counter()
        work()
        if self.in_company:
            seconds = time.perf_counter() - begin
            self._waited += seconds
            self._away += seconds

    def hand_over(self) -> Generator[float, float | None, None]:
        """The turn of the others."""
        begin, waited, self._waited = time.perf_counter(), self._waited, 0.0
        part = yield waited
        self.in_company = part is not None
        self._away += time.perf_counter() - begin - (part or 0.0)


class Bursts:
    """Every so often a run that takes turns makes some steps without the others, and these are timed: speeds of models
    stay comparable, whatever else trained beside them."""

    EVERY, STEPS = 128, 8

    def __init__(self, wait: Callable[[], object]) -> None:
        """wait: for all that the GPU has to do."""
        self._wait, self._left = wait, 1
        self._begun: float | None = None
        self._n_steps, self._seconds = 0, 0.0

    def goes_on(self, disturbed: bool) -> bool:
        """After a step: whether the next belongs to the same burst. disturbed: the step did something else, too."""
        if self._begun is not None and disturbed:
            self._begun, self._left = None, self.STEPS  # the others have their turns first
        self._left -= 1
        if self._left > 0:
            return self._begun is not None
        self._wait()
        now = time.perf_counter()
        if self._begun is None:
            self._begun, self._left = now, self.STEPS
            return True
        self._seconds += now - self._begun
        self._n_steps += self.STEPS
        self._begun, self._left = None, self.EVERY - self.STEPS
        return False

    @property
    def step_seconds(self) -> float | None:
        """The mean over all bursts so far."""
        return self._seconds / self._n_steps if self._n_steps else None
