"""One small study, run once for the tests of this folder, which write in copies of it."""

from __future__ import annotations

import subprocess
import sys
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
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.yaml").write_text(STUDY, encoding="utf-8")
    command = [sys.executable, "-m", "scaling", "run", str(folder / "tiny.yaml"), "--out", str(folder / "out")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=600, check=False)
    return Tiny(folder, done)
