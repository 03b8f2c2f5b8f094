"""Bundles merged into a study's directory: unpacked and verified beside it first, so that what is refused changes
nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.files import MANIFEST, fsync_dir, is_plain, kill_point, read_json, sha256
from data.left_out import RECORD
from data.left_out import record as left_out_record

from ..rundir.directory import DAMAGED, ENDED, RunDir
from ..rundir.lock import is_locked
from .file import AGAIN, BUNDLES, INDEX, Index, Progress, extract, folder_of

UNIQUE_FILES = {"rates": "the law of the study's sweep", "results/predictions": "the study's predictions"}
OTHER = "it belongs to another study: give another --out, or rename the study"


@dataclass(frozen=True)
class Unpacked:
    """A bundle whose every checksum is right, and the folder that it was unpacked into."""

    path: Path
    folder: Path
    index: Index

    def record(self, run: str) -> Mapping[str, Any]:
        return RunDir(self.folder / run).record()


@dataclass
class Merge:
    """take: {name: the unpacked file that goes there}; new, equal: folders of runs that are not there, or there
    already; replaced: those of `new` that were prepared there and not begun; kept: lines about files that stay as they
    are."""

    directory: Path
    take: dict[str, Path] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def there(self, name: str) -> Path | None:
        """The file of that name that another bundle brings or the directory has."""
        path = self.directory / name
        if name not in self.take and (path.is_symlink() or (path.exists() and not path.is_file())):
            raise InputError(f"{path}: is no plain file; move it away and unpack again")
        return self.take.get(name) or (path if path.exists() and folder_of(name) not in self.new else None)


def merge_bundles(directory: Path, paths: Sequence[Path], report: Progress = lambda done, total: None) -> Merge:
    """Verify the bundles of one study and merge them into its directory, which the caller has locked. Raises
    InputError, one line, and leaves the directory as it was, where one is damaged, of another study or corpus, or a run
    differs.

    Each run appears whole. A kill leaves whole runs, and the same command adds the others.
    """
    staging = directory / f".unpack.{os.getpid()}.tmp"
    try:
        bundles = [unpack(path, staging / str(at), report) for at, path in enumerate(paths)]
        merge = decide(directory, bundles)
        whole = staging / "whole"
        for name, path in merge.take.items():
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, whole / name)
        _record_left_out(merge, whole)
        os.sync()
        kill_point("unpack")
        _move(merge, whole)
        return merge
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def unpack(path: Path, folder: Path, report: Progress = lambda done, total: None) -> Unpacked:
    """A bundle extracted below `folder`. Raises InputError where it is damaged, or its records are not of its runs."""
    bundle = Unpacked(path, folder, extract(path, folder, report))
    for run, spec_hash in bundle.index.runs.items():
        try:
            record: Mapping[str, Any] = bundle.record(run)
        except InputError:
            record = {}
        if (record.get("spec_hash"), record.get("run_id")) != (spec_hash, run.rpartition("/")[2]):
            raise InputError(f"{path}: is damaged: {run}/run.json is not of that run; {AGAIN}")
    for name in bundle.index.files:
        if name.endswith(f"/{MANIFEST}"):
            try:
                readable = all(map(is_plain, read_json(folder / name)["files"]))
            except (OSError, ValueError, KeyError, TypeError):
                readable = False
            if not readable:
                raise InputError(f"{path}: is damaged: {name} cannot be read; {AGAIN}")
    return bundle


def decide(directory: Path, bundles: Sequence[Unpacked]) -> Merge:
    """What goes into the directory. Raises InputError where one is of another study or corpus, or a run differs."""
    merge = Merge(directory)
    corpus = directory / "corpus" / MANIFEST
    if not corpus.exists() and corpus.parent.exists() and (not corpus.parent.is_dir() or any(corpus.parent.iterdir())):
        raise InputError(f"{corpus.parent}: is where the corpus goes and holds none; move it away and unpack again")
    for at, bundle in enumerate(bundles):
        has_corpus = _has_corpus(merge, bundle)
        _check_settings(merge, bundle, bundles[:at])
        for run in bundle.index.runs:
            _decide_run(merge, bundle, run)
        for name in bundle.index.files:
            if not (has_corpus and name.startswith("corpus/")):
                _decide_file(merge, bundle, name)
    for bundle in bundles:
        if not (directory / bundle.index.kept_in).exists():
            kept = bundle.folder / bundle.index.kept_in
            merge.take |= {str(path.relative_to(bundle.folder)): path for path in kept.rglob("*") if path.is_file()}
    return merge


def _check_settings(merge: Merge, bundle: Unpacked, earlier: Sequence[Unpacked]) -> None:
    """Refuse runs of other settings than those that are there, all of them in one line."""
    dirs = {folder: RunDir(merge.directory / folder) for folder in bundle.index.runs}
    there = {folder: str(run.record()["spec_hash"]) for folder, run in dirs.items() if run.run_json.exists()}
    for where, runs in [(merge.directory, there), *((other.path, other.index.runs) for other in earlier)]:
        own = bundle.index.runs
        if differ := [folder for folder, spec_hash in runs.items() if own.get(folder, spec_hash) != spec_hash]:
            raise InputError(
                f"{bundle.path}: {len(differ)} of its runs have other settings than in {where} "
                f"({', '.join(sorted(differ))}): move the folders of those that no longer count out of the study's "
                f"directory, or give another --out"
            )


def _has_corpus(merge: Merge, bundle: Unpacked) -> bool:
    """Whether the bundle's corpus is there already. Raises InputError where another one is."""
    name = f"corpus/{MANIFEST}"
    if name not in bundle.index.files or (there := merge.there(name)) is None:
        return False
    try:
        fingerprints = [str(read_json(path)["fingerprint"]) for path in (bundle.folder / name, there)]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{there}: cannot be read; remove {there.parent} and unpack again") from None
    if fingerprints[0] != fingerprints[1]:
        raise InputError(
            f"{bundle.path}: its corpus has fingerprint {fingerprints[0][:16]}, {merge.directory} or an earlier bundle "
            f"{fingerprints[1][:16]}; {OTHER}"
        )
    return True


def _decide_run(merge: Merge, bundle: Unpacked, run: str) -> None:
    rundir = RunDir(merge.directory / run)
    if run in merge.new:  # another bundle brings it too
        return
    if not (rundir.path.exists() or rundir.path.is_symlink()):
        merge.new.append(run)
        return
    if is_locked(rundir.path):
        raise InputError(f"{bundle.path}: {run} is being trained in {merge.directory}; wait for it or stop it")
    left = (rundir.path / name for name in ("checkpoints", "state", "evals"))
    if not rundir.has_begun and not any(map(Path.exists, left)):
        if rundir.run_json.exists() and not _same_record(rundir.record(), bundle.record(run)):
            raise InputError(f"{bundle.path}: {run} differs from {rundir.path}: run.json; {OTHER}")
        merge.replaced.append(run)
        merge.new.append(run)
        return
    status = rundir.status()
    if status["state"] == DAMAGED:
        raise InputError(f"{bundle.path}: {rundir.path}: {status['reason']}; remove it to take the bundle's")
    if status["state"] not in ENDED:
        raise InputError(
            f"{bundle.path}: {rundir.path} was begun here and is not finished (step {status['step']}): finish it, or "
            f"remove it to take the bundle's"
        )
    if run not in merge.equal:
        merge.equal.append(run)


def _same_record(record: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two run.json are of one training: what is not decisive may have been written anew."""
    return all(record.get(key) == other.get(key) for key in ("run_id", "spec_hash", "corpus_fingerprint"))


def _decide_file(merge: Merge, bundle: Unpacked, name: str) -> None:
    """Take a file that is not there. Raises InputError where one that is there differs: of a run; another law of the
    study's own sweep, by which its runs would get other rates; and other predictions, since there is one forecast."""
    if (place := bundle.index.place_of(name)).startswith(f"{BUNDLES}/"):
        return
    there = merge.there(place)
    if there is None:
        merge.take[place] = bundle.folder / place
        return
    if sha256(there) == bundle.index.files[name].sha256:
        return
    run, where = folder_of(name), "an earlier bundle" if name in merge.take else merge.directory
    if run is not None:
        file = name.removeprefix(f"{run}/")
        if file == "run.json" and _same_record(RunDir(there.parent).record(), bundle.record(run)):
            return
        fewer = " (also where --metrics-every left rows out of one of the two)"
        why = fewer if file in ("metrics.jsonl", "status.json") else ""
        raise InputError(
            f"{bundle.path}: {run} differs from {where}: {file}{why}; remove one of the two, or give another --out"
        )
    if what := UNIQUE_FILES.get(re.sub(r"(?:-\d+)?\.json$", "", name)):
        raise InputError(
            f"{bundle.path}: {name.rpartition('/')[2]}, {what}, differs from {where}: move that away to take the "
            f"bundle's, or give another --out"
        )
    if not name.endswith(".parquet"):  # made anew afterwards
        merge.kept.append(f"{name} differs and stays as it is in {where}")


def _record_left_out(merge: Merge, whole: Path) -> None:
    """Record beside each manifest which of its files neither the bundles nor the directory have."""
    for name in [name for name in merge.take if name.endswith(f"/{MANIFEST}")]:
        folder = name.rpartition("/")[0]
        places = [whole / folder] if folder_of(name) in merge.new else [whole / folder, merge.directory / folder]
        files = read_json(whole / name)["files"]
        if missing := [file for file in files if not any((place / file).exists() for place in places)]:
            (whole / folder / RECORD).write_bytes(left_out_record(missing))


def _move(merge: Merge, whole: Path) -> None:
    home = merge.directory
    for folder in merge.replaced:
        shutil.rmtree(home / folder)
    for folder in (["corpus"] if f"corpus/{MANIFEST}" in merge.take else []) + merge.new:
        (home / folder).parent.mkdir(parents=True, exist_ok=True)
        os.replace(whole / folder, home / folder)
        kill_point("unpacked")
        fsync_dir((home / folder).parent)
    # a record before its manifest, an index before its study file: what has none beside it is taken as made here
    for path in sorted(whole.rglob("*"), key=lambda path: (path.name not in (RECORD, INDEX), path)):
        if path.is_file():
            place = home / path.relative_to(whole)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
            fsync_dir(place.parent)
    if (home / "sweep").is_dir() and not os.path.lexists(link := home / "sweep" / "corpus"):
        link.symlink_to(Path("..") / "corpus")
