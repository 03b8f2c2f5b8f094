"""What unpacking bundles into a study's directory would do: decided, and refused, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.files import MANIFEST, read_json, sha256

from ..rundir.directory import DAMAGED, RunDir
from ..rundir.lock import is_locked
from .index import INDEX, STUDY, Index, folder_of, read_index
from .verify import Bundle

UNIQUE_FILES = {"rates": "the law of the study's sweep", "results/predictions": "the study's predictions"}
BUNDLES = "bundles"  # the folder of what was unpacked into a study: a folder each, of its index and study file
OTHER = "it belongs to another study: give another --out, or rename the study"

Planned = Mapping[str, str | None]  # spec hashes by run id, None before a run has its rate


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
    """Refuse another study of the name, and runs of other settings than those that are there: all of them in one line.
    A study file that was edited between two bundles is still the same study where they share a run."""
    others = [(str(path), index) for path, index in unpacked(directory)]
    for bundle in bundles:
        for where, other in others:
            if other.study != bundle.index.study:
                raise InputError(f"{bundle.path}: is of study {bundle.index.study}, {where} of {other.study}; {OTHER}")
        stored_hashes = _there(directory, [f"runs/{run_id}" for run_id in bundle.index.planned])
        plans: list[tuple[str, Planned]] = [(where, other.planned) for where, other in others]
        plans.append(
            (str(directory), {folder.removeprefix("runs/"): spec_hash for folder, spec_hash in stored_hashes.items()})
        )
        for where, planned in plans:
            if why := _shares_none(bundle.index.planned, planned):
                raise InputError(f"{bundle.path}: {why} in {where}; {OTHER}")
        bundle_runs = bundle.index.runs
        for where, runs in [*_brought(bundle, bundles), (str(directory), _there(directory, bundle_runs))]:
            if differ := [
                folder for folder, spec_hash in runs.items() if bundle_runs.get(folder, spec_hash) != spec_hash
            ]:
                raise InputError(_of_other_settings(bundle, differ, where))
        others.append((str(bundle.path), bundle.index))


def unpacked(directory: Path) -> list[tuple[Path, Index]]:
    """The bundles that were unpacked into a study: the folder of what is kept of each, and its index."""
    paths = sorted((directory / BUNDLES).glob(f"*/{INDEX}"))
    return [(path.parent, read_index(path.read_bytes(), str(path))) for path in paths]


def _there(directory: Path, folders: Iterable[str]) -> dict[str, str]:
    """The spec hashes of the runs of `folders` that the directory has."""
    dirs = {folder: RunDir(directory / folder) for folder in folders}
    return {folder: str(run.record()["spec_hash"]) for folder, run in dirs.items() if run.run_json.exists()}


def _brought(bundle: Bundle, bundles: Sequence[Bundle]) -> list[tuple[str, dict[str, str]]]:
    """What the bundles that are given before this one bring."""
    return [(str(other.path), other.index.runs) for other in bundles[: bundles.index(bundle)]]


def _shares_none(planned: Planned, other: Planned) -> str:
    """How two studies of one name differ that share no run; "" where they share one, or either has none."""
    shared = planned.keys() & other.keys()
    if (
        not planned
        or not other
        or any(planned[name] is None or other[name] in (None, planned[name]) for name in shared)
    ):
        return ""
    if not shared:
        return f"plans {min(planned)} and not {min(other)}, other than"
    name = min(shared)
    return f"plans {name} with spec_hash {planned[name]}, not {other[name]} as"


def _of_other_settings(bundle: Bundle, folders: Sequence[str], where: str) -> str:
    names = ", ".join(sorted(folders))
    return (
        f"{bundle.path}: {len(folders)} of its runs have other settings than in {where} ({names}): "
        f"move the folders of those that no longer count out of the study's directory, or give another --out"
    )


def _check_corpus(directory: Path, bundles: Sequence[Bundle]) -> None:
    fingerprints: list[tuple[str, str]] = []
    if (path := directory / "corpus" / MANIFEST).exists():
        try:
            fingerprints.append((str(path.parent), str(read_json(path)["fingerprint"])))
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(f"{path}: cannot be read; remove {path.parent} and unpack again") from None
    elif path.parent.exists() and (not path.parent.is_dir() or any(path.parent.iterdir())):
        raise InputError(f"{path.parent}: is where the corpus goes and holds none; move it away and unpack again")
    for bundle in bundles:
        if (bundle_fingerprint := bundle.fingerprint) is None:
            continue
        for where, fingerprint in fingerprints:
            if fingerprint != bundle_fingerprint:
                raise InputError(
                    f"{bundle.path}: its corpus has fingerprint {bundle_fingerprint[:16]}, {where} has "
                    f"{fingerprint[:16]}; {OTHER}"
                )
        fingerprints.append((str(bundle.path), bundle_fingerprint))


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
    folders = [path / name for name in ("checkpoints", "state", "evals", "merged")]
    return not RunDir(path).has_begun and not any(map(Path.exists, folders))


def _check_ended(bundle: Bundle, path: Path) -> None:
    status = RunDir(path).status()
    if status["state"] == DAMAGED:
        raise InputError(f"{bundle.path}: {path}: {status['reason']}; remove it to take the bundle's")
    if status["state"] not in ("done", "failed"):
        raise InputError(
            f"{bundle.path}: {path} was begun here and is not finished (step {status['step']}): finish it, or remove "
            f"it to take the bundle's"
        )


def _add_files(merge: Merge, bundle: Bundle, names: Sequence[str]) -> None:
    """Take what is not there of a run that is. Raises InputError where a file differs."""
    for name in names:
        checksum, where = _checksum_here(merge, name)
        if checksum is None:
            merge.take[name] = bundle
        elif checksum != bundle.index.files[name].sha256 and not _is_same_run(merge, bundle, name):
            folder = folder_of(name) or ""
            file = name.removeprefix(f"{folder}/")
            why = (
                " (also where --metrics-every left rows out of one of the two)"
                if file in ("metrics.jsonl", "status.json")
                else ""
            )
            raise InputError(
                f"{bundle.path}: {folder} differs from {where}: {file}{why}; remove one of the two, or give another "
                f"--out"
            )


def _checksum_here(merge: Merge, name: str) -> tuple[str | None, str]:
    """The checksum of a file that is there, or that another bundle brings, and where it is."""
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


def _same_record(record: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(record.get(key) == other.get(key) for key in ("run_id", "spec_hash", "corpus_fingerprint"))


def _decide_file(merge: Merge, bundle: Bundle, name: str) -> None:
    """A file of no run. Raises InputError for another law of the study's own sweep: its runs would get other rates; and
    for other predictions: there is one forecast."""
    if name.startswith("corpus/"):
        if not (merge.directory / "corpus" / MANIFEST).exists():  # of one fingerprint: the first one's files
            merge.take.setdefault(name, bundle)
        return
    checksum, where = _checksum_here(merge, name)
    if checksum is None:
        merge.take[name] = bundle
    elif checksum != bundle.index.files[name].sha256:
        if what := UNIQUE_FILES.get(re.sub(r"(?:-\d+)?\.json$", "", name)):
            raise InputError(
                f"{bundle.path}: {name.rpartition('/')[2]}, {what}, differs from {where}: move that away to take the "
                f"bundle's, or give another --out"
            )
        if not name.endswith(".parquet"):  # made anew afterwards
            merge.kept.append(f"{name} differs and stays as it is in {where}")
