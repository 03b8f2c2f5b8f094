"""The code and the study as they are at submission: what queued jobs run, whatever happens to the checkout."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from arch.errors import InputError
from scaling.rundir.directory import git_commit

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("arch", "data", "flops", "scaling", "jobs", "analysis")
IGNORED = shutil.ignore_patterns("__pycache__", ".*")


def copy_code(target: Path, plugins: Sequence[str]) -> None:
    """Copy the packages, and the plugins' modules unless they are installed, and note the commit they are of."""
    target.mkdir(parents=True)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, target / name, ignore=IGNORED)
    for module in plugins:
        _copy_module(module.split(".")[0], target)
    (target / "COMMIT").write_text(git_commit() or "")


def copy_study(file: Path, target: Path) -> None:
    """Copy the study file byte by byte."""
    try:
        target.write_bytes(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file}: cannot be copied to {target}: {error}") from None


def _copy_module(name: str, target: Path) -> None:
    spec = importlib.util.find_spec(name)
    installed = Path(sysconfig.get_paths()["purelib"])
    if spec is None or spec.origin is None or (target / name).exists():
        return
    origin = Path(spec.origin).resolve()
    if origin.is_relative_to(installed.resolve()):
        return
    if origin.name == "__init__.py":
        shutil.copytree(origin.parent, target / name, ignore=IGNORED)
    else:
        shutil.copy(origin, target / origin.name)
