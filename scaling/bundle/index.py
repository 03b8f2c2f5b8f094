"""What a bundle holds: its index, and the names that its files may have.

A bundle is a tar of plain files, packed by xz: `index.json` first, then the files that it lists with size and SHA-256.
Names are those below the study's directory, but for `study/`, which has the study file and the laws that it names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cached_property

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from arch.errors import InputError

SCHEMA = 1
KIND = "bundle of a study"
INDEX = "index.json"
STUDY = "study"  # the folder of the study file and its laws
ENDING = ".tar.xz"
Told = Callable[[int, int], None]  # bytes done, bytes in all
_STEP = r"\d{8,}"
_RUN = r"(?:sweep/)?runs/[^/]+"
_NAMES = [  # no training state among them: it is a pickle
    rf"{_RUN}/(?:run\.json|metrics\.jsonl|status\.json|attempts/[\d.]+\.json)",
    rf"{_RUN}/(?:checkpoints|merged)/{_STEP}/(?:manifest|config)\.json",
    rf"{_RUN}/(?:merged-)?evals/{_STEP}/[^/]+\.json",
    r"corpus/(?:manifest\.json|tokenizer[\w.]*|validation[\w.-]*\.idx)",
    r"results/(?:bigram\.json|contamination\.json|predictions(?:-\d+)?\.json|evals\.parquet|difficulty/[\w.-]+\.json)",
    r"rates\.json",
    rf"{STUDY}/.+\.(?:yaml|yml|json)",  # no code
]
_ALLOWED = re.compile("|".join(f"(?:{name})" for name in _NAMES))
_RUN_OF = re.compile(rf"({_RUN})/")


class File(BaseModel):
    """Size and SHA-256 of a file."""

    bytes: NonNegativeInt
    sha256: str


class Index(BaseModel):
    """study: its name; planned: {run id: spec hash, None before it has a rate} of the whole study without --set;
    corpus_fingerprint: None without a corpus; runs: {folder: spec hash} of those that are here; left_out: {folder: why}
    of those that are not; files: by name; the rest is told."""

    model_config = ConfigDict(extra="forbid", strict=True)

    study: str
    study_file: str
    planned: dict[str, str | None]
    corpus_fingerprint: str | None
    runs: dict[str, str]
    left_out: dict[str, str]
    files: dict[str, File]
    only: str | None = None
    sets: list[str] = []
    metrics_every: int = 1  # steps between the rows of metrics that are here, of the run that has the fewest
    laws: dict[str, str] = {}  # as the study file names them: their name here
    versions: dict[str, list[str]] = {}  # of packages that the runs were trained with
    git_commits: list[str] = []
    devices: dict[str, int] = {}  # what the runs were trained on: how many
    trained: list[str] = []  # the first and the last day (UTC) on which a run began

    def to_bytes(self) -> bytes:
        return (json.dumps({"schema": SCHEMA, "kind": KIND} | self.model_dump(), indent=1) + "\n").encode()

    @cached_property
    def n_bytes(self) -> int:
        return sum(one.bytes for one in self.files.values())

    def files_of(self) -> dict[str | None, list[str]]:
        """The names of the files of each run, by its folder; None: of no run."""
        found: dict[str | None, list[str]] = {}
        for name in self.files:
            found.setdefault(folder_of(name), []).append(name)
        return found


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
        index = Index.model_validate({key: value for key, value in raw.items() if key not in ("schema", "kind")})
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise InputError(f"{where}: its index is damaged ({key}); fetch the bundle again") from None
    check_name(index.study, where)
    if "/" in index.study:
        raise InputError(f"{where}: the study's name {index.study!r} leaves the folder: it is refused")
    for name in (*index.files, *index.runs):
        check_name(name, where)
    if index.study_file not in index.files:
        raise InputError(f"{where}: its index is damaged (study_file); fetch the bundle again")
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
