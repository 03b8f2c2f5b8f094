"""Python's own library, and the installed packages, as sources: real text everywhere."""

from __future__ import annotations

import platform
import re
import sysconfig
from importlib import metadata
from pathlib import Path

from arch.errors import InputError, nearest

from .files import Files, SourceFile, walk

SKIPPED = frozenset({"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"})


def stdlib(source: str) -> Files:
    """`stdlib:`: the running Python's library, .py files without tests."""
    if source != "stdlib:":
        raise InputError(f"corpus.source: {source!r} names more than there is: write 'stdlib:'")
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        SourceFile(root / name, f"stdlib:{name}")
        for name in walk(root, SKIPPED)
        # config-* and _sysconfigdata* are written by the build of this one interpreter: not library source
        if name.endswith(".py") and not name.startswith(("config-", "_sysconfigdata"))
    ]
    if not files:
        raise InputError(f"corpus.source: 'stdlib:' finds no .py source below {root}; name a file or folder instead")
    return Files(files, {"python": platform.python_version()})


def packages(source: str) -> Files:
    """`packages:` every installed package, `packages:torch,numpy==2.4.6` some, by the names that pip knows: .py files
    without tests. Raises InputError where one is not installed, or in another version."""
    installed = _installed()
    wanted = dict[str, str]()
    for requested in filter(None, source.removeprefix("packages:").split(",")):
        name, _, version = requested.strip().partition("==")
        wanted[_bare(name)] = version
    for name, version in wanted.items():
        if name not in installed:
            raise InputError(f"corpus.source: package {name!r} is not installed{nearest(name, list(installed))}")
        if version and installed[name].version != version:
            raise InputError(
                f"corpus.source: package {name!r} is installed in version {installed[name].version}, not {version}: "
                f"install that version, or name no version"
            )
    files_of, versions = dict[str, SourceFile](), dict[str, str]()
    for name in sorted(wanted or installed):
        own = {str(path): SourceFile(Path(str(path.locate())), f"packages:{path}") for path in _python(installed[name])}
        if not own and name in wanted:
            raise InputError(f"corpus.source: package {name!r} has no Python source; leave it out")
        if own:
            files_of |= own
            versions[name] = installed[name].version
    files = [files_of[path] for path in sorted(files_of) if files_of[path].path.is_file()]
    if not files:
        raise InputError("corpus.source: 'packages:' finds no Python source; name a file or folder instead")
    return Files(files, {"packages": versions})


def _installed() -> dict[str, metadata.Distribution]:
    """Every package by its name; of two of one name the first, which is the one that is imported."""
    installed: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        if distribution.metadata["Name"]:
            installed.setdefault(_bare(distribution.metadata["Name"]), distribution)
    return installed


def _bare(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _python(package: metadata.Distribution) -> list[metadata.PackagePath]:
    """Its .py files below the folder where packages lie, in folders that are none of tests."""
    paths = [path for path in package.files or () if path.suffix == ".py" and ".." not in path.parts]
    return [path for path in paths if not SKIPPED.intersection(path.parts[:-1])]
