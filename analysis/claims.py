"""Claim files beside the results say which worker is working on what, so that any number of nodes share a matrix.

A claim is <task>.claim-G, made whole or not at all (by link, which fails where there is one), removed with the result.
It names host, process and the process' start; a thread of the owner writes it anew every few seconds. A claim whose
owner is dead (on this host: no such process; on another: no heartbeat for two minutes of the file system's own clock)
is taken over by making generation G + 1: only one process can. Whoever got a claim must look for the result again,
which the last owner may have written meanwhile.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

BEAT_S = 5.0
STALE_S = 120.0
OF_RECORD: dict[str, type | tuple[type, ...]] = {
    **{"host": str, "pid": int, "start": (str, type(None))},
    "share": (int, float),
}
RECORD_BYTES = 512  # always written whole: a reader never sees a part


class Claim:
    """A claim that is ours, until `with` ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._share = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def say(self, share: float) -> None:
        """How far the work is, 0 to 1; written with the next heartbeat."""
        self._share = share

    def __enter__(self) -> Claim:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        stem, _, own = self.path.name.rpartition("-")
        for generation in range(int(own) + 1):
            self.path.with_name(f"{stem}-{generation}").unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(OSError):  # a disk that is full for a moment; if it stays so, storing the result tells
                self._write()

    def _write(self) -> None:
        handle = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(handle, _record(self._share), 0)
        finally:
            os.close(handle)


def take(directory: Path, task: str) -> Claim | None:
    """The claim on `task` below `directory` (made if missing), None where a living worker has it."""
    directory.mkdir(parents=True, exist_ok=True)
    held = _newest(directory, task)
    if held is not None and is_alive(held[1]):
        return None
    path = directory / f"{task}.claim-{held[0] + 1 if held else 0}"
    whole = directory / f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp"
    whole.write_bytes(_record(0.0))
    try:
        os.link(whole, path)
    except (FileExistsError, FileNotFoundError):  # somebody was quicker; or a command that began now swept `whole` away
        return None
    finally:
        whole.unlink(missing_ok=True)
    return Claim(path)


def progress_of(directory: Path, task: str) -> float | None:
    """The share done (0..1) of the living claim on `task`, None where no worker has one."""
    held = _newest(directory, task)
    if held is None or not is_alive(held[1]):
        return None
    record = _read(held[1])
    return float(record["share"]) if record else 0.0


def clear(directory: Path) -> None:
    """Remove the claims of dead workers below `directory`: one may be killed after it stored its result."""
    for task in {path.name.rpartition(".claim-")[0] for path in directory.glob("*.claim-*")}:
        claim = take(directory, task)
        if claim is not None:
            with claim:
                pass


def is_alive(path: Path) -> bool:
    """Whether the owner of the claim at `path` still works."""
    record = _read(path)
    if record is not None and record["host"] == _host() and record["start"] is not None:
        return bool(_start_of(record["pid"]) == record["start"])
    try:
        return _file_system_now(path.parent) - path.stat().st_mtime < STALE_S
    except FileNotFoundError:  # released
        return False


def _record(share: float) -> bytes:
    """What this process writes into its claims, RECORD_BYTES long."""
    record = {"host": _host(), "pid": os.getpid(), "start": _start_of(os.getpid()), "share": share}
    return json.dumps(record, ensure_ascii=False).encode().ljust(RECORD_BYTES)


def _newest(directory: Path, task: str) -> tuple[int, Path] | None:
    prefix = f"{task}.claim-"
    with suppress(OSError), os.scandir(directory) as entries:  # what is wrong with it shows where a claim is made
        endings = [entry.name.removeprefix(prefix) for entry in entries if entry.name.startswith(prefix)]
        if generations := [int(ending) for ending in endings if ending.isdecimal()]:
            return max(generations), directory / f"{prefix}{max(generations)}"
    return None


def _read(path: Path) -> dict[str, Any] | None:
    """A claim's record; None where there is none, or something else stands there."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and all(isinstance(record.get(key), kind) for key, kind in OF_RECORD.items())
    return record if whole else None


@cache
def _host() -> str:
    """This machine since its last start, and the process numbers' own space on it (a container may have one)."""
    parts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            is_link = path.endswith("/pid")
            parts.append(os.readlink(path) if is_link else Path(path).read_bytes().decode(errors="replace").strip())
    return " ".join(parts)


def _start_of(pid: int) -> str | None:
    """When process `pid` began, in the kernel's ticks: numbers are used again, pairs are not. None where there is no
    such process (a zombie is none), or no /proc to ask."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _file_system_now(directory: Path) -> float:
    """The clock that stamps files there, which on a network is another machine's."""
    path = directory / f".clock-{socket.gethostname()}.{os.getpid()}.tmp"
    path.touch()
    try:
        return path.stat().st_mtime
    finally:
        path.unlink(missing_ok=True)
