"""Runs that take turns: each is a generator that hands over between its steps, so that one process trains several.

On a GPU each has a stream of its own. A small run's kernels do not fill the GPU, and those of several streams run at
the same time; results are those of the run alone, to the bit.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Steps = Generator[None, None, int]  # one `next` a step; it returns the exit code


def finish(steps: Steps) -> int:
    """Make all steps, with nobody else; returns the exit code."""
    while (code := taken(steps)) is None:
        pass
    return code


def taken(steps: Steps) -> int | None:
    """Make one step; the exit code where it was the last."""
    try:
        next(steps)
    except StopIteration as ended:
        return int(ended.value)
    return None


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

    def take_turn(self, steps: Steps) -> int | None:
        """`taken` in this lane."""
        with self.entered():
            return self._context.run(taken, steps)
