"""The code and the study as they are at submission: what queued jobs run, whatever happens to the checkout."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from arch.errors import InputError
from scaling.rundir.versions import PACKAGES, code_places, git_commit, is_installed

ROOT = Path(__file__).resolve().parents[1]
IGNORED = shutil.ignore_patterns("__pycache__", ".*")


def copy_code(target: Path, modules: Sequence[str]) -> None:
    """Copy the packages, and of modules from outside what is not installed (`code_places`), and note the commit.

    Raises InputError for a package whose folder holds `target`.
    """
    outside = {name: place for name, place in code_places(tuple(modules)).items() if not is_installed(place)}
    for name, place in outside.items():
        if target.absolute().is_relative_to(place):
            raise InputError(
                f"{place}: the package {name} holds the study's output, and is copied into it: give another --out"
            )
    target.mkdir(parents=True)
    for name, place in ({name: ROOT / name for name in PACKAGES} | outside).items():
        if place.is_dir():
            shutil.copytree(place, target / name, ignore=IGNORED)
        else:
            shutil.copy(place, target / place.name)
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
