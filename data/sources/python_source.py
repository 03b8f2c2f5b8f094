"""Python's own library as a source: real text everywhere."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path

from arch.errors import InputError

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
