"""A process that trains runs, in turns where it gets several: `python -m scaling.trainer.server`, which jobs.workers
starts.

It reads a line of JSON for each run, {"task": number, "argv": those of scaling.trainer.process, "log": file}, sends the
output of the run's turns to that file, and answers as jobs.workers describes. Imports, the GPU's context and its
kernels are made once; models, graphs and their memory are freed after each run. It ends at the end of its input, after
a signal once its runs have stopped, and at an unexpected error, which may have left the GPU unusable.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from . import process
from .stop import SIGNALS, StopRequest
from .turns import Lane


class Inbox:
    """The lines of a pipe, as they arrive."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._unread = pipe, b""
        self.closed = False

    def lines(self, wait: bool) -> Iterator[bytes]:
        """The lines that have arrived; wait: for at least one line, or the end."""
        while not self.closed and select.select([self._pipe], [], [], None if wait else 0)[0]:
            came = os.read(self._pipe, 1 << 16)
            self.closed = not came
            *whole, self._unread = (self._unread + came).split(b"\n")
            yield from whole
            if whole:
                return


class Run:
    """A run in training, in a lane of its own."""

    def __init__(self, task: dict[str, Any], lane: Lane, stop: StopRequest, started: float) -> None:
        self.task, self.lane = task["task"], lane
        self.code: int | None = None  # once it has ended
        self._log = os.open(task["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._steps, self._begun = process.steps(task["argv"], stop=stop, started=started), False

    def take_turn(self, waiting: float | None) -> float:
        """Make the run's next step; `waiting` and the result are those of turns.Steps."""
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        waited = 0.0
        try:
            waited = self.lane.send(self._steps, waiting if self._begun else None)
        except StopIteration as ended:
            self.code = int(ended.value)
            os.close(self._log)
        self._begun = True
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a full disk, which the run itself has reported
                stream.flush()
        return waited


def main() -> int:
    answers, inbox, stop = os.dup(1), Inbox(0), StopRequest()
    lanes, active, code = list[Lane](), list[Run](), 0
    waited = 0.0  # by all, in the round before
    started: float | None = process.STARTED  # the first run waits for the imports
    while stop.name is None or active:
        for line in inbox.lines(wait=not active) if stop.name is None else ():
            task = json.loads(line)
            os.write(answers, b"%d begun\n" % task["task"])
            active.append(Run(task, lanes.pop() if lanes else Lane(), stop, started or time.perf_counter()))
            started = None
        if not active:
            break
        part, waited = waited / len(active) if len(active) > 1 else None, 0.0
        for run in active:
            waited += run.take_turn(part)
            if run.code is not None:
                lanes.append(run.lane)
                code = run.code
                os.write(answers, b"%d %d%s\n" % (run.task, code, b" last" if stop.name else b""))
        del run
        before, active = len(active), [run for run in active if run.code is None]
        if len(active) == before:
            continue
        if not active:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)  # nothing is to be saved now
        process.free_memory()
        if active:
            gc.freeze()
    process.leave_group()
    return code if stop.name is not None else 0


if __name__ == "__main__":
    process.end_with(main)
