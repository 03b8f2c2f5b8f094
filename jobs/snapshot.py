"""The code and the study as they are at submission: what queued jobs run, whatever happens to the checkout."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from arch.errors import InputError
from scaling.rundir.versions import git_commit

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
    (target / "COMMIT").write_text(git_commit() or "", encoding="utf-8")


def copy_study(file: Path, target: Path, law_files: Sequence[str]) -> None:
    """Copy the study file byte by byte, and the law files that it names by relative paths to the same places beside it.

    Raises InputError for one that lies elsewhere than below the study file's folder.
    """
    _copy(file, target)
    for name in law_files:
        if Path(name).expanduser().is_absolute():
            continue
        if ".." in Path(name).parts:
            raise InputError(
                f"training.lr_law: {name}: lies outside of the study file's folder, of which jobs have a copy: give "
                f"its absolute path"
            )
        (target.parent / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(file.parent / name, target.parent / name)


def _copy(file: Path, target: Path) -> None:
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
