"""Lines that pass: how far a step is that takes longer than a moment, now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

from arch.amounts import byte_size

LIVE_EVERY_S, PLAIN_EVERY_S = 0.5, 10.0  # on a terminal, elsewhere
CLEARED = "\r\x1b[K"  # of a terminal: the line that stands there is gone


def write_line(stream: TextIO, text: str, passing: bool) -> None:
    """A line that the next one replaces on a terminal while it is `passing`."""
    on_terminal = stream.isatty()
    end = "" if on_terminal and passing else "\n"
    print(f"{CLEARED}{text}" if on_terminal else text, end=end, file=stream, flush=True)


class Passing:
    """Context manager around a step. `tell` it how far the step is as often as it is known; the first line comes after
    a while, and none stays on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._last, self._shown = time.monotonic(), False

    def tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= (LIVE_EVERY_S if self._live else PLAIN_EVERY_S):
            self._last, self._shown = now, True
            write_line(self._stream, text, True)

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
