"""Runs that take turns in one process: each is a generator that yields between its steps.

On a GPU each run has a stream of its own. A small run's kernels do not fill the GPU, so kernels of several streams run
at the same time. The results are those of the run alone, to the bit.
"""

from __future__ import annotations

import contextvars
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

# At the end of a turn a run yields the seconds that it waited for the GPU, and receives its share of all runs' waiting
# in the round before, None where it is alone. It returns the exit code.
Steps = Generator[float, float | None, int]


def finish(steps: Steps) -> int:
    """Make all steps, without turns of other runs; returns the exit code."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return int(ended.value)


class Lane:
    """A run's stream, and its context variables, such as the guard of its files."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._stream: AbstractContextManager[Any] | None = None

    def entered(self) -> AbstractContextManager[Any]:
        """A context whose kernels are launched on the lane's stream, where a GPU is in use."""
        torch = sys.modules.get("torch")  # a run that has nothing to train imports none
        if torch is None:
            return nullcontext()
        if self._stream is None:
            gpu = torch.cuda.is_available()
            self._stream = torch.cuda.stream(torch.cuda.Stream()) if gpu else nullcontext()
        return self._stream

    def send(self, steps: Steps, waiting: float | None) -> float:
        """One turn of `steps` in this lane: `steps.send(waiting)`."""
        with self.entered():
            return self._context.run(steps.send, waiting)


class Clock:
    """A run's own seconds. The seconds of runs that share a GPU add up to the time that passes: each counts its own
    turns, without the waiting in them, which is shared equally, because the first run of a round waits for all."""

    def __init__(self) -> None:
        self._away = self._waited = 0.0
        self.in_company = self.had_company = False

    def now(self) -> float:
        return time.perf_counter() - self._away

    def wait(self, work: Callable[[], object]) -> None:
        """Do `work`, which waits for the GPU."""
        begin = time.perf_counter()
        work()
        if self.in_company:
            seconds = time.perf_counter() - begin
            self._waited += seconds
            self._away += seconds

    def hand_over(self) -> Generator[float, float | None, None]:
        """Let the other runs have their turns."""
        begin, waited, self._waited = time.perf_counter(), self._waited, 0.0
        part = yield waited
        self.in_company = part is not None
        self.had_company |= self.in_company
        self._away += time.perf_counter() - begin - (part or 0.0)


class Bursts:
    """Times a run that takes turns: from time to time it makes some steps without the others, so that speeds of models
    stay comparable."""

    EVERY, STEPS = 128, 8

    def __init__(self, wait: Callable[[], object]) -> None:
        """wait: waits until the GPU has done all its work."""
        self._wait, self._left = wait, 1
        self._begun: float | None = None
        self._n_steps, self._seconds = 0, 0.0

    def goes_on(self, disturbed: bool) -> bool:
        """Whether the next step belongs to the same burst. disturbed: the last step also did other work."""
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
