"""A bundle's file: a tar of plain files, packed by xz. `index.json` comes first and lists the others with size and
SHA-256.

Names are those below the study's directory, but for `study/`, which has the study file and the laws beside it. A file
of a few bytes can claim any size, in xz, in tar and in JSON: reading takes no more memory than a piece, xz' dictionary
and the index, writes only what the index lists, and ends where the content becomes much larger than the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from arch.amounts import byte_size
from arch.errors import InputError
from data.files import check_guards, fsync_dir, is_plain, kill_point, parse_json

SCHEMA, KIND = 1, "bundle of a study"
INDEX = "index.json"
STUDY = "study"  # the folder of the study file and its laws
BUNDLES = (
    "bundles"  # in a study's directory, the folder of what was unpacked: a folder each, of its index and study file
)
ENDING = ".tar.xz"
NO_BUNDLE = "is no bundle of `scaling bundle pack`"
AGAIN = "fetch it again from the machine that made it"
Progress = Callable[[int, int], None]  # bytes done, bytes in all
Members = Mapping[str, Path | bytes]  # name in the bundle: where its content lies, or the content

XZ = b"\xfd7zXZ\x00"  # what such a file begins with
XZ_MEMORY = 1 << 25  # bytes; a bundle's own dictionary takes a sixteenth
RATIO, FEW_BYTES = 100, 1 << 26  # content a byte of the file, and what a small one may have; bundles have 5 to 6
PRESET = 1  # of xz: of 160 runs with 18 checkpoints each 3 takes six times as long and saves 3%, 6 as much and 20%
PIECE = 1 << 20  # bytes
SPARE = 1 << 24  # bytes of disk beside the files' own
KB, MB = 1 << 10, 1 << 20
MOST_INDEX, MOST_VALUES = 16 * MB, 300_000  # of an index: bytes, and values, three a file
SHORTEST_ROW = 40  # bytes of a row of metrics
LONGEST_PART = 255  # bytes between two slashes
_PLAIN = r"(?!\.)[^/]+"  # no hidden file
_STEP = r"\d{8,20}"
_RUN = rf"(?:sweep/)?runs/{_PLAIN}"
# What a bundle may hold, and the most bytes of each: those that are parsed when it is read have the fewest. No training
# state is among them, no weights, and no code.
KINDS = {
    re.compile(name): most
    for name, most in {
        rf"{_RUN}/run\.json": MB,
        rf"{_RUN}/(?:status\.json|attempts/[\d.]+\.json)": 64 * KB,
        rf"{_RUN}/metrics\.jsonl": 64 * MB,
        rf"{_RUN}/checkpoints/{_STEP}/(?:manifest|config)\.json": MB,
        rf"{_RUN}/evals/{_STEP}/{_PLAIN}\.json": 4 * MB,
        r"corpus/manifest\.json": 4 * MB,
        r"corpus/tokenizer[\w.]*": 64 * MB,
        r"corpus/validation[\w.-]*\.idx": 256 * MB,
        r"results/(?:bigram|contamination|predictions(?:-\d+)?)\.json": 16 * MB,
        r"results/evals\.parquet": 64 * MB,
        r"results/difficulty/(?!\.)[\w.-]+\.json": 64 * MB,
        r"rates\.json": 16 * MB,
        rf"{STUDY}/{_PLAIN}\.(?:yaml|yml)": 256 * KB,
        rf"{STUDY}/(?!(?i:index\.json))(?:{_PLAIN}/)*{_PLAIN}\.json": 16 * MB,  # laws of learning rates
    }.items()
}
_RUN_OF = re.compile(rf"({_RUN})/")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a study: scaling.study.types.Name
_SHA256 = re.compile(r"[0-9a-f]{64}")


class File(NamedTuple):
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """What a bundle holds. study: its name; runs: {folder: spec hash}, as runs/RUN or sweep/runs/RUN; files: by
    name."""

    study: str
    study_file: str
    runs: dict[str, str]
    files: dict[str, File]

    def to_bytes(self) -> bytes:
        value = {"schema": SCHEMA, "kind": KIND, "study": self.study, "study_file": self.study_file, "runs": self.runs}
        value |= {"files": {name: file._asdict() for name, file in self.files.items()}}
        return (json.dumps(value, indent=1) + "\n").encode()

    @cached_property
    def kept_in(self) -> str:
        """Where index and study file go below the study's directory: bundles/ and 12 hex digits over all that it
        holds."""
        return f"{BUNDLES}/{hashlib.sha256(self.to_bytes()).hexdigest()[:12]}"

    @property
    def n_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def place_of(self, name: str) -> str:
        """Where a file goes below the study's directory."""
        of_study = name == INDEX or name.startswith(f"{STUDY}/")
        return f"{self.kept_in}/{name.removeprefix(f'{STUDY}/')}" if of_study else name


def most_bytes(name: str) -> int | None:
    """How large a bundle's file of this name may be; None where it may hold none, or some disk could not."""
    if not is_plain(name) or any(len(part.encode()) > LONGEST_PART for part in name.split("/")):
        return None
    return next((most for kind, most in KINDS.items() if kind.fullmatch(name)), None)


def folder_of(name: str) -> str | None:
    """The run's folder that a file lies in, as runs/RUN or sweep/runs/RUN; None for a file of no run."""
    match = _RUN_OF.match(name)
    return match[1] if match else None


def read_index(path: Path) -> Index:
    """The index of a bundle, whose other members are not read. Raises InputError where it is none."""
    return _index(path, _members(path))


def extract(path: Path, folder: Path, report: Progress = lambda done, total: None) -> Index:
    """Write the files of the bundle at `path` below `folder`, unsynced, each compared with the index.

    Raises InputError, one line, where it is damaged or truncated, holds a member that its index does not list, lists
    one that it does not hold, or holds links or paths that leave the folder. What was written until then stays.
    """
    members = _members(path)
    index = _index(path, members)
    _check_space(path, index, folder)
    missing, done = dict(index.files), 0
    _write(folder / index.place_of(INDEX), iter([index.to_bytes()]))
    for name, size, pieces in members:
        if name not in index.files:
            raise InputError(f"{path}: holds {name!r}, which its index does not list: it is refused")
        if name not in missing:
            raise InputError(f"{path}: holds {name!r} twice: it is refused")
        if size > (allowed := index.files[name].bytes):
            sizes = f"{byte_size(size)}, at most {byte_size(allowed)}"
            raise InputError(f"{path}: is damaged: {name} is larger than it should be ({sizes}); {AGAIN}")
        digest, n_lines = _write(folder / index.place_of(name), pieces)
        if digest != missing.pop(name).sha256:
            raise InputError(f"{path}: is damaged: {name} differs from its checksum; {AGAIN}")
        if name.endswith("/metrics.jsonl") and n_lines * SHORTEST_ROW > size:
            raise InputError(
                f"{path}: {name} has {n_lines:,} lines in {size:,} bytes, which no run writes: it is refused"
            )
        report(done := done + size, index.n_bytes)
    if missing:
        raise InputError(f"{path}: is damaged: {next(iter(missing))} is missing; {AGAIN}")
    return index


def write_bundle(path: Path, index: Index, members: Members, report: Progress = lambda done, total: None) -> int:
    """Write the bundle of `members` to `path`, whole or not at all and the same bytes every time, and fill in
    `index.files`; returns its bytes. Raises InputError for a file that changes meanwhile, or that no bundle has."""
    names = sorted(members, key=lambda name: (name.rpartition("/")[2], name))  # what is alike lies together
    done, total = 0, 2 * sum(sizes_of(members).values())
    for name in names:
        content = _content(members[name])
        if (most := most_bytes(name)) is None:
            raise InputError(f"{name}: a bundle holds no file of this name; rename it")
        if len(content) > most:
            raise InputError(
                f"{name}: has {len(content):,} bytes, and a bundle's has at most {most:,} (of metrics, --metrics-every "
                f"keeps fewer)"
            )
        index.files[name] = File(len(content), hashlib.sha256(content).hexdigest())
        report(done := done + len(content), total)
    index_bytes = index.to_bytes()
    if len(index_bytes) > MOST_INDEX or index_bytes.count(b",") > MOST_VALUES:
        raise InputError(f"{path}: {len(names):,} files are too many for one bundle: pack some runs only, with --only")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as handle:
            with (
                lzma.open(handle, "wb", preset=PRESET, check=lzma.CHECK_CRC64) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                _add(tar, INDEX, index_bytes)
                for name in names:
                    content = _content(members[name])
                    if hashlib.sha256(content).hexdigest() != index.files[name].sha256:
                        raise InputError(f"{name}: changed while it was packed; pack again")
                    _add(tar, name, content)
                    report(done := done + len(content), total)
            handle.flush()
            os.fsync(handle.fileno())
        kill_point("bundle")
        check_guards()
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)
    return path.stat().st_size


def sizes_of(members: Members) -> dict[str, int]:
    return {name: len(item) if isinstance(item, bytes) else item.stat().st_size for name, item in members.items()}


def _content(member: Path | bytes) -> bytes:
    return member if isinstance(member, bytes) else member.read_bytes()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    tar.addfile(member, io.BytesIO(content))


class _Unpacked(io.RawIOBase):
    """What an xz file holds; raises ValueError where that is more than it may be."""

    def __init__(self, packed: BinaryIO, size: int) -> None:
        self._packed, self._left = packed, max(FEW_BYTES, RATIO * size)
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._xz.eof:
            packed = self._packed.read(1 << 16) if self._xz.needs_input else b""
            if self._xz.needs_input and not packed:
                raise EOFError("it ends before its end")
            if content := self._xz.decompress(packed, len(buffer)):
                self._left -= len(content)
                if self._left < 0:
                    raise ValueError(f"it holds more than {RATIO} times its own bytes")
                buffer[: len(content)] = content
                return len(content)
        if self._xz.unused_data or self._packed.read(1):
            raise lzma.LZMAError("something follows its end")
        return 0


Member = tuple[str, int, Iterator[bytes]]


def _members(path: Path) -> Iterator[Member]:
    """(name, bytes, pieces of the content) of every member. Raises InputError where one is no plain file, or the file
    cannot be read."""
    with _damage_named(path):
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is no regular file")
        with open(path, "rb") as packed:
            if packed.read(len(XZ)) != XZ:
                raise InputError(f"{path}: {NO_BUNDLE}")
            packed.seek(0)
            content = io.BufferedReader(_Unpacked(packed, path.stat().st_size), PIECE)
            with tarfile.open(fileobj=content, mode="r|") as tar:
                while (member := tar.next()) is not None:
                    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.pax_headers.keys() - {"path"}:
                        raise InputError(f"{path}: {member.name[:200]!r} is no plain file: it is refused")
                    file = tar.extractfile(member)
                    assert file is not None
                    yield member.name, member.size, _pieces(path, file)
            while piece := content.read(PIECE):  # what follows has a checksum too
                if any(piece):
                    raise ValueError("something follows its last file")


def _pieces(path: Path, file: Any) -> Iterator[bytes]:
    """Damage is raised where a piece is read, which is outside of `_members`."""
    while True:
        with _damage_named(path):
            piece = file.read(PIECE)
        if not piece:
            return
        yield piece


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (lzma.LZMAError, EOFError, MemoryError, tarfile.TarError, ValueError) as error:
        raise InputError(f"{path}: is damaged or truncated ({error}); {AGAIN}") from None


def _index(path: Path, members: Iterator[Member]) -> Index:
    """The index, which is the first of `members`. Raises InputError where it is none, of another version, or names
    files that a bundle may not hold."""
    name, size, pieces = next(members, ("", 0, iter(())))
    if name != INDEX or size > MOST_INDEX:
        raise InputError(f"{path}: {NO_BUNDLE}")
    content = b"".join(pieces)
    if content.count(b",") > MOST_VALUES:
        raise InputError(f"{path}: its index is too large to be one; {AGAIN}")
    try:
        raw = parse_json(content)
        if raw["kind"] != KIND:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: {NO_BUNDLE}") from None
    if raw.get("schema") != SCHEMA:
        raise InputError(f"{path}: is a bundle of version {raw.get('schema')!r}, this program reads {SCHEMA}")
    try:
        index = Index(
            _word(raw["study"]),
            _word(raw["study_file"]),
            {_word(folder): _word(spec_hash) for folder, spec_hash in raw["runs"].items()},
            {_word(name): _file(**record) for name, record in raw["files"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: its index is damaged; {AGAIN}") from None
    if not _NAME.fullmatch(index.study):
        raise InputError(f"{path}: {index.study[:100]!r} is no name of a study: it is refused")
    if index.study_file not in index.files or not index.study_file.endswith((".yaml", ".yml")):
        raise InputError(f"{path}: its index has no study file; {AGAIN}")
    for name in (*index.files, *index.runs):
        if not is_plain(name):
            raise InputError(f"{path}: the path {name[:200]!r} leaves the folder: it is refused")
    for name, file in index.files.items():
        if (most := most_bytes(name)) is None:
            raise InputError(f"{path}: holds {name[:200]!r}, which no bundle has: it is refused")
        if file.bytes > most:
            raise InputError(f"{path}: {name} is larger than it should be ({file.bytes:,} bytes): it is refused")
        if (folder := folder_of(name)) and folder not in index.runs:
            raise InputError(f"{path}: {name!r} belongs to no run of its index: it is refused")
    return index


def _word(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    return value


def _file(bytes: Any, sha256: Any) -> File:
    if type(bytes) is not int or bytes < 0 or not _SHA256.fullmatch(sha256):
        raise ValueError
    return File(bytes, sha256)


def _check_space(path: Path, index: Index, folder: Path) -> None:
    """Raise InputError where the disk of `folder` has no room for a bundle."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free, needed = shutil.disk_usage(existing).free, index.n_bytes + SPARE
    if free < needed:
        raise InputError(
            f"{path}: needs {byte_size(needed)} in {existing}, where {byte_size(free)} are free: free some space, or "
            f"give another place"
        )


def _write(place: Path, pieces: Iterator[bytes]) -> tuple[str, int]:
    """Write a file; returns its SHA-256 and its number of lines."""
    place.parent.mkdir(parents=True, exist_ok=True)
    digest, n_lines = hashlib.sha256(), 0
    with open(place, "wb") as handle:
        for piece in pieces:
            digest.update(piece)
            n_lines += piece.count(b"\n")
            handle.write(piece)
    return digest.hexdigest(), n_lines
