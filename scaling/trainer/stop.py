"""A request to end, sent as a signal: SIGTERM of a preemption, SIGUSR1 ahead of a time limit, Ctrl-C."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(Exception):
    """A signal asked a process to end that had nothing to save yet."""


class StopRequest:
    """Whether a signal asked the run to end, after the next logged step.

    The same signal again, more than a second later, ends the process at once. Another signal repeats the request: a
    parent passes Ctrl-C on as SIGTERM, a job is preempted ahead of its time limit.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._since = math.inf

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if signal.Signals(number).name == self.name and now > self._since + 1.0:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if self.name is None:
            self.name, self._since = signal.Signals(number).name, now
