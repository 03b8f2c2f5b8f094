"""The child processes of this machine's tasks: one for each task, or one that serves several, one after another.

A process that serves is told of a task by a line of JSON on its standard input, {"argv", "log"}. On its standard output
it answers "begun" when it has read that line, then the task's exit code, with "last" behind it where it takes no other;
its own output goes to the log of the task at hand. Where it ends, the task that it began has ended with it; one that it
did not begin gets a fresh process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """A command: `argv`, changes to the environment, and the file its output is appended to.

    `server`, where given, is the command of a process that serves such tasks; `argv` is then what it is told. `after`:
    the name of the task, of those given with it, that must end well before.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    server: Sequence[str] = ()
    after: str | None = None


class Worker:
    """A child process at work on a task; on `cores` and `gpus` (CUDA_VISIBLE_DEVICES) alone where they are given."""

    def __init__(self, task: Task, cores: set[int] | None, gpus: str | None) -> None:
        place = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
        self._server, self._env = tuple(task.server), dict(task.env)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        with open(task.log, "ab") as log:
            self.process = subprocess.Popen(
                list(task.server or task.argv),
                stdin=subprocess.PIPE if self._server else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._server else log,
                stderr=log if self._server else subprocess.STDOUT,
                env=os.environ | place | self._env,
                preexec_fn=_in_child(cores),
            )
        self._unread = b""
        self._begun, self._last, self._served = not self._server, False, 0
        self._code: int | None = None
        if self._server:
            assert self.process.stdout is not None
            os.set_blocking(self.process.stdout.fileno(), False)
            self.give(task)

    def takes(self, task: Task) -> bool:
        """Whether this process, which has finished a task, can be given this one."""
        alike = (tuple(task.server), dict(task.env)) == (self._server, self._env)
        return bool(self._server) and alike and not self._last and self.process.poll() is None

    def give(self, task: Task) -> None:
        """Let a process that serves do this task. One that has ended meanwhile is `gone`."""
        self._begun, self._code = False, None
        task.log.parent.mkdir(parents=True, exist_ok=True)
        told = {"argv": list(task.argv), "log": str(task.log)}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(told).encode() + b"\n")
            self.process.stdin.flush()

    def exit_code(self) -> int | None:
        """Of the task that it was given last; None while that runs, and where it is `gone`."""
        ended = self.process.poll()  # asked first: what it answered before it ended is then here
        self._read()
        if self._code is not None:
            return self._code
        return ended if self._begun or not self._served else None

    @property
    def gone(self) -> bool:
        """Whether it ended after an earlier task, before it began the one that it was given last."""
        return self._served > 0 and not self._begun and self.process.poll() is not None

    def _read(self) -> None:
        if not self._server:
            return
        assert self.process.stdout is not None
        self._unread += self.process.stdout.read() or b""
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            words = line.split()
            if words == [b"begun"]:
                self._begun = True
            elif self._begun and words and words[0].isdigit():  # others are strays of something that prints
                self._code, self._last = int(words[0]), words[1:] == [b"last"]
                self._served += 1

    def dismiss(self) -> None:
        """Let a process that serves end, since nothing comes any more."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


def _in_child(cores: set[int] | None) -> Callable[[], None]:
    """What a child does before its exec. Libraries are loaded here, in the parent: a forked child must not."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)
        if cores:
            os.sched_setaffinity(0, cores)

    return prepare
