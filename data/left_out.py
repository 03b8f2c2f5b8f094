"""Files that a manifest lists and that were left out on purpose, as weights are by a bundle (scaling.bundle).

`left-out.json` lies beside the manifest and names them. A file that is there again is no longer left out, whatever the
record says: it is checked as any other.
"""

from __future__ import annotations

import json
from pathlib import Path

RECORD = "left-out.json"


def left_out(directory: Path) -> frozenset[str]:
    """The names of the files of `directory` that were left out and are not there; none where nothing was."""
    if not (directory / RECORD).is_file():
        return frozenset()
    try:
        names = json.loads((directory / RECORD).read_text(encoding="utf-8"))["files"]
        return frozenset(str(name) for name in names if not (directory / name).exists())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def record(names: list[str]) -> bytes:
    """What left-out.json says of files that are left out."""
    return (json.dumps({"schema": 1, "files": sorted(names)}, indent=1) + "\n").encode()
