"""Claims say which worker is at which task, so that any number of processes and nodes share a matrix of them.

A worker holds an flock on <task>.claim beside the results. The kernel, or a network's file server, lets go of it when
the worker dies. Whoever got a claim looks for the result again, which the last owner may have written meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 0.2  # `is_taken` holds a claim for an instant


@contextmanager
def claimed(directory: Path, task: str) -> Iterator[bool]:
    """Whether the claim on `task` below `directory` (made if missing) is ours, until `with` ends; False where a living
    worker has it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{task}.claim"
    handle = _locked(path)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)
            os.close(handle)


def _locked(path: Path) -> int | None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
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


def is_taken(directory: Path, task: str) -> bool:
    """Whether a living worker has the claim on `task`."""
    try:
        with open(directory / f"{task}.claim", "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    return False


def clear(directory: Path) -> None:
    """Remove the claims of dead workers below `directory`: one may be killed after it stored its result."""
    for path in directory.glob("*.claim"):
        with claimed(directory, path.stem):
            pass
