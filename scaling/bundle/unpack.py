"""Unpacking: the files of bundles that were verified, put into a study's directory as `merge.decide` says."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from arch.amounts import byte_size
from arch.errors import InputError
from data.files import MANIFEST, fsync_dir, kill_point, read_json
from data.left_out import RECORD
from data.left_out import record as left_out_record

from .archive import members_of
from .index import INDEX, STUDY, Progress, folder_of
from .merge import BUNDLES, Merge
from .verify import Bundle

SPARE = 1 << 24  # bytes beside the files' own


def write_merge(merge: Merge, bundles: Sequence[Bundle], report: Progress = lambda done, total: None) -> None:
    """Write what `merge` takes. The caller holds the study's lock.

    Everything is written to a temporary folder first; then each run appears whole. A kill leaves whole runs, and the
    same command adds the others. Raises InputError where a bundle changed since it was verified.
    """
    staging = merge.directory / f".unpack.{os.getpid()}.tmp"
    shutil.rmtree(staging, ignore_errors=True)
    total, done = sum(bundle.index.n_bytes for bundle in bundles), 0
    try:
        for bundle in bundles:
            for n_bytes in extract(merge, bundle, staging):
                report(done := done + n_bytes, total)
        _record_left_out(merge, bundles, staging)
        os.sync()
        kill_point("unpack")
        _move(merge, staging, bundles)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_space(bundle: Bundle, place: Path) -> None:
    """Raise InputError where the disk of `place` has no room for a bundle."""
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(existing).free, bundle.index.n_bytes + SPARE
    if free < needed:
        raise InputError(
            f"{bundle.path}: needs {byte_size(needed)} in {existing}, where {byte_size(free)} are free: free some "
            f"space, or give another place"
        )


def extract(merge: Merge, bundle: Bundle, staging: Path) -> Iterator[int]:
    """Write what is taken of a bundle below `staging`, unsynced; the bytes of each file that the index lists once it
    is there. Raises InputError where the bundle changed since it was verified."""
    _check_space(bundle, staging)
    sizes = {INDEX: len(bundle.index_bytes)} | {name: file.bytes for name, file in bundle.index.files.items()}
    for name, size, pieces in members_of(bundle.path, lambda name: sizes.get(name, 0)):
        if name == INDEX:
            place = staging / BUNDLES / bundle.id / INDEX
        elif name.startswith(f"{STUDY}/"):
            place = staging / BUNDLES / bundle.id / name.removeprefix(f"{STUDY}/")
        elif merge.take.get(name) is bundle:
            place = staging / name
        else:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with open(place, "wb") as handle:
            for piece in pieces:
                digest.update(piece)
                handle.write(piece)
        if digest.hexdigest() != (bundle.index_sha256 if name == INDEX else bundle.index.files[name].sha256):
            raise InputError(f"{bundle.path}: changed while it was unpacked; unpack again")
        yield size if name != INDEX else 0


def _record_left_out(merge: Merge, bundles: Sequence[Bundle], staging: Path) -> None:
    """Record beside each manifest which of its files neither the bundles nor the directory have."""
    listed = {folder: names for bundle in bundles for folder, names in bundle.listed.items()}
    if f"corpus/{MANIFEST}" in merge.take:
        listed["corpus"] = list(read_json(staging / "corpus" / MANIFEST)["files"])
    for folder, names in listed.items():
        missing = [
            name for name in names if not (staging / folder / name).exists() and not _is_there(merge, folder, name)
        ]
        if missing:
            (staging / folder).mkdir(parents=True, exist_ok=True)
            (staging / folder / RECORD).write_bytes(left_out_record(missing))


def _is_there(merge: Merge, folder: str, name: str) -> bool:
    run = folder_of(f"{folder}/{name}")
    return run not in merge.new and (merge.directory / folder / name).exists()


def _move(merge: Merge, staging: Path, bundles: Sequence[Bundle]) -> None:
    home = merge.directory
    for folder in merge.replaced:
        shutil.rmtree(home / folder)
    for folder in (["corpus"] if f"corpus/{MANIFEST}" in merge.take else []) + merge.new:
        (home / folder).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / folder, home / folder)
        kill_point("unpacked")
        fsync_dir((home / folder).parent)
    for path in sorted(staging.rglob("*"), key=lambda path: (path.name != RECORD, path)):  # before their manifests
        name = path.relative_to(staging)
        if path.is_file() and name.parts[0] != BUNDLES:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, home / name)
            fsync_dir((home / name).parent)
    if (home / "sweep").is_dir() and not os.path.lexists(link := home / "sweep" / "corpus"):
        link.symlink_to(Path("..") / "corpus")
    (home / BUNDLES).mkdir(exist_ok=True)
    for bundle in bundles:
        if not (home / BUNDLES / bundle.id).exists():
            os.replace(staging / BUNDLES / bundle.id, home / BUNDLES / bundle.id)
    fsync_dir(home / BUNDLES)
