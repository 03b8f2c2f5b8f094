"""Reading a bundle: every member held against the index, before anything is written."""

from __future__ import annotations

import hashlib
import json
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.files import MANIFEST

from .index import INDEX, Index, Told, folder_of, read_index

PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
XZ = b"\xfd7zXZ\x00"  # what such a file begins with
MOST_INDEX = 1 << 28  # bytes
AGAIN = "fetch it again from the machine that made it"


@dataclass
class Bundle:
    """A bundle whose every checksum is right. records: run.json by folder; listed: of every folder with weights, the
    files that its manifest lists."""

    path: Path
    index: Index
    index_bytes: bytes
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)
    fingerprint: str | None = None  # of the corpus

    @property
    def id(self) -> str:
        """12 hex digits over all that it holds."""
        return hashlib.sha256(self.index_bytes).hexdigest()[:12]


def verified(path: Path, told: Told = lambda done, total: None) -> Bundle:
    """The bundle at `path`. Raises InputError, one line, where it is damaged or truncated, holds a member that its
    index does not list, lists one that it does not hold, or holds links or paths that leave the folder."""
    sizes = {INDEX: MOST_INDEX}
    members = members_of(path, sizes)
    name, content = next(members, ("", b""))
    if name != INDEX:
        raise InputError(f"{path}: is no bundle of `scaling bundle pack`")
    bundle = Bundle(path, read_index(content, str(path)), content)
    sizes |= {name: one.bytes for name, one in bundle.index.files.items()}
    missing, done = dict(bundle.index.files), 0
    for name, content in members:
        if name not in bundle.index.files:
            raise InputError(f"{path}: holds {name!r}, which its index does not list: it is refused")
        if name not in missing:
            raise InputError(f"{path}: holds {name!r} twice: it is refused")
        if hashlib.sha256(content).hexdigest() != missing.pop(name).sha256:
            raise InputError(f"{path}: is damaged: {name} differs from its checksum; {AGAIN}")
        _note(bundle, name, content)
        told(done := done + len(content), bundle.index.n_bytes)
    if missing:
        raise InputError(f"{path}: is damaged: {next(iter(missing))} is missing; {AGAIN}")
    for folder, spec_hash in bundle.index.runs.items():
        record = bundle.records.get(folder, {})
        if record.get("spec_hash") != spec_hash or record.get("run_id") != folder.rpartition("/")[2]:
            raise InputError(f"{path}: is damaged: {folder}/run.json is not of that run; {AGAIN}")
    if bundle.fingerprint != bundle.index.corpus_fingerprint:
        raise InputError(f"{path}: is damaged: corpus/{MANIFEST} is not of its index' corpus; {AGAIN}")
    return bundle


def members_of(path: Path, most: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every member; b"" of one that `most` does not name, which is looked at for each. Raises
    InputError where one is no plain file or larger than `most` says, or the file cannot be read."""
    try:
        with open(path, "rb") as begun:
            if begun.read(len(XZ)) != XZ:
                raise InputError(f"{path}: is no bundle of `scaling bundle pack`")
        with lzma.open(path) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as tar:
                for member in tar:
                    if member.type not in PLAIN:
                        raise InputError(f"{path}: {member.name!r} is no plain file: it is refused")
                    if member.size > most.get(member.name, member.size):
                        raise InputError(f"{path}: is damaged: {member.name} is larger than it should be; {AGAIN}")
                    handle = tar.extractfile(member) if member.name in most else None
                    yield member.name, handle.read() if handle else b""
            while packed.read(1 << 20):  # to the end: what follows the last member has a checksum too
                pass
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (lzma.LZMAError, EOFError, tarfile.TarError, ValueError) as error:
        raise InputError(f"{path}: is damaged or truncated ({error}); {AGAIN}") from None


def _note(bundle: Bundle, name: str, content: bytes) -> None:
    """Keep what deciding about a merge needs. Raises InputError where it cannot be read."""
    folder, _, last = name.rpartition("/")
    if last not in ("run.json", MANIFEST):
        return
    try:
        found = json.loads(content)
        if folder == "corpus":
            bundle.fingerprint = str(found["fingerprint"])
        elif last == MANIFEST:
            bundle.listed[folder] = [str(file) for file in found["files"]]
        elif folder == folder_of(name):
            bundle.records[folder] = dict(found)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{bundle.path}: is damaged: {name} cannot be read; {AGAIN}") from None
