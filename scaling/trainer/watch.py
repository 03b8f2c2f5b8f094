"""Ends a process whose step does not end, because another process of its run hangs or is gone. PyTorch's own time-out
names neither the step nor what to do."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Self

from arch.amounts import counted

from ..rundir.launcher import Ranks
from ..rundir.owner import Superseded

PATIENCE_S = 1800.0  # the others wait while rank 0 writes a large checkpoint
EXIT_HUNG = 1


class Watch:
    """Inside, a process of several ends with one line where `begin` is not called for PATIENCE_S; where a collective
    fails, a line says at which step."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._patience_s, self._done = ranks, PATIENCE_S, threading.Event()
        self.begin(0)

    def begin(self, step: int) -> None:
        """Say that work on this step begins."""
        self._now = step, time.monotonic()

    def __enter__(self) -> Self:
        if self._ranks.world > 1:
            threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        if self._ranks.world > 1 and isinstance(error, RuntimeError) and not isinstance(error, Superseded):
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(f"{self._where()}: {first}", file=sys.stderr, flush=True)

    def _where(self) -> str:
        return f"rank {self._ranks.rank} of {self._ranks.world}, step {self._now[0]}"

    def _wait(self) -> None:
        while not self._done.wait(self._patience_s / 20):
            if time.monotonic() - self._now[1] > self._patience_s:
                waited = counted(round(self._patience_s), "second")
                print(
                    f"{self._where()}: nothing for {waited}: another process hangs or is gone (its log says at which "
                    f"step it stands); the run continues from its last state when it is started again",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(EXIT_HUNG)
