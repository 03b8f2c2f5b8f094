"""A directory that is made step by step, so that a killed process' work is taken up by the next one.

    .<name>.unfinished/lock            held by the process that makes it
                       journal.json    how far it came; written once that is on disk
                       files/          what becomes the directory
                       drawn/          what is needed until then

An error removes it all; a kill or ctrl-c leaves it to be resumed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.files import read_json, write_json

JOURNAL = "journal.json"
LOOK_S = 0.2  # between looks at a lock that another process holds


class Unfinished:
    """The work on one directory: folders `files` and `drawn`, and the journal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files, self.drawn = folder, folder / "files", folder / "drawn"
        self._key: Any = None

    def begin(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """What `note` noted last for work of this key; None, with both folders empty, where there is none."""
        self._key = key
        noted = self.noted()
        if noted is None or noted["key"] != key or not (self.files.is_dir() and self.drawn.is_dir()):
            self.begin_anew()
            return None
        return dict(noted["state"])

    def begin_anew(self) -> None:
        """Empty both folders."""
        (self.folder / JOURNAL).unlink(missing_ok=True)
        for place in (self.files, self.drawn):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()

    def note(self, state: dict[str, Any]) -> None:
        """Everything that `state` describes is on disk."""
        write_json(self.folder / JOURNAL, {"key": self._key, "state": state}, kind="corpus-journal")

    def noted(self) -> dict[str, Any] | None:
        """The journal; None where nothing was noted, or it cannot be read."""
        try:
            journal = read_json(self.folder / JOURNAL)
            return journal if isinstance(journal, dict) and journal.keys() == {"key", "state"} else None
        except (OSError, ValueError):
            return None


def is_left(path: Path) -> bool:
    """Whether a process works on directory `path`, or was killed while it did."""
    return _folder(path).exists()


def _folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


@contextmanager
def unfinished(path: Path, waits: Callable[[], None]) -> Iterator[Unfinished]:
    """The work on directory `path`, which no other process does meanwhile; `waits` is called while one does.

    It is removed when the body ends or raises an error, and kept when the process is killed or interrupted.
    """
    work = Unfinished(_folder(path))
    handle = _locked(work.folder, waits)
    try:
        yield work
    except Exception:
        shutil.rmtree(work.folder, ignore_errors=True)
        raise
    except BaseException:
        if work.noted() is None:
            shutil.rmtree(work.folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(work.folder, ignore_errors=True)
    finally:
        os.close(handle)


def _locked(folder: Path, waits: Callable[[], None]) -> int:
    """An open file that holds the lock of `folder`."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(folder / "lock").st_ino == os.fstat(handle).st_ino:
                return handle
        except BlockingIOError:
            waits()
            time.sleep(LOOK_S)
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks
            return handle
        os.close(handle)
