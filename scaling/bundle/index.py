"""What a bundle holds: its index, and the names that its files may have.

A bundle is a tar of plain files, packed by xz: `index.json` first, then the files that it lists with size and SHA-256.
Names are those below the study's directory, but for `study/`, which has the study file and the laws that it names.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from arch.errors import InputError

SCHEMA = 1
KIND = "bundle of a study"
INDEX = "index.json"
STUDY = "study"  # the folder of the study file and its laws
ENDING = ".tar.xz"
_STEP = r"\d{8,}"
_RUN = r"(?:sweep/)?runs/[^/]+"
_NAMES = [  # no training state among them: it is a pickle
    rf"{_RUN}/(?:run\.json|metrics\.jsonl|status\.json|attempts/[\d.]+\.json)",
    rf"{_RUN}/(?:checkpoints|merged)/{_STEP}/(?:manifest|config)\.json",
    rf"{_RUN}/(?:merged-)?evals/{_STEP}/[^/]+\.json",
    r"corpus/(?:manifest\.json|tokenizer[\w.]*|validation[\w.-]*\.idx)",
    r"results/(?:bigram\.json|contamination\.json|evals\.parquet|difficulty/[\w.-]+\.json)",
    r"rates\.json",
    rf"{STUDY}/.+",
]
_ALLOWED = re.compile("|".join(f"(?:{name})" for name in _NAMES))
_RUN_OF = re.compile(rf"({_RUN})/")


@dataclass
class Index:
    """study: its name; planned: {run id: spec hash, None before it has a rate} of the whole study without --set;
    corpus_fingerprint: None without a corpus; runs: {folder: spec hash} of those that are here; left_out: {folder: why}
    of those that are not; files: {name: {"bytes", "sha256"}}; the rest is told."""

    study: str
    study_file: str
    planned: dict[str, str | None]
    corpus_fingerprint: str | None
    runs: dict[str, str]
    left_out: dict[str, str]
    files: dict[str, dict[str, Any]]
    only: str | None = None
    sets: list[str] = field(default_factory=list)
    laws: dict[str, str] = field(default_factory=dict)  # as the study file names them: their name here
    versions: dict[str, list[str]] = field(default_factory=dict)  # of packages that the runs were trained with
    git_commits: list[str] = field(default_factory=list)
    devices: dict[str, int] = field(default_factory=dict)  # what the runs were trained on: how many
    trained: list[str] = field(default_factory=list)  # the first and the last day (UTC) on which a run began

    def to_bytes(self) -> bytes:
        return (json.dumps({"schema": SCHEMA, "kind": KIND} | asdict(self), indent=1) + "\n").encode()

    @property
    def n_bytes(self) -> int:
        return sum(int(one["bytes"]) for one in self.files.values())


def read_index(content: bytes, where: str) -> Index:
    """Raises InputError where it is no index, of another version, or names files that a bundle may not hold."""
    try:
        raw = json.loads(content)
        if raw["kind"] != KIND:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{where}: is no bundle of `scaling bundle pack`") from None
    if raw.get("schema") != SCHEMA:
        raise InputError(f"{where}: is a bundle of version {raw.get('schema')!r}, this program reads {SCHEMA}")
    try:
        index = Index(**{one.name: raw[one.name] for one in fields(Index)})
        sizes = [(name, int(one["bytes"]), str(one["sha256"])) for name, one in index.files.items()]
        plain = isinstance(index.study, str) and all(map(isinstance, index.planned, [str] * len(index.planned)))
        if not plain or any(size < 0 for _, size, _ in sizes) or not isinstance(index.runs, dict):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{where}: its index is damaged; fetch the bundle again") from None
    check_name(index.study, where)
    if "/" in index.study:
        raise InputError(f"{where}: the study's name {index.study!r} leaves the folder: it is refused")
    for name in (*index.files, *index.runs, index.study_file):
        check_name(name, where)
    for name in index.files:
        if not _ALLOWED.fullmatch(name):
            raise InputError(f"{where}: holds {name!r}, which no bundle has: it is refused")
        if (run := folder_of(name)) and run not in index.runs:
            raise InputError(f"{where}: {name!r} belongs to no run of its index: it is refused")
    return index


def check_name(name: str, where: str) -> None:
    """Raise InputError for a path that could lead out of the folder that it is written to."""
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or "\\" in name or not name.isprintable():
        raise InputError(f"{where}: the path {name!r} leaves the folder: it is refused")


def is_allowed(name: str) -> bool:
    """Whether a bundle may hold a file of this name."""
    return _ALLOWED.fullmatch(name) is not None


def folder_of(name: str) -> str | None:
    """The run's folder that a file lies in, as runs/RUN or sweep/runs/RUN; None for a file of no run."""
    found = _RUN_OF.match(name)
    return found[1] if found else None
