"""Commands on files that others made, in one process of their own: what each says, how long it takes, its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EVIL = "evil_plugin"  # a module that makes the folder MARK when it is imported
MARK = "IT-RAN"

# argv: a file with groups of command lines of `scaling`; a word with * is the first path that it stands for, and its
# command is left out where there is none. Prints a line of JSON for each group.
MEASURES = """
import glob, json, sys, time
from pathlib import Path
from typer.testing import CliRunner
from arch.errors import InputError
from scaling.cli.main import app

def error_of(words):
    words = [next(iter(glob.glob(word)), None) if "*" in word else word for word in words]
    result = None if None in words else CliRunner().invoke(app, words)
    if result is None or result.exception is None or isinstance(result.exception, SystemExit):
        return ""
    assert isinstance(result.exception, InputError), (words, repr(result.exception))
    return str(result.exception)

def memory(key):
    (line,) = (line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) >> 10

for group in json.loads(Path(sys.argv[1]).read_text()):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begun, idle = time.perf_counter(), memory("VmRSS")
    lines = [error_of(words) for words in group]
    print(json.dumps([lines, time.perf_counter() - begun, memory("VmHWM") - idle]), flush=True)
"""


@dataclass(frozen=True)
class Measured:
    """lines: the line of error of each command, "" where it has none; megabytes: the most that they took above what the
    process had before them."""

    lines: list[str]
    seconds: float
    megabytes: int


def measured(folder: Path, groups: Sequence[Sequence[Sequence[object]]]) -> list[Measured]:
    """Of each group of commands, run in `folder`. The first group is run twice, for what is imported once."""
    (folder / f"{EVIL}.py").write_text(f"import os\nos.mkdir({str(folder / MARK)!r})\n", encoding="utf-8")
    words = [[[str(word) for word in command] for command in group] for group in (groups[0], *groups)]
    (folder / "commands.json").write_text(json.dumps(words), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURES, str(folder / "commands.json")]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", errors="replace", timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    results = [Measured(*json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(results) == len(words) and not (folder / MARK).exists(), "something ran"
    return results[1:]
