"""metrics.jsonl: one row per logged step, appended; cut back to the resumed step when a run continues."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from data.files import check_guards, write_bytes

WRITE_SECONDS = 1.0


class MetricsWriter:
    """Appends rows. They reach the file at least every second, and on `flush`, which also waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._lines: list[bytes] = []
        self._written = time.monotonic()

    def append(self, row: dict[str, Any]) -> None:
        self._lines.append(json.dumps(row, allow_nan=False).encode() + b"\n")
        if time.monotonic() - self._written > WRITE_SECONDS:
            self._write()

    def flush(self) -> None:
        self._write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._write()
        self._file.close()

    def _write(self) -> None:
        check_guards()
        lines, self._lines = self._lines, []
        content = memoryview(b"".join(lines))
        while content:
            content = content[self._file.write(content) :]
        self._written = time.monotonic()


def complete_rows(path: Path) -> list[tuple[int, bytes]]:
    """(step, line) of every complete row; a last line without newline, or unreadable, ends the list."""
    rows: list[tuple[int, bytes]] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            step = json.loads(line)["step"] if line.endswith(b"\n") else None
        except (ValueError, KeyError, TypeError):
            step = None
        if not isinstance(step, int) or (rows and step <= rows[-1][0]):
            break
        rows.append((step, line))
    return rows


def last_step(path: Path, until: int) -> int:
    """The last complete row's step that is at most `until`; 0 where there is none."""
    return max((step for step, _ in complete_rows(path) if step <= until), default=0)


def cut(path: Path, step: int) -> None:
    """Replace the file by its complete rows up to `step`, or leave it as it was.

    A new file even where nothing is cut: an older process of this run that still has the old one open appends to that.
    """
    kept = b"".join(line for row_step, line in complete_rows(path) if row_step <= step)
    write_bytes(path, kept, kind="metrics")
