"""The child processes of this machine's tasks: one for each task, or one that serves several.

A process that serves gets each task as a line of JSON on its standard input, {"task", "argv", "log"}. On its
standard output it answers with the task's number and "begun" when it has read that line, then with the number and the
task's exit code, and "last" behind them where it takes no other; its own output goes to the logs of the tasks at hand.
Tasks whose shares of a slot fit together are at work in it at the same time. Where it ends, a task that it began alone
has ended with it. Those that it began in company get a process of their own, one that it did not begin a fresh one.
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
from dataclasses import dataclass, field, replace
from pathlib import Path

from scaling.rundir.launcher import alone

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """A command: `argv`, changes to the environment, and the file its output is appended to.

    `server`, where given, is the command of a process that serves such tasks; `argv` is then what it is sent, and
    `share` its part of that process: those at work at the same time have at most 1 together. `after`: the name of the
    task, of those given with it, that must end well before.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    server: Sequence[str] = ()
    after: str | None = None
    share: float = 1.0


class Worker:
    """A child process at work on `task`; on `cores` and `gpus` (CUDA_VISIBLE_DEVICES) alone where they are given."""

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
                env=alone(os.environ) | place | self._env,
                preexec_fn=_in_child(cores),
            )
        self.tasks: dict[int, Task] = {}  # that it is at work on, by the number that it knows them by
        self._begun, self._codes = set[int](), dict[int, int]()
        self._n_given = 0
        self._unread, self._last = b"", False
        if self._server:
            assert self.process.stdout is not None
            os.set_blocking(self.process.stdout.fileno(), False)
        self.give(task)

    @property
    def share(self) -> float:
        """Of the tasks that it is at work on, together."""
        return sum(task.share for task in self.tasks.values())

    def takes(self, task: Task) -> bool:
        """Whether this process can be given this task beside those that it has."""
        alike = (tuple(task.server), dict(task.env)) == (self._server, self._env)
        fits = self.share + task.share < 1 + 1e-6
        return bool(self._server) and alike and fits and not self._last and self.process.poll() is None

    def give(self, task: Task) -> None:
        """Let a process that serves do this task; one that has ended meanwhile gives it back."""
        number = self._n_given
        self._n_given += 1
        self.tasks[number] = task
        if not self._server:
            self._begun.add(number)
            return
        task.log.parent.mkdir(parents=True, exist_ok=True)
        request = {"task": number, "argv": list(task.argv), "log": str(task.log)}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def ended(self) -> tuple[list[tuple[Task, int]], list[Task], list[Task]]:
        """Of the tasks since the last call: those that have ended, with their exit codes, and those that another
        process must do since this one has ended: begun beside others; and not begun."""
        code = self.process.poll()  # polled first: all that it wrote before its end can then be read
        self._read()
        ended = [(self.tasks.pop(number), exit_code) for number, exit_code in self._codes.items()]
        self._codes = {}
        if code is None or not self.tasks:
            return ended, [], []
        left, self.tasks = self.tasks, {}
        if not self._begun:  # no task is the cause, and it would happen again
            return [*ended, *((task, code) for task in left.values())], [], []
        begun = self._begun & left.keys()
        if len(begun) == 1:
            ended.append((left.pop(begun.pop()), code))
        lost = [replace(left.pop(number), share=1.0) for number in sorted(begun & left.keys())]
        return ended, lost, list(left.values())  # of several, the one that ended the process is unknown

    def _read(self) -> None:
        if not self._server:
            return
        assert self.process.stdout is not None
        self._unread += self.process.stdout.read() or b""
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            words = line.split()
            number = int(words[0]) if len(words) > 1 and words[0].isdigit() else -1
            if number not in self.tasks:  # printed by something else
                continue
            if words[1:] == [b"begun"]:
                self._begun.add(number)
            elif number in self._begun and words[1].isdigit():
                self._codes[number], self._last = int(words[1]), self._last or words[2:] == [b"last"]

    def dismiss(self) -> None:
        """Let a process that serves end, since nothing comes any more."""
        self._last = True
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
