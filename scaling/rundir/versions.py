"""What decides a run's numbers beside its spec: versions of packages, and the commit of this program."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path


def package_versions() -> dict[str, str]:
    """Versions of what decides the numbers, without importing any of it."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for name in ("linear-scaling", "torch", "deepspeed", "transformers", "numpy", "tiktoken"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


@cache
def git_commit() -> str | None:
    """The commit of the source tree this package runs from, with "+changes" where it differs; None outside of git.

    A submission's copy of the packages holds it in the file COMMIT.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / "COMMIT").is_file():
        return (root / "COMMIT").read_text(encoding="utf-8").strip() or None
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", timeout=20, check=False
            )
        except subprocess.TimeoutExpired:  # a slow file system is no reason to stop
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return (commit + ("+changes" if changed else "")) if commit else None
