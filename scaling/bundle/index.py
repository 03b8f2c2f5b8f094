"""What a bundle holds: its index, and the names that its files may have.

A bundle is a tar of plain files, packed by xz: `index.json` first, then the files that it lists with size and SHA-256.
Names are those below the study's directory, but for `study/`, which has the study file and the laws that it names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from arch.errors import InputError
from data.files import is_plain, parse_json

SCHEMA = 1
KIND = "bundle of a study"
INDEX = "index.json"
STUDY = "study"  # the folder of the study file and its laws
ENDING = ".tar.xz"
Progress = Callable[[int, int], None]  # bytes done, bytes in all
_PLAIN = r"(?!\.)[^/]+"  # no hidden file
_STEP = r"\d{8,20}"
_RUN = rf"(?:sweep/)?runs/{_PLAIN}"
KB, MB = 1 << 10, 1 << 20
# What a bundle may hold, and the most bytes of each: those that are parsed when it is read have the fewest. No training
# state is among them, no weights, and no code.
KINDS = {
    re.compile(name): most
    for name, most in {
        rf"{_RUN}/run\.json": MB,
        rf"{_RUN}/(?:status\.json|attempts/[\d.]+\.json)": 64 * KB,
        rf"{_RUN}/metrics\.jsonl": 64 * MB,
        rf"{_RUN}/(?:checkpoints|merged)/{_STEP}/(?:manifest|config)\.json": MB,
        rf"{_RUN}/(?:merged-)?evals/{_STEP}/{_PLAIN}\.json": 4 * MB,
        r"corpus/manifest\.json": 4 * MB,
        r"corpus/tokenizer[\w.]*": 64 * MB,
        r"corpus/validation[\w.-]*\.idx": 256 * MB,
        r"results/(?:bigram|contamination|predictions(?:-\d+)?)\.json": 16 * MB,
        r"results/evals\.parquet": 64 * MB,
        r"results/difficulty/(?!\.)[\w.-]+\.json": 64 * MB,
        r"rates\.json": 16 * MB,
        rf"{STUDY}/(?!(?i:index\.json)){_PLAIN}\.(?:yaml|yml)": 256 * KB,
        rf"{STUDY}/(?!(?i:index\.json))(?:{_PLAIN}/)*{_PLAIN}\.json": 16 * MB,  # laws of learning rates
    }.items()
}
LONGEST_PART = 255  # bytes between two slashes
MOST_INDEX = 16 * MB
MOST_VALUES = 300_000  # of the index: three a file
_RUN_OF = re.compile(rf"({_RUN})/")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a study: scaling.study.types.Name
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # what a terminal would obey
# The types of what the index' mappings and lists hold.
_INNER: dict[str, tuple[type, ...]] = {"planned": (str, type(None)), "files": (dict,), "devices": (int,)}
_INNER |= {"versions": (list,)} | dict.fromkeys(("runs", "left_out", "sets", "laws", "git_commits", "trained"), (str,))
_SHA256 = re.compile(r"[0-9a-f]{64}")


class File(BaseModel):
    """Size and SHA-256 of a file."""

    bytes: NonNegativeInt
    sha256: str


class Index(BaseModel):
    """study: its name; planned: {run id: spec hash, None before it has a rate} of the whole study without --set;
    corpus_fingerprint: None without a corpus; runs: {folder: spec hash} of those that are here; left_out: {folder: why}
    of those that are not; files: by name; the other fields describe the runs."""

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
        return sum(file.bytes for file in self.files.values())

    def files_of(self) -> dict[str | None, list[str]]:
        """The names of the files of each run, by its folder; None: of no run."""
        names: dict[str | None, list[str]] = {}
        for name in self.files:
            names.setdefault(folder_of(name), []).append(name)
        return names


def read_index(content: bytes, where: str) -> Index:
    """Raises InputError where it is no index, of another version, or names files that a bundle may not hold."""
    if len(content) > MOST_INDEX or content.count(b",") > MOST_VALUES:
        raise InputError(f"{where}: its index is too large to be one; fetch the bundle again")
    try:
        raw = parse_json(content)
        if raw["kind"] != KIND:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{where}: is no bundle of `scaling bundle pack`") from None
    if raw.get("schema") != SCHEMA:
        raise InputError(f"{where}: is a bundle of version {raw.get('schema')!r}, this program reads {SCHEMA}")
    _check_values(raw, where)
    try:
        index = Index.model_validate({key: value for key, value in raw.items() if key not in ("schema", "kind")})
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise InputError(f"{where}: its index is damaged ({key}); fetch the bundle again") from None
    if not _NAME.fullmatch(index.study):
        raise InputError(f"{where}: {index.study[:100]!r} is no name of a study: it is refused")
    for name in (*index.files, *index.runs):
        if not is_plain(name):
            raise InputError(f"{where}: the path {name[:200]!r} leaves the folder: it is refused")
    if index.study_file not in index.files or not index.study_file.endswith((".yaml", ".yml")):
        raise InputError(f"{where}: its index is damaged (study_file); fetch the bundle again")
    of_study = {index.study_file, *index.laws.values()}
    for name, file in index.files.items():
        if (most := most_bytes(name)) is None or (name.startswith(f"{STUDY}/") and name not in of_study):
            raise InputError(f"{where}: holds {name[:200]!r}, which no bundle has: it is refused")
        if file.bytes > most:
            raise InputError(f"{where}: {name} is larger than it should be ({file.bytes:,} bytes): it is refused")
        if (run := folder_of(name)) and run not in index.runs:
            raise InputError(f"{where}: {name!r} belongs to no run of its index: it is refused")
    return index


def _check_values(raw: dict[str, Any], where: str) -> None:
    """Raise InputError for the first value that no index has. pydantic would list all of them, at a kilobyte each."""
    for key, value in raw.items():
        inner = list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        words = [*(value if isinstance(value, dict) else ()), *(item for item in inner if isinstance(item, str))]
        wrong = key not in (*Index.model_fields, "schema", "kind") or any(map(_CONTROL.search, words))
        wrong = wrong or any(type(item) not in _INNER.get(key, ()) for item in inner)
        if key == "files":
            wrong = wrong or not all(map(_is_file, inner))
        if key == "versions":
            wrong = wrong or any(type(word) is not str for versions in inner for word in versions)
        if wrong:
            raise InputError(f"{where}: its index is damaged ({key[:100]}); fetch the bundle again")


def _is_file(record: dict[str, Any]) -> bool:
    size, digest = record.get("bytes"), record.get("sha256")
    return (
        len(record) == 2 and type(size) is int and size >= 0 and type(digest) is str and bool(_SHA256.fullmatch(digest))
    )


def most_bytes(name: str) -> int | None:
    """How large a bundle's file of this name may be; None where it may hold none, or some disk could not."""
    if not is_plain(name) or any(len(part.encode()) > LONGEST_PART for part in name.split("/")):
        return None
    return next((most for kind, most in KINDS.items() if kind.fullmatch(name)), None)


def folder_of(name: str) -> str | None:
    """The run's folder that a file lies in, as runs/RUN or sweep/runs/RUN; None for a file of no run."""
    match = _RUN_OF.match(name)
    return match[1] if match else None
