"""Plant faults and see which tests notice: `python -m tests.golden.plant`, with names or packages only those.

Each fault goes into a copy of the checkout, one at a time; its tests run there until the first that fails, which must
pass without the fault. A fault whose old text does not stand exactly once in its file is reported as gone: its code was
rewritten, and it is to be planted anew by its words.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.toml")
TIMEOUT = 600.0  # seconds of a fault's tests, after which it counts as caught: a test hangs that did not
LEFT_OUT = (".git", ".venv", "out", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "build")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
CAUGHT, MISSED, GONE, ANYWAY = "caught", "missed", "gone", "fails without it"


@dataclass(frozen=True)
class Fault:
    """`words`: what is wrong, whatever the code; old, new: text of `file`; tests: what must notice."""

    name: str
    package: str
    words: str
    file: str
    old: str
    new: str
    tests: list[str]


@dataclass(frozen=True)
class Outcome:
    """by: the test that failed first."""

    fault: Fault
    state: str
    by: str
    seconds: float


def read_faults(path: Path) -> list[Fault]:
    return [Fault(**fields) for fields in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]]


def is_there(fault: Fault, root: Path = ROOT) -> bool:
    """Whether its old text stands exactly once in its file."""
    path = root / fault.file
    return path.is_file() and path.read_text(encoding="utf-8").count(fault.old) == 1


def copy_of_checkout(folder: Path) -> Path:
    """The checkout without what git and tools keep, and ../shared beside it as here."""
    copy = folder / "checkout"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    shared = ROOT.parent / "shared"
    if shared.is_dir():
        (folder / "shared").symlink_to(shared)
    return copy


def run_tests(copy: Path, tests: Sequence[str], timeout: float) -> tuple[int | None, str]:
    """Exit code of pytest (None: out of time) and the test that failed first."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *tests]
    env = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            words, cwd=copy, env=env, capture_output=True, text=True, encoding="utf-8", timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return None, f"out of time ({timeout:g} s)"
    failed = FAILED.search(done.stdout)
    return done.returncode, failed[1] if failed else done.stdout.strip().splitlines()[-1] if done.stdout else ""


def plant(fault: Fault, copy: Path, timeout: float) -> Outcome:
    """The file of the copy is as before afterwards."""
    if not is_there(fault, copy):
        return Outcome(fault, GONE, "", 0.0)
    path, start = copy / fault.file, time.monotonic()
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(fault.old, fault.new), encoding="utf-8")
    try:
        code, by = run_tests(copy, fault.tests, timeout)
    finally:
        path.write_text(before, encoding="utf-8")
    if code not in (None, 0, 1, 2):  # pytest's own: no tests, bad words
        raise SystemExit(f"{fault.name}: pytest ended with {code}: {by}")
    state = MISSED if code == 0 else CAUGHT
    if code in (1, 2) and run_tests(copy, [by], timeout)[0] != 0:
        state = ANYWAY
    return Outcome(fault, state, "" if code == 0 else by, time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.plant", description="Plant faults; see what notices.")
    parser.add_argument("names", nargs="*", help="of faults or packages; default: all")
    parser.add_argument("--faults", type=Path, default=FAULTS)
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds of a fault's tests")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    asked = parser.parse_args()
    faults = read_faults(asked.faults)
    if unknown := set(asked.names) - {fault.name for fault in faults} - {fault.package for fault in faults}:
        sys.exit(f"{asked.faults}: has no fault and no package {', '.join(sorted(unknown))}")
    chosen = [fault for fault in faults if not asked.names or {fault.name, fault.package} & set(asked.names)]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = copy_of_checkout(Path(folder))
        for fault in chosen:
            outcome = plant(fault, copy, asked.timeout)
            outcomes.append(outcome)
            print(
                f"{fault.package:9} {outcome.state:7} {fault.name}: {outcome.by} ({outcome.seconds:.0f} s)", flush=True
            )
    states = [outcome.state for outcome in outcomes]
    print(", ".join(f"{states.count(state)} {state}" for state in (CAUGHT, MISSED, GONE, ANYWAY)))
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n", encoding="utf-8")
    if states.count(CAUGHT) < len(states):
        sys.exit(1)


if __name__ == "__main__":
    main()
