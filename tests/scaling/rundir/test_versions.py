"""The commit that a run's record names."""

import subprocess
from pathlib import Path

import pytest

from scaling.rundir.versions import git_commit


def test_the_commit_is_that_of_the_source_tree():
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert (git_commit() or "").removesuffix("+changes") == head.strip()
