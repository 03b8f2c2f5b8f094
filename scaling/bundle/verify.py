"""Reading a bundle: every member held against the index, before anything is written."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.files import MANIFEST, is_plain, unsealed

from .archive import AGAIN, members_of, whole
from .index import INDEX, MOST_INDEX, Index, Progress, folder_of, read_index

OF_RECORD = ("run_id", "spec_hash", "corpus_fingerprint")  # the fields that identify a run.json
READ = ("/run.json", f"/{MANIFEST}")
ROWS, SHORTEST_ROW = "/metrics.jsonl", 40  # bytes of a row
MOST_LISTED, LONGEST = 100_000, 255  # files that the manifests of a bundle list together; characters of a name


@dataclass
class Bundle:
    """A bundle whose every checksum is right. records: OF_RECORD of run.json by folder; listed: of every folder with
    weights, the files that its manifest lists; n_listed: how many these are."""

    path: Path
    index: Index
    index_bytes: bytes
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)
    n_listed: int = 0
    fingerprint: str | None = None  # of the corpus

    @property
    def id(self) -> str:
        """12 hex digits over all that it holds."""
        return self.index_sha256[:12]

    @property
    def index_sha256(self) -> str:
        return hashlib.sha256(self.index_bytes).hexdigest()


def verified(path: Path, report: Progress = lambda done, total: None) -> Bundle:
    """The bundle at `path`. Raises InputError, one line, where it is damaged or truncated, holds a member that its
    index does not list, lists one that it does not hold, or holds links or paths that leave the folder."""
    sizes = {INDEX: MOST_INDEX}
    members = members_of(path, lambda name: sizes.get(name, MOST_INDEX))
    name, _, pieces = next(members, ("", 0, iter(())))
    if name != INDEX:
        raise InputError(f"{path}: is no bundle of `scaling bundle pack`")
    content = whole(pieces)
    bundle = Bundle(path, read_index(content, str(path)), content)
    sizes |= {name: file.bytes for name, file in bundle.index.files.items()}
    missing, done = dict(bundle.index.files), 0
    for name, size, pieces in members:
        if name not in bundle.index.files:
            raise InputError(f"{path}: holds {name!r}, which its index does not list: it is refused")
        if name not in missing:
            raise InputError(f"{path}: holds {name!r} twice: it is refused")
        digest, kept, n_lines = hashlib.sha256(), [], 0
        for piece in pieces:
            digest.update(piece)
            n_lines += piece.count(b"\n")
            if name.endswith(READ):
                kept.append(piece)
        if digest.hexdigest() != missing.pop(name).sha256:
            raise InputError(f"{path}: is damaged: {name} differs from its checksum; {AGAIN}")
        if name.endswith(ROWS) and n_lines * SHORTEST_ROW > size:
            raise InputError(
                f"{path}: {name} has {n_lines:,} lines in {size:,} bytes, which no run writes: it is refused"
            )
        if kept:
            _note(bundle, name, b"".join(kept))
        report(done := done + size, bundle.index.n_bytes)
    if missing:
        raise InputError(f"{path}: is damaged: {next(iter(missing))} is missing; {AGAIN}")
    for folder, spec_hash in bundle.index.runs.items():
        record = bundle.records.get(folder, {})
        if record.get("spec_hash") != spec_hash or record.get("run_id") != folder.rpartition("/")[2]:
            raise InputError(f"{path}: is damaged: {folder}/run.json is not of that run; {AGAIN}")
    if bundle.fingerprint != bundle.index.corpus_fingerprint:
        raise InputError(f"{path}: is damaged: corpus/{MANIFEST} is not of its index' corpus; {AGAIN}")
    return bundle


def _note(bundle: Bundle, name: str, content: bytes) -> None:
    """Keep what deciding about a merge needs. Raises InputError where it cannot be read."""
    folder, _, last = name.rpartition("/")
    try:
        manifest = unsealed(content)
        if last == MANIFEST:
            names = [_word(file) for file in manifest["files"]]
            bundle.n_listed += len(names)
            if not all(map(is_plain, names)) or bundle.n_listed > MOST_LISTED:
                raise ValueError
            if folder == "corpus":
                bundle.fingerprint = _word(manifest["fingerprint"])
            else:
                bundle.listed[folder] = names
        elif folder == folder_of(name):
            bundle.records[folder] = {key: _word(manifest.get(key)) for key in OF_RECORD}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{bundle.path}: is damaged: {name} cannot be read; {AGAIN}") from None


def _word(value: Any) -> Any:
    """A name or a hash. Raises ValueError for anything else than a short text or None."""
    if value is not None and not (isinstance(value, str) and len(value) <= LONGEST):
        raise ValueError
    return value
