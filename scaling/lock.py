"""One writer for a study: an flock on <study>/.lock, which the kernel lets go of when its holder dies, however."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arch.errors import InputError


@contextmanager
def study_lock(directory: Path) -> Iterator[None]:
    """Hold the study at `directory` (made if missing).

    Raises InputError where another process holds it, or nothing can be written there.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = open(directory / ".lock", "a+")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror}): give another --out") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise InputError(
                f"{directory}: process {handle.read().strip() or '?'} is working on this study: wait for it, stop it, "
                f"or give another --out"
            ) from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


def is_locked(directory: Path) -> bool:
    """Whether a process works on the study right now."""
    try:
        with open(directory / ".lock") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
