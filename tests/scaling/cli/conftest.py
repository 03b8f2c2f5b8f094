"""One small study, run once for the tests of this folder, which write in copies of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import NamedTuple

import pytest

from .test_study import STUDY


class Tiny(NamedTuple):
    """The folder of a study file and its finished study, and what `scaling run` said."""

    folder: Path
    result: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Only to be read: processes that share the tests share it."""
    home = tmp_path_factory.getbasetemp()
    home = home.parent if "PYTEST_XDIST_WORKER" in os.environ else home
    folder, ended = home / "tiny-study", home / "tiny-study.json"
    with open(home / "tiny-study.lock", "w", encoding="utf-8") as lock:
        flock(lock, LOCK_EX)
        if not ended.exists():
            folder.mkdir()
            (folder / "tiny.yaml").write_text(STUDY, encoding="utf-8")
            command = [sys.executable, "-m", "scaling", "run", str(folder / "tiny.yaml"), "--out", str(folder / "out")]
            done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=600)
            ended.write_text(json.dumps([command, done.returncode, done.stdout, done.stderr]), encoding="utf-8")
    return Tiny(folder, subprocess.CompletedProcess(*json.loads(ended.read_text(encoding="utf-8"))))
