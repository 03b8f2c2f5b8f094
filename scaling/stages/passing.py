"""Lines that pass: how far a step is that takes longer than a moment, now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from arch.amounts import byte_size

LIVE_EVERY_S, PLAIN_EVERY_S = 0.5, 10.0  # on a terminal, elsewhere
CLEARED = "\r\x1b[K"  # erases the current line of a terminal


def write_line(stream: TextIO, text: str, passing: bool) -> None:
    """A line that the next one replaces on a terminal while it is `passing`."""
    on_terminal = stream.isatty()
    end = "" if on_terminal and passing else "\n"
    print(f"{CLEARED}{text}" if on_terminal else text, end=end, file=stream, flush=True)


class Throttle:
    """When another line to `stream` is due: the first after a while, then now and again."""

    def __init__(self, stream: TextIO) -> None:
        self._live, self._last = stream.isatty(), time.monotonic()

    def is_due(self) -> bool:
        """Whether it is; then the next one is not for a while."""
        now = time.monotonic()
        if now - self._last < (LIVE_EVERY_S if self._live else PLAIN_EVERY_S):
            return False
        self._last = now
        return True


class Passing:
    """Context manager around a step. `tell` it how far the step is as often as it is known, in words or as what makes
    them, which is called where a line is due; none stays on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live, self._shown = stream, stream.isatty(), False
        self._throttle = Throttle(stream)

    def tell(self, text: str | Callable[[], str]) -> None:
        if self._throttle.is_due():
            self._shown = True
            write_line(self._stream, text if isinstance(text, str) else text(), True)

    def tell_bytes(self, what: str, done: int, total: int) -> None:
        if total:
            self.tell(f"{what}: {done / total:.0%} of {byte_size(total)}")

    def __enter__(self) -> Passing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live and self._shown:
            print(CLEARED, end="", file=self._stream, flush=True)
