"""metrics.jsonl: one row per logged step, appended; cut back to the resumed step when a run continues; read again only
where it says what a run can have written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from data.files import check_guards, write_bytes, writing

WRITE_SECONDS = 1.0
RECENT_S, RECENT_ROWS = 60.0, 10  # of a run's own time, which its pace is of, and the fewest rows
COUNTS = ("step", "n_tokens")  # keys that every row has, with `loss`
REQUIRED = {*COUNTS, "loss"}
PLAIN = re.compile(rb"\{[^][{}]*\}")  # an object without another in it: as many lines are as many objects
NUMBERS = ("loss", "grad_norm", "lr", "time_s", "tokens_per_s")


class MetricsWriter:
    """Appends rows. They reach the file at least every second, and on `flush`, which also waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._lines: list[bytes] = []
        self._written = time.monotonic()

    def append(self, row: dict[str, Any]) -> None:
        self._lines.append(json.dumps(row, allow_nan=False).encode() + b"\n")
        if time.monotonic() - self._written > WRITE_SECONDS:
            self._write()

    def flush(self) -> None:
        self._write()
        with writing(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._write()
        self._file.close()

    def _write(self) -> None:
        check_guards()
        lines, self._lines = self._lines, []
        content = memoryview(b"".join(lines))
        with writing(self._path):
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


def record_of(path: Path, until: int | None = None) -> dict[str, Any]:
    """What a record says of the rows of a file, or of those up to step `until`: {"rows": count, "sha256": of their
    lines}. Other content of the whole file is part of its digest."""
    if until is None:
        return record_of_lines(path.read_bytes() if path.exists() else b"")
    return record_of_lines(_up_to(path, until))


def record_of_lines(content: bytes) -> dict[str, Any]:
    """The record of rows by their lines."""
    return {"rows": content.count(b"\n"), "sha256": hashlib.sha256(content).hexdigest()}


def _up_to(path: Path, step: int) -> bytes:
    """The complete rows up to `step`."""
    return b"".join(line for row_step, line in complete_rows(path) if row_step <= step)


def last_step(path: Path, until: int) -> int:
    """The last complete row's step that is at most `until`; 0 where there is none."""
    return max((step for step, _ in complete_rows(path) if step <= until), default=0)


def cut(path: Path, step: int) -> None:
    """Replace the file by its complete rows up to `step`, or leave it as it was.

    A new file even where nothing is cut: an older process of this run that still has the old one open appends to that.
    """
    write_bytes(path, _up_to(path, step), kind="metrics")


@dataclass(frozen=True)
class Rows:
    """The rows of a run, by step, and how many lines were left out, by reason."""

    rows: list[dict[str, Any]]
    left_out: dict[str, int]


def checked_rows(path: Path, batch_tokens: int, n_steps: int, begins_after: int = 0) -> Rows:
    """What a run of `n_steps` steps of `batch_tokens` tokens can have written to `path`; a missing file has no rows.
    begins_after: of a branch, the step of its trunk from which it goes on.

    Left out is what follows the last newline (a run was killed while writing it), what is no row of numbers, whose
    tokens are not those of its step, or whose step the run does not have. Of two equal rows one counts; where two rows
    of one step differ, either may be wrong, and neither counts.
    """
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    left_out = Counter({"cut short": 1} if lines.pop().strip() else {})
    by_step: dict[int, list[dict[str, Any]]] = {}
    for row, reason in _read_rows(lines):
        if row is not None and row["n_tokens"] != row["step"] * batch_tokens:
            row, reason = None, "whose n_tokens is not its step x batch_tokens"
        elif row is not None and row["step"] > n_steps:
            row, reason = None, "after the run's last step"
        elif row is not None and row["step"] <= begins_after:
            row, reason = None, "before the branch begins"
        if row is None:
            left_out[reason] += 1
        else:
            by_step.setdefault(row["step"], []).append(row)
    rows = [same[0] for _, same in sorted(by_step.items()) if all(row == same[0] for row in same)]
    if again := sum(map(len, by_step.values())) - len(rows):
        left_out["of a step given more than once"] = again
    return Rows(rows, dict(left_out))


@dataclass(frozen=True)
class Pace:
    """Tokens a second of a run in its last minute, or last rows, and the share that its median step makes there of the
    median step's speed before: below 1 where something slows it down. None before there are such rows."""

    tokens_per_s: float | None = None
    share: float | None = None


def pace_of(rows_back: Iterable[dict[str, Any]]) -> Pace:
    """The pace by rows of one process's training, the last row first; those of processes before it do not count."""
    times, tokens = list[float](), list[int]()
    for row in rows_back:
        time_s = row.get("time_s")
        if time_s is None or (times and time_s >= times[-1]):
            break
        times.append(time_s)
        tokens.append(row["n_tokens"])
    if len(times) < 2:
        return Pace()
    recent = max(RECENT_ROWS, sum(time_s >= times[0] - RECENT_S for time_s in times))
    end = min(recent, len(times)) - 1
    speed = (tokens[0] - tokens[end]) / (times[0] - times[end])
    speeds = [(tokens[i] - tokens[i + 1]) / (times[i] - times[i + 1]) for i in range(len(times) - 1)]
    before = speeds[recent:]
    return Pace(speed, median(speeds[:recent]) / median(before) if len(before) >= RECENT_ROWS else None)


def _read_rows(lines: list[bytes]) -> list[tuple[dict[str, Any] | None, str]]:
    """`read_row` of each line; parsed together where all are plain objects, as the writer's are, which takes a third of
    the time."""
    if all(map(PLAIN.fullmatch, lines)):
        with suppress(ValueError):
            return [_checked(row) for row in json.loads(b"[" + b",".join(lines) + b"]")]
    return [read_row(line) for line in lines]


def read_row(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """A line as a row, or None and what it is instead."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None, "no JSON object"
    return _checked(row) if isinstance(row, dict) else (None, "no JSON object")


def _checked(row: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    if not row.keys() >= REQUIRED:
        return None, "without step, n_tokens or loss"
    for key in COUNTS:
        if type(row[key]) is not int or row[key] < 1:
            return None, f"whose {key} is no count"
    for key in NUMBERS:
        value = row.get(key, 0.0)
        if type(value) not in (int, float) or not -1e300 < value < 1e300:
            return None, f"whose {key} is no finite number"
    return (row, "") if row["loss"] > 0 else (None, "whose loss is not positive")
