"""What decides a run's numbers beside its spec: versions of packages, the code of plugins, and the commit of this
program."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from data.files import sha256

PACKAGES = ("arch", "data", "flops", "scaling", "jobs", "analysis")  # this program's
INSTALLED = ("site-packages", "dist-packages")
SOURCES = {".py", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so"}
THEN = " then "  # between the codes of a plugin that one run was trained with


def package_versions(plugins: Iterable[str] = ()) -> dict[str, str]:
    """Versions of what decides the numbers, without importing any of it, and the code of plugins (`code_digests`)."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for name in ("linear-scaling", "torch", "deepspeed", "transformers", "numpy", "tiktoken"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions | code_digests(tuple(plugins))


@cache
def code_places(modules: tuple[str, ...]) -> dict[str, Path]:
    """Where the code of modules from outside lies, without importing it: the file of each, or the folder of its
    outermost package, by name; likewise of what it imports, in functions too, that is not installed. What belongs to
    Python or this program is left out."""
    places: dict[str, Path] = {}
    todo = [(module.partition(".")[0], True) for module in modules]
    while todo:
        name, is_named = todo.pop()
        if name in places or name in PACKAGES or name in sys.stdlib_module_names:
            continue
        place = _place(name)
        if place is not None and (is_named or not is_installed(place)):
            places[name] = place
            todo += [(imported, False) for file in _sources(place) for imported in _imported(file)]
    return dict(sorted(places.items()))


@cache
def code_digests(modules: tuple[str, ...]) -> dict[str, str]:
    """16 hex digits of the SHA-256 of each of `code_places`: of the file, or over the sources of a folder."""
    return {name: _digest(place) for name, place in code_places(modules).items()}


def is_installed(place: Path) -> bool:
    return any(part in INSTALLED for part in place.parts)


def other_code(recorded: Mapping[str, Any], plugins: Iterable[str]) -> dict[str, str]:
    """The digests of the plugins' code that are not those, or not the last of those, of a run's recorded versions."""
    digests = code_digests(tuple(plugins))
    return {name: now for name, now in digests.items() if str(recorded.get(name)).split(THEN)[-1] != now}


def _place(module: str) -> Path | None:
    """The file of a module, or the folder of a package; None where Python finds neither."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    origin = spec.origin if spec.has_location else None
    place = next(iter(spec.submodule_search_locations or ()), origin)  # a package's folder
    return Path(place).resolve() if place is not None and Path(place).exists() else None


def _sources(place: Path) -> Iterator[Path]:
    """The files of a module or package that are code, in order; without hidden ones."""
    if not place.is_dir():
        yield place
        return
    for path in sorted(place.iterdir()):
        if not path.name.startswith((".", "__pycache__")) and (path.is_dir() or path.suffix in SOURCES):
            yield from _sources(path)


def _imported(file: Path) -> Iterator[str]:
    """The outermost names of what a file imports."""
    try:
        tree = ast.parse(file.read_bytes()) if file.suffix == ".py" else None
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _digest(place: Path) -> str:
    if not place.is_dir():
        return sha256(place)[:16]
    files = "".join(f"{sha256(file)}  {file.relative_to(place).as_posix()}\n" for file in _sources(place))
    return hashlib.sha256(files.encode()).hexdigest()[:16]


@cache
def program_digest() -> str:
    """16 hex digits over the sources of this program, as they are now."""
    root = Path(__file__).resolve().parents[2]
    return hashlib.sha256("".join(_digest(root / name) for name in PACKAGES).encode()).hexdigest()[:16]


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
