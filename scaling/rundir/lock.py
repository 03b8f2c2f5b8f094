"""One writer at a time: an flock on <directory>/.lock, which the kernel lets go of when its holder dies, however.

A study is held by the command that works on it, a run by the process that trains it, which may have been started by
hand or by a scheduler. A holder that wrote nothing leaves nothing: neither the file nor the folders made for it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from arch.errors import InputError

if TYPE_CHECKING:
    from .owner import Attempt

LOCK = ".lock"
PATIENCE_S = 2.0  # is_locked holds a lock for an instant, and a killed holder takes one to die
TRIALS = 100  # to make and open a lock whose folder other holders remove, a millisecond apart
TRACKING_S = 120.0  # twice as long as it takes at most
TAKEOVER_S = 300.0  # an older owner ends by itself within seconds; a file server lets go of a lost node's lock later


def study_lock(directory: Path) -> AbstractContextManager[None]:
    """Hold the study at `directory` (made if missing).

    Raises InputError where another process holds it, or nothing can be written there.
    """
    return _lock(directory, "is working on this study", PATIENCE_S, None)


def run_lock(directory: Path, attempt: Attempt | None = None) -> AbstractContextManager[None]:
    """Hold the run at `directory` while it is trained; raises InputError as study_lock does.

    With `attempt`, the process that holds it now is an older attempt, which ends as soon as it sees the newer one: the
    wait is longer. Raises Superseded where a still newer attempt comes meanwhile.
    """
    patience = PATIENCE_S if attempt is None else TAKEOVER_S
    return _lock(directory, "is training this run", patience, attempt)


def tracking_lock(directory: Path) -> AbstractContextManager[None]:
    """Hold a folder of trackers' files, once the process before has sent what it has. Raises InputError as study_lock
    does."""
    return _lock(directory, "sends rows to trackers", TRACKING_S, None)


@contextmanager
def _lock(directory: Path, what: str, patience_s: float, attempt: Attempt | None) -> Iterator[None]:
    created = [path for path in (directory, *directory.parents) if not path.exists()]
    deadline = time.monotonic() + patience_s
    try:
        while True:
            handle = _opened(directory)
            with handle:
                try:
                    acquired = _acquire(handle, deadline, attempt)
                except OSError as error:
                    raise InputError(f"{directory}: cannot be locked ({error.strerror}): give another --out") from None
                if not acquired:
                    handle.seek(0)
                    raise InputError(
                        f"{directory}: process {handle.read(20).strip() or '?'} {what}: wait for it, stop it, or give "
                        f"another --out"
                    )
                if not _is_there(directory, handle):  # its holder had written nothing, and removed it
                    continue
                with suppress(OSError):  # on a full disk the file names no process, and the lock holds all the same
                    os.truncate(handle.fileno(), 0)
                    os.write(handle.fileno(), f"{os.getpid()}\n".encode())
                try:
                    yield
                finally:
                    with suppress(OSError):
                        if os.listdir(directory) == [LOCK]:
                            (directory / LOCK).unlink()
                return
    finally:
        for path in created:  # those that nothing was written to
            with suppress(OSError):
                path.rmdir()


def _opened(directory: Path) -> TextIO:
    """The lock's file, made if missing. Raises InputError where it cannot be."""
    for trial in range(TRIALS):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            return open(directory / LOCK, "a+", encoding="utf-8", errors="replace")
        except OSError as error:
            # Another holder removes the empty folder: between its making and the opening of the file, or between
            # mkdir's finding it there and mkdir's look at whether it is a folder.
            if isinstance(error, (FileNotFoundError, FileExistsError)) and trial < TRIALS - 1:
                time.sleep(0.001)
                continue
            raise InputError(f"{directory}: cannot be written ({error.strerror}): give another --out") from None
    raise AssertionError("unreachable")


def _is_there(directory: Path, handle: TextIO) -> bool:
    """Whether `handle` is still the lock that others would open."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(directory / LOCK))
    except FileNotFoundError:
        return False


def _acquire(handle: TextIO, deadline: float, attempt: Attempt | None) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        if attempt is not None:
            attempt.check()
        time.sleep(0.05)


def is_locked(directory: Path) -> bool:
    """Whether a process holds the study or run at `directory` right now."""
    try:
        with open(directory / LOCK, "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or one of another user, so no process of this user holds it
        return False
    return False
