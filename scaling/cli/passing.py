"""Lines that pass: how far a step is that takes longer than a moment, now and then."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from arch.amounts import byte_size

LIVE_EVERY_S, PLAIN_EVERY_S = 0.5, 10.0  # on a terminal, elsewhere
CLEARED = "\r\x1b[K"  # erases the current line of a terminal


class Passing:
    """Context manager around a step. `show` how far the step is as often as it is known, in words or as what makes
    them, which is called where a line is due; on a terminal the next line replaces it, and none stays."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live, self._shown = stream, stream.isatty(), False
        self._last = time.monotonic()

    def show(self, text: str | Callable[[], str]) -> None:
        now = time.monotonic()
        if now - self._last < (LIVE_EVERY_S if self._live else PLAIN_EVERY_S):
            return
        self._last, line = now, text if isinstance(text, str) else text()
        if self._live:
            self._shown = True
            line = line[: shutil.get_terminal_size().columns - 1]  # a longer one could not be erased
        print(f"{CLEARED}{line}" if self._live else line, end="" if self._live else "\n", file=self._stream, flush=True)

    def show_bytes(self, what: str, done: int, total: int) -> None:
        if total:
            self.show(f"{what}: {done / total:.0%} of {byte_size(total)}")

    def say(self, text: str) -> None:
        """A line that stays."""
        print(f"{CLEARED}{text}" if self._live else text, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live and self._shown:
            print(CLEARED, end="", file=self._stream, flush=True)
