"""Claims say which worker is at which task, so that any number of processes and nodes share a matrix of them.

A worker holds an flock on <task>.claim beside the results. The kernel, or a network's file server, lets go of it when
the worker dies. Whoever got a claim looks for the result again, which the last owner may have written meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PATIENCE_S = 0.2  # `progress_of` holds a claim for an instant
SHARE = "{:.6f}"  # of one length, so that a reader never sees the rest of a longer one


class Claim:
    """A claim that is ours, until `with` ends."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self._handle = path, handle

    def say(self, share: float) -> None:
        """How far the work is, 0 to 1."""
        with suppress(OSError):  # a disk that is full for a moment; if it stays so, storing the result tells
            os.pwrite(self._handle, SHARE.format(share).encode(), 0)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._handle)


def take(directory: Path, task: str) -> Claim | None:
    """The claim on `task` below `directory` (made if missing), None where a living worker has it."""
    directory.mkdir(parents=True, exist_ok=True)
    path, deadline = directory / f"{task}.claim", time.monotonic() + PATIENCE_S
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                os.ftruncate(handle, 0)  # of what a dead owner wrote
                return Claim(path, handle)
        except FileNotFoundError:  # its owner has removed it since
            pass
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                return None
            time.sleep(0.01)
        except OSError:
            os.close(handle)
            raise
        os.close(handle)


def progress_of(directory: Path, task: str) -> float | None:
    """The share done (0..1) of the living claim on `task`, None where no worker has one."""
    with suppress(FileNotFoundError, NotADirectoryError), open(directory / f"{task}.claim", "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return float(handle.read() or 0)
    return None


def clear(directory: Path) -> None:
    """Remove the claims of dead workers below `directory`: one may be killed after it stored its result."""
    for path in directory.glob("*.claim"):
        if (claim := take(directory, path.stem)) is not None:
            with claim:
                pass
