"""Writing a study's folder: whole or not at all, the same bytes for the same study."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import machine, python_version
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.forecast.stored import LATER, PREDICTIONS, name_of_round, path_of, read_rounds
from analysis.publish.derived import DERIVED, derived
from analysis.source.base import BASELINE
from analysis.source.published import (
    CONTAMINATION,
    CORPUS,
    CURVES,
    EVALS,
    FORECAST,
    FORECAST_SCORES,
    KIND,
    PROVENANCE,
    RUNS,
    SCORES,
    VERSION,
    Published,
)
from analysis.source.run_directories import RunDirectories
from analysis.table_files import table_bytes
from arch.errors import InputError
from data.files import MANIFEST, fsync_dir, json_bytes, kill_point, read_object, sha256, write_bytes, write_json
from scaling.rundir.versions import git_commit
from scaling.study.file import STUDY_FILE
from scaling.study.rates import LOCK, Lock, resolve
from scaling.study.spec import load_study

if TYPE_CHECKING:
    from analysis.run_table import RunTable
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

OWN = (
    *DERIVED,
    BASELINE,
    CONTAMINATION,
    CORPUS,
    CURVES,
    EVALS,
    *FORECAST,
    FORECAST_SCORES,
    MANIFEST,
    PREDICTIONS,
    PROVENANCE,
    RUNS,
    SCORES,
    STUDY_FILE,
)
TIMES = ("time_s", "tokens_per_s")  # of curves
MADE_WITH = ("linear-scaling", "numpy", "scipy", "pandas", "pyarrow")  # what decides the bits of tables and fits


def publish(study: StudySpec, runs: Sequence[RunSpec], folder: Path) -> dict[str, Any]:
    """Write the folder of a study that lies in its directory, over an earlier publication and beside other files.
    Returns the manifest. Raises InputError where another file is in the way, or the study cannot be read from a folder
    alone."""
    _check_place(folder, study)
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    for path in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a publication that was killed
        shutil.rmtree(path, ignore_errors=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
    except FileNotFoundError:  # what file systems that hold no files say
        raise InputError(f"{folder}: cannot be made there: name another folder") from None
    try:
        manifest = fill(temporary, study, runs)
        _put(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def fill(folder: Path, study: StudySpec, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """Write all files of the publication below `folder`. Returns the manifest."""
    manifest = fill_inputs(folder, study, runs)
    # fits are of what was written, read as whoever has the folder alone reads it
    alone = load_study(folder, out=study.out, published=True)
    again = resolve(alone.runs(), Lock(alone))
    if [run.run_id for run in again] != [run.run_id for run in runs]:
        raise InputError(f"{study.path}: names other runs where it is read from its folder: it cannot be published")
    for name, content in derived(alone, again, Published(folder)).items():
        write_bytes(folder / name, content, kind="publication")
    return _write_manifest(folder, manifest)


def fill_inputs(folder: Path, study: StudySpec, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """Write the files that fits and report are made from. Returns a manifest of these."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = _inputs(study, runs)
    for name, content in inputs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / name, content, kind="publication")
    manifest: dict[str, Any] = {"kind": KIND, "version": VERSION, "study": study.name, "made_with": made_with()}
    return _write_manifest(folder, manifest | {"inputs": sorted(inputs)})


def made_with() -> dict[str, str]:
    """What decides the bits of tables and fits: versions, the kinds of instructions that numpy takes, and the commit of
    this program ("unknown" outside of git)."""
    registers = np.show_config(mode="dicts")["SIMD Extensions"]
    versions = {
        "python": python_version(),
        "processor": " ".join([machine(), *registers["baseline"], *registers["found"]]),
    }
    for name in MADE_WITH:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions | {"commit": git_commit() or "unknown"}


def _inputs(study: StudySpec, runs: Sequence[RunSpec]) -> dict[str, bytes]:
    """The files that fits and report are made from, by name."""
    from analysis.fits.settings import settings_of

    source = RunDirectories(study, runs)
    settings, held_out = settings_of(study.fit, study.grid), study.evaluation.validation_tokens
    tables = source.table(settings, held_out)
    if not (tables.runs["state"] == "done").any():
        raise InputError(f"{study.path}: no run is done, so there is nothing to publish: `scaling run` trains them")
    files = {STUDY_FILE: Path(study.path).read_bytes()} | _law_files(study)
    files |= {CURVES: _curves(tables), RUNS: table_bytes(tables.runs), EVALS: table_bytes(tables.evals)}
    files |= {name_of_round(i): path_of(study, i).read_bytes() for i in range(len(read_rounds(study)))}
    if (forecast := source.forecast) is not None:
        parts = (_curves(forecast), table_bytes(forecast.runs), table_bytes(forecast.evals))
        files |= dict(zip(FORECAST, parts, strict=True))
    if (scores := source.scores()) is not None:
        files[SCORES] = table_bytes(scores)
    if (scores := source.forecast_scores()) is not None:
        files[FORECAST_SCORES] = table_bytes(scores)
    came = {"inputs": source.inputs, "runs": source.provenance(), "validation_tokens": held_out}
    corpus = source.corpus()
    facts = None if corpus is None else {key: value for key, value in corpus.items() if key != "files"}
    records = {PROVENANCE: came, CORPUS: facts, BASELINE: source.baseline(), CONTAMINATION: source.contamination()}
    return files | {name: json_bytes(value) for name, value in records.items() if value is not None}


def _curves(table: RunTable) -> bytes:
    """Without the times of single rows: the table of runs has the sums."""
    return table_bytes(table.curves.drop(columns=list(TIMES), errors="ignore"))


def _law_files(study: StudySpec) -> dict[str, bytes]:
    """The files of the laws of learning rates that the study file names, and of the law of its own sweep."""
    if study.corpus.tokenizer.endswith(".json"):
        raise InputError(f"{study.path}: corpus.tokenizer: is a file, which a published study cannot name")
    files, home = {}, Path(study.path).parent
    for name in study.law_files:
        inside = Path(name)
        if inside.is_absolute() or ".." in inside.parts or name.startswith("~"):
            raise InputError(f"{study.path}: training.lr_law: {name} does not lie beside the study file: put it there")
        if (as_posix := inside.as_posix()) in OWN or LATER.fullmatch(as_posix):
            raise InputError(f"{study.path}: training.lr_law: {name} is a name that the folder needs: rename the file")
        files[as_posix] = (home / inside).read_bytes()
    if study.sweep is not None and (lock := study.directory / LOCK).is_file():
        if LOCK in files:
            raise InputError(f"{study.path}: training.lr_law: {LOCK} is the law of its own sweep: rename the file")
        files[LOCK] = lock.read_bytes()
    return files


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in _files(folder)
    }
    whole = manifest | {"files": files}
    write_json(folder / MANIFEST, whole, kind="publication-manifest")
    return whole


def _check_place(folder: Path, study: StudySpec) -> None:
    """Raise InputError where a file that is of no earlier publication would be replaced by another."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is no folder: name another")
    before = _of_publication(folder)
    wanted = {STUDY_FILE: Path(study.path).read_bytes()} | _law_files(study)
    rounds = [name_of_round(place) for place in range(len(study.rounds))]
    for name in sorted({*OWN, *rounds, *wanted} - {*before}):
        path = folder / name
        if path.exists() and not (path.is_file() and path.read_bytes() == wanted.get(name)):
            raise InputError(f"{path}: is there already and of no published study: move it, or name another folder")


def _of_publication(folder: Path) -> list[str]:
    """The files of the publication that is in `folder`; none where there is none."""
    try:
        manifest = read_object(folder / MANIFEST)
        return [*manifest["files"], MANIFEST] if manifest["kind"] == KIND else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _put(temporary: Path, folder: Path) -> None:
    """Move the files to `folder`, the manifest last; files of no publication stay. A folder in which a kill left files
    of two publications differs from its checksums until the study is published again."""
    if not folder.exists():
        os.replace(temporary, folder)
        return fsync_dir(folder.parent)
    before, names = _of_publication(folder), _files(temporary)
    for name in (*names, MANIFEST):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        kill_point("publication-move")
        os.replace(temporary / name, folder / name)
    for name in before:
        if name not in (*names, MANIFEST):
            (folder / name).unlink(missing_ok=True)
    fsync_dir(folder)


def _files(folder: Path) -> list[str]:
    """The names of all files below `folder` but its manifest."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in paths if name != MANIFEST)
