"""Packing: which files of a study's directory go into its bundle, and the bundle written, the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import tarfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from arch.errors import InputError
from data.files import MANIFEST, check_guards, fsync_dir, json_bytes, kill_point, read_manifest

from ..rundir.directory import RunDir
from ..rundir.metrics import complete_rows, record_of_lines
from .index import INDEX, MOST_INDEX, MOST_VALUES, STUDY, File, Index, Progress, most_bytes

PRESET = 1  # of xz: of 160 runs with 18 checkpoints each 3 takes six times as long and saves 3%, 6 as much and 20%
OF_RUN = ("run.json", "metrics.jsonl", "status.json", "attempts/*.json")
OF_STEPS = ("checkpoints/[0-9]*", "merged/[0-9]*")
OF_CHECKPOINT = (MANIFEST, "config.json")
OF_EVALS = ("evals/[0-9]*/*.json", "merged-evals/[0-9]*/*.json")
OF_CORPUS = ("tokenizer*", "validation*.idx")
OF_RESULTS = ("bigram.json", "contamination.json", "predictions*.json", "evals.parquet", "difficulty/*.json")

Members = dict[str, Path | bytes]  # name in the bundle: where its content lies, or the content


def members_of_run(run: Path, name: str, metrics_every: int = 1) -> Members:
    """What a bundle holds of the run at `run`, as `name`/...: no weights, no training states, no logs; of its metrics
    the first row, the last one, and those of every `metrics_every`-th step."""
    paths = [path for pattern in (*OF_RUN, *OF_EVALS) for path in run.glob(pattern)]
    for pattern in OF_STEPS:
        for folder in run.glob(pattern):
            if read_manifest(folder, verify=False, partial=True) is not None:
                paths += [path for file_name in OF_CHECKPOINT if (path := folder / file_name).is_file()]
    members: Members = {
        f"{name}/{path.relative_to(run).as_posix()}": path for path in paths if not path.name.startswith(".")
    }
    if metrics_every > 1 and (metrics := RunDir(run).metrics).exists():
        rows = complete_rows(metrics)
        kept = [line for i, (step, line) in enumerate(rows) if i in (0, len(rows) - 1) or step % metrics_every == 0]
        members[f"{name}/{metrics.name}"] = content = b"".join(kept)
        status = RunDir(run).status()
        if "metrics" in status:
            members[f"{name}/status.json"] = json_bytes(status | {"metrics": record_of_lines(content)})
    return members


def members_of_study(directory: Path) -> Members:
    """What a bundle holds of the study beside its runs: the corpus' manifest and tokenizer, where its held-out
    documents begin, results that cannot be made again without text or weights, and the law of its sweep."""
    corpus = directory / "corpus"
    paths = [directory / "rates.json"]
    if read_manifest(corpus, verify=False, partial=True) is not None:
        paths += [corpus / MANIFEST, *(path for pattern in OF_CORPUS for path in corpus.glob(pattern))]
    paths += [path for pattern in OF_RESULTS for path in (directory / "results").glob(pattern)]
    return {path.relative_to(directory).as_posix(): path for path in paths if path.is_file()}


def members_of_file(study_file: Path, laws: Iterable[str]) -> tuple[Members, dict[str, str]]:
    """The study file and the laws that it names; and what the laws are called in the bundle."""
    members: Members = {f"{STUDY}/{study_file.name}": study_file}
    called = {}
    for law in laws:
        given = Path(law).expanduser()
        inside = not given.is_absolute() and ".." not in given.parts
        name = f"{STUDY}/{given.as_posix() if inside else given.name}"
        while name in members:  # of two folders
            name = f"{name.removesuffix('.json')}-more.json"
        called[law] = name
        members[name] = study_file.parent / given
    return members, called


def provenance(runs: Iterable[Path]) -> dict[str, object]:
    """The fields of the index on how the runs were made: versions, git_commits, devices, trained."""
    versions: dict[str, set[str]] = {}
    commits, days, devices = set[str](), set[str](), dict[str, int]()
    for path in runs:
        rundir = RunDir(path)
        record, attempts = rundir.record(), rundir.attempts()
        for package, version in record.get("versions", {}).items():
            versions.setdefault(str(package), set()).add(str(version))
        commits |= {str(record["git_commit"]).strip()} if record.get("git_commit") else set()
        for name in {
            f"{attempt.get('processes', 1)} x {attempt['hardware']}" for attempt in attempts if attempt.get("hardware")
        }:
            devices[name] = devices.get(name, 0) + 1
        starts = [attempt["started"] for attempt in attempts if isinstance(attempt.get("started"), int | float)]
        days |= {datetime.fromtimestamp(min(starts), UTC).date().isoformat()} if starts else set()
    return {
        "versions": {package: sorted(values) for package, values in sorted(versions.items())},
        "git_commits": sorted(commits),
        "devices": dict(sorted(devices.items())),
        "trained": sorted({min(days), max(days)}) if days else [],
    }


def sizes_of(members: Mapping[str, Path | bytes]) -> dict[str, int]:
    return {
        name: len(member) if isinstance(member, bytes) else member.stat().st_size for name, member in members.items()
    }


def write_bundle(path: Path, index: Index, members: Members, report: Progress = lambda done, total: None) -> int:
    """Write the bundle of `members` to `path`, whole or not at all, and fill in `index.files`; returns its bytes.

    Raises InputError for a file that changes meanwhile, or whose name no bundle has.
    """
    names = sorted(members, key=lambda name: (name.rpartition("/")[2], name))  # what is alike lies together
    sizes = sizes_of(members)
    for name in names:
        if (most := most_bytes(name)) is None:
            raise InputError(f"{name}: a bundle holds no file of this name; rename it")
        if sizes[name] > most:
            remedy = "pack with a larger --metrics-every" if name.endswith(".jsonl") else "it cannot be packed"
            raise InputError(f"{name}: has {sizes[name]:,} bytes, and a bundle's has at most {most:,}: {remedy}")
    total = 2 * sum(sizes.values())
    done = 0
    for name in names:
        content = _read(members[name])
        index.files[name] = File(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
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
                    content = _read(members[name])
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


def _read(member: Path | bytes) -> bytes:
    return member if isinstance(member, bytes) else member.read_bytes()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    tar.addfile(member, io.BytesIO(content))
