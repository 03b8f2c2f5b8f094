"""What unpacking bundles into a study's directory would do: decided, and refused, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.files import MANIFEST, read_json, sha256

from ..rundir.directory import RunDir
from ..rundir.lock import is_locked
from .index import STUDY, Index, folder_of, read_index
from .verify import Bundle

BUNDLES = "bundles"  # the folder of what was unpacked into a study: a folder each, of its index and study file
OTHER = "it belongs to another study: give another --out, or rename the study"


@dataclass
class Merge:
    """take: {name: the bundle that its content is written of}; new, equal: runs that are not there, or there already;
    replaced: those of `new` whose directory holds nothing but what preparing leaves; kept: lines about files that stay
    as they are here."""

    directory: Path
    take: dict[str, Bundle] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def checksum(self, name: str) -> str:
        return self.take[name].index.files[name].sha256


def decide(directory: Path, bundles: Sequence[Bundle]) -> Merge:
    """How `bundles` of one study go into its directory. Raises InputError, one line, where one is of another study or
    corpus, or a run differs."""
    merge = Merge(directory)
    _check_study(directory, bundles)
    _check_corpus(directory, bundles)
    for bundle in bundles:
        files = bundle.index.files_of()
        for folder in bundle.index.runs:
            _decide_run(merge, bundle, folder, files[folder])
        for name in files[None]:
            if not name.startswith(f"{STUDY}/"):
                _decide_file(merge, bundle, name)
    return merge


def _check_study(directory: Path, bundles: Sequence[Bundle]) -> None:
    known = [(f"{path.parent}", read_index(path.read_bytes(), str(path))) for path in _unpacked(directory)]
    for bundle in bundles:
        for where, other in known:
            if why := _difference(bundle.index, other):
                raise InputError(f"{bundle.path}: {why} in {where}; {OTHER}")
        for run_id, spec_hash in bundle.index.planned.items():
            rundir = RunDir(directory / "runs" / run_id)
            if spec_hash and rundir.run_json.exists() and rundir.record()["spec_hash"] != spec_hash:
                there = rundir.record()["spec_hash"]
                raise InputError(
                    f"{bundle.path}: plans {run_id} with spec_hash {spec_hash}, {rundir.path} has {there}; {OTHER}"
                )
        known.append((str(bundle.path), bundle.index))


def _unpacked(directory: Path) -> list[Path]:
    """The indexes of the bundles that were unpacked into a study."""
    return sorted((directory / BUNDLES).glob("*/index.json"))


def _difference(one: Index, other: Index) -> str:
    """How the studies of two bundles differ; "" where they plan the same runs, or one of them more than the other."""
    if one.study != other.study:
        return f"is of study {one.study}, not of {other.study} as"
    for run_id, spec_hash in one.planned.items():
        there = other.planned.get(run_id)
        if spec_hash and there and there != spec_hash:
            return f"plans {run_id} with spec_hash {spec_hash}, not {there} as"
    more, fewer = one.planned.keys() - other.planned.keys(), other.planned.keys() - one.planned.keys()
    if more and fewer:
        return f"plans {min(more)} and not {min(fewer)}, other than"
    return ""


def _check_corpus(directory: Path, bundles: Sequence[Bundle]) -> None:
    known: list[tuple[str, str]] = []
    if (path := directory / "corpus" / MANIFEST).exists():
        try:
            known.append((str(path.parent), str(read_json(path)["fingerprint"])))
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(f"{path}: cannot be read; remove {path.parent} and unpack again") from None
    elif path.parent.exists() and (not path.parent.is_dir() or any(path.parent.iterdir())):
        raise InputError(f"{path.parent}: is where the corpus goes and holds none; move it away and unpack again")
    for bundle in bundles:
        if (mine := bundle.fingerprint) is None:
            continue
        for where, fingerprint in known:
            if fingerprint != mine:
                raise InputError(
                    f"{bundle.path}: its corpus has fingerprint {mine[:16]}, {where} has {fingerprint[:16]}; {OTHER}"
                )
        known.append((str(bundle.path), mine))


def _decide_run(merge: Merge, bundle: Bundle, folder: str, names: Sequence[str]) -> None:
    if folder in merge.new:  # another bundle brings it too
        _add_files(merge, bundle, names)
        return
    path = merge.directory / folder
    if path.exists() or path.is_symlink():
        if is_locked(path):
            raise InputError(f"{bundle.path}: {folder} is being trained in {merge.directory}; wait for it or stop it")
        if not _is_empty(path):
            _check_ended(bundle, path)
            _add_files(merge, bundle, names)
            merge.equal += [folder] if folder not in merge.equal else []
            return
        if (path / "run.json").exists() and not _same_record(RunDir(path).record(), bundle.records[folder]):
            raise InputError(f"{bundle.path}: {folder} differs from {path}: run.json; {OTHER}")
        merge.replaced.append(folder)
    merge.new.append(folder)
    merge.take |= dict.fromkeys(names, bundle)


def _is_empty(path: Path) -> bool:
    """Whether nothing was trained in a run's directory."""
    rundir = RunDir(path)
    folders = [path / name for name in ("checkpoints", "state", "evals", "merged")]
    return rundir.status()["state"] == "waiting" and not rundir.rows() and not any(map(Path.exists, folders))


def _check_ended(bundle: Bundle, path: Path) -> None:
    status = RunDir(path).status()
    if status["state"] not in ("done", "failed"):
        raise InputError(
            f"{bundle.path}: {path} was begun here and is not finished (step {status['step']}): finish it, or remove "
            f"it to take the bundle's"
        )


def _add_files(merge: Merge, bundle: Bundle, names: Sequence[str]) -> None:
    """Take what is not there of a run that is. Raises InputError where a file differs."""
    for name in names:
        there, where = _checksum_here(merge, name)
        if there is None:
            merge.take[name] = bundle
        elif there != bundle.index.files[name].sha256 and not _is_same_run(merge, bundle, name):
            folder = folder_of(name) or ""
            raise InputError(
                f"{bundle.path}: {folder} differs from {where}: {name.removeprefix(folder + '/')}; remove one of the "
                f"two, or give another --out"
            )


def _checksum_here(merge: Merge, name: str) -> tuple[str | None, str]:
    """Of a file that is there, or that another bundle brings, and where that is."""
    if name in merge.take:
        return merge.checksum(name), str(merge.take[name].path)
    path = merge.directory / name
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: is no plain file; move it away and unpack again")
    return (sha256(path) if path.exists() else None), str(merge.directory)


def _is_same_run(merge: Merge, bundle: Bundle, name: str) -> bool:
    """Whether two run.json that differ are of one training: what is not decisive may have been written anew."""
    folder = folder_of(name)
    if folder is None or name != f"{folder}/run.json":
        return False
    other = merge.take[name].records[folder] if name in merge.take else RunDir(merge.directory / folder).record()
    return _same_record(other, bundle.records[folder])


def _same_record(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in ("run_id", "spec_hash", "corpus_fingerprint"))


def _decide_file(merge: Merge, bundle: Bundle, name: str) -> None:
    """A file of no run. Raises InputError for another law of the study's own sweep."""
    if name.startswith("corpus/"):
        if not (merge.directory / "corpus" / MANIFEST).exists():  # of one fingerprint: the first one's files
            merge.take.setdefault(name, bundle)
        return
    there, where = _checksum_here(merge, name)
    if there is None:
        merge.take[name] = bundle
    elif there != bundle.index.files[name].sha256:
        if name == "rates.json":
            raise InputError(f"{bundle.path}: rates.json, the law of the study's sweep, differs from {where}; {OTHER}")
        if not name.endswith(".parquet"):  # made anew afterwards
            merge.kept.append(f"{name} differs and stays as it is in {where}")
