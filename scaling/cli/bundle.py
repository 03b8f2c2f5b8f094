"""`scaling bundle`: what a study has finished on one machine, as one file for another.

A run is finished where it is trained and every evaluation that the study asks for is stored, or where it failed, which
is a result as well. Others are left out, and named.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from arch.amounts import byte_size, counted
from arch.commands import with_options
from arch.errors import FULL, InputError
from data.files import read_manifest

from ..bundle import archive
from ..bundle.index import ENDING, MOST_INDEX, Index, folder_of, read_index
from ..bundle.merge import BUNDLES, decide, unpacked
from ..bundle.pack import (
    Members,
    members_of_file,
    members_of_run,
    members_of_study,
    provenance,
    sizes_of,
    write_bundle,
)
from ..bundle.unpack import write_merge
from ..bundle.verify import Bundle
from ..rundir.directory import RunDir, clean_unfinished
from ..rundir.lock import is_locked, study_lock
from ..rundir.prepare import at_stored_rate
from ..rundir.worklist import is_trained
from ..study.rates import Lock, resolve
from ..study.spec import StudySpec, load_study
from .bundle_compare import SHOWN, compare, verified_bundle
from .evaluation import eval_matrix, show_results
from .options import AsJson, DryRun, RunsOptions, print_json
from .passing import Passing
from .request import Request

if TYPE_CHECKING:
    from ..study.run import RunSpec

app = typer.Typer(help="Carry finished runs between machines. Pack them without their weights, unpack and merge them.")


@app.command()
@with_options
def pack(
    study: RunsOptions,
    to: Annotated[Path | None, typer.Option(help="The file to write; default: STUDY.tar.xz here.")] = None,
    metrics_every: Annotated[
        int, typer.Option(min=1, help="Keep the rows of metrics of every so many steps: most of a bundle are these.")
    ] = 1,
    dry_run: DryRun = False,
) -> None:
    """Write one file with all that is finished. It has metrics, evaluations and manifests, without weights and text."""
    request = study.request()
    packed = pack_stage(request, to or Path(f"{request.study.name}{ENDING}"), dry_run, metrics_every)
    if study.as_json:
        return print_json(packed)
    for name, n_bytes in (packed["runs"] | packed["others"]).items() if dry_run else ():
        print(f"{name}: {byte_size(n_bytes)}")
    _say_left_out(packed["left_out"])
    n_runs, content = len(packed["runs"]), byte_size(packed["content_bytes"])
    if dry_run:
        print(f"would pack {counted(n_runs, 'run')}, {content} before compression (dry run: nothing was written)")
    else:
        print(
            f"{packed['file']}: {counted(n_runs, 'run')}, {byte_size(packed['bytes'])} ({content} before compression)"
        )
        print("next, where the runs come together: scaling bundle unpack " + str(packed["file"]))


@app.command()
@with_options
def unpack(
    files: Annotated[list[Path], typer.Argument(metavar="FILE..", help="Bundles of one study.")],
    out: Annotated[Path, typer.Option(help="Directory of all studies' output.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Verify bundles and merge them into OUT/STUDY. Its runs count as trained and evaluated there."""
    unpacked = unpack_stage(files, out, sys.stderr if as_json else sys.stdout)
    if as_json:
        return print_json(unpacked)
    for line in unpacked["notes"]:
        print(f"note: {line}")
    _say_left_out(unpacked["left_out"])
    added = f", {counted(unpacked['added'], 'file')} added to them" if unpacked["added"] else ""
    print(
        f"{unpacked['directory']}: {counted(len(unpacked['new']), 'run')} unpacked, {len(unpacked['equal'])} there "
        f"already{added}"
    )
    print(f"next: scaling status STUDY --out {out}, by the study file that the bundles were packed with")


app.command()(with_options(compare))


def _say_left_out(left_out: dict[str, Any]) -> None:
    if left_out:
        print(f"left out: {counted(len(left_out), 'run that is', 'runs that are')} not finished")
    for name, why in list(left_out.items())[:SHOWN]:
        print(f"  {name}: {why}")
    if len(left_out) > SHOWN:
        print(f"  and {len(left_out) - SHOWN} more (--json names all)")


def pack_stage(request: Request, to: Path, dry_run: bool, metrics_every: int = 1) -> dict[str, Any]:
    """Write the bundle of what is finished to `to`, with the row of metrics of every `metrics_every`-th step; returns
    {"file", "bytes", "dry_run", "study", "runs": {folder: bytes}, "others": {group: bytes}, "left_out": {folder: why}},
    "bytes" None for a dry run. Raises InputError where nothing is finished, or `to` is a file that is no bundle of this
    study."""
    _check_target(request, to)
    request.check_runs()
    index, members = _contents(request, dry_run, metrics_every)
    if not index.runs:
        more = f": {next(iter(index.left_out))}: {next(iter(index.left_out.values()))}" if index.left_out else ""
        raise InputError(f"{request.study.directory}: no run of this study is finished, so there is no bundle{more}")
    sizes, groups = sizes_of(members), dict[str, int]()
    runs = dict.fromkeys(index.runs, 0)
    for name, size in sizes.items():
        if folder := folder_of(name):
            runs[folder] += size
        else:
            group = name.partition("/")[0]
            groups[group] = groups.get(group, 0) + size
    written = None
    if not dry_run:
        try:
            with Passing(request.stream) as passing:
                written = write_bundle(to, index, members, partial(passing.tell_bytes, "bundle"))
        except OSError as error:
            raise _no_space(error, to) from None
    return {
        **{"file": str(to), "bytes": written, "dry_run": dry_run, "study": request.study.name},
        **{"content_bytes": sum(sizes.values()), "runs": runs, "others": groups, "left_out": index.left_out},
    }


def _no_space(error: OSError, path: Path) -> Exception:
    remedy = "free some space" if error.errno in FULL else "give another place"
    return InputError(f"{error.filename or path}: {error.strerror}: {remedy} and run it again (nothing was written)")


def _check_target(request: Request, to: Path) -> None:
    if not to.name.endswith(ENDING):
        raise InputError(f"--to {to}: a bundle's name ends with {ENDING}")
    if not to.parent.is_dir():
        raise InputError(f"--to {to}: {to.parent} is no folder; make it first")
    if to.exists():
        try:
            study_name = read_index(
                archive.whole(next(archive.members_of(to, lambda name: MOST_INDEX))[2]), str(to)
            ).study
        except (InputError, StopIteration):
            raise InputError(f"--to {to}: is there and is no bundle; give another name, or remove it") from None
        if study_name != request.study.name:
            raise InputError(f"--to {to}: is a bundle of study {study_name}; give another name, or remove it")


def _contents(request: Request, dry_run: bool, metrics_every: int) -> tuple[Index, Members]:
    study, home = request.study, request.study.directory
    runs, left_out = _finished(request)
    members: Members = {}
    for folder in runs:
        members |= members_of_run(home / folder, folder, metrics_every)
    if not dry_run:
        _ensure_baseline(request)
    members |= members_of_study(home) | ({} if dry_run else _difficulty(request, list(runs)))
    of_file, laws = members_of_file(Path(study.path), study.law_files)
    members |= of_file
    corpus = read_manifest(home / "corpus", verify=False, partial=True)
    index = Index(
        study=study.name,
        study_file=next(iter(of_file)),
        planned=_planned(request),
        corpus_fingerprint=corpus["fingerprint"] if corpus else None,
        runs=runs,
        left_out=left_out,
        files={},
        only=request.only,
        sets=list(study.sets),
        metrics_every=_rows_every(home, runs, metrics_every),
        laws=laws,
        **provenance(home / folder for folder in runs),  # type: ignore[arg-type]
    )
    return index, members


def _rows_every(home: Path, runs: dict[str, str], metrics_every: int) -> int:
    """Steps between the rows of a bundle with every `metrics_every`-th: runs of a bundle of fewer rows have no more."""
    came = [index.metrics_every for _, index in unpacked(home) if index.runs.keys() & runs.keys()]
    return max((math.lcm(metrics_every, every) for every in came), default=metrics_every)


def _without_sets(request: Request) -> StudySpec:
    return load_study(request.study.path, [], request.study.out) if request.study.sets else request.study


def _planned(request: Request) -> dict[str, str | None]:
    """The whole study's runs without --set, by id: the spec hash of their directory, or that which they will have."""
    study = _without_sets(request)
    planned = dict[str, str | None]()
    for run in resolve(study.all_runs(), Lock(study)):
        rundir = RunDir(study.run_directory(run))
        is_stored = rundir.run_json.exists()
        planned[run.run_id] = (
            str(rundir.record()["spec_hash"]) if is_stored else None if run.is_pending else run.spec_hash
        )
    return planned


def _finished(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """{folder: spec hash} of the chosen runs that are finished, and {folder: why not} of the others. Without --only and
    --set all that are there: variants and runs of an earlier grid too, which the tables have; the sweep's always."""
    home = request.study.directory
    chosen = {f"runs/{run.run_id}": run for run in request.runs}
    finished, left_out = dict[str, str](), dict[str, str]()
    begun_runs = {name: run for name, run in chosen.items() if (home / name / "run.json").exists()}
    left_out |= {name: "not begun here" for name in chosen if name not in begun_runs}
    unevaluated = _unevaluated(request) if begun_runs else {}
    others = [path.parent for path in sorted((home / "sweep" / "runs").glob("*/run.json"))]
    if request.only is None and not request.study.sets:
        others += [path.parent for path in sorted((home / "runs").glob("*/run.json"))]
    folders = [*begun_runs, *(name for path in others if (name := path.relative_to(home).as_posix()) not in begun_runs)]
    for name in folders:
        rundir = RunDir(home / name)
        try:
            run = at_stored_rate(rundir, begun_runs[name]) if name in begun_runs else rundir.spec()
        except InputError as error:  # of another version
            left_out[name] = str(error)
            continue
        if why := _unfinished(run, rundir) or unevaluated.get(name, ""):
            left_out[name] = why
        else:
            finished[name] = str(rundir.record()["spec_hash"])
    return finished, left_out


def _unfinished(run: RunSpec, rundir: RunDir) -> str:
    """Why a run is not to be bundled; "" where it has ended."""
    status = rundir.status()
    if is_locked(rundir.path):
        return "being trained"
    if status["state"] == "failed" or is_trained(run, rundir):
        return ""
    return f"not trained: {status['reason'] or status['state']}, step {status['step']} of {run.n_steps}"


def _unevaluated(request: Request) -> dict[str, str]:
    """{folder: what is missing} of the runs whose checkpoints lack a result that the study asks for. Results of tasks
    whose data are not here are taken as they are."""
    matrix = eval_matrix(request)
    missing = dict[str, list[str]]()
    for pair in matrix.pairs:
        if pair.stored() is None:
            missing.setdefault(pair.checkpoint.run.run_id, []).append(
                pair.name.removeprefix(f"{pair.checkpoint.run.run_id}/")
            )
    absent = [task for task in matrix.refused if task in matrix.tasks]
    for run in request.runs:
        for folder in sorted((request.rundir(run).path / "checkpoints").glob("[0-9]*")):
            for task in absent:
                if not request.rundir(run).evaluation(int(folder.name), task).exists():
                    missing.setdefault(run.run_id, []).append(f"{folder.name} {task}")
    return {
        f"runs/{run_id}": f"not evaluated: {len(names)} missing ({names[0]}{', ...' if len(names) > 1 else ''}), "
        f"`scaling eval study` first"
        for run_id, names in missing.items()
    }


def _ensure_baseline(request: Request) -> None:
    """results/bigram.json, which reports need and only the text gives."""
    from analysis.source.run_directories import RunDirectories
    from data.corpus import open_corpus

    home = request.study.directory
    if (home / "corpus" / "manifest.json").exists() and not open_corpus(home / "corpus").is_left_out:
        study = _without_sets(request)
        RunDirectories(study, request.whole_grid).baseline()


def _difficulty(request: Request, folders: Sequence[str]) -> Members:
    """The difficulty of the runs' batches, where the study's fits control for it."""
    from data.corpus import open_corpus

    home, study = request.study.directory, request.study
    runs = [RunDir(home / folder).spec() for folder in folders if folder.startswith("runs/")]
    if study.fit.control != "bigram" or not runs or (corpus := open_corpus(home / "corpus")).is_left_out:
        return {}
    from analysis.bigram import DIFFICULTY, difficulties, difficulty_file

    files = [difficulty_file(kind, corpus, nats) for kind, nats in difficulties(runs, corpus).items()]
    return {f"results/{DIFFICULTY}/{name}": content for name, content in files}


def unpack_stage(files: Sequence[Path], out: Path, stream: TextIO) -> dict[str, Any]:
    """Verify the bundles, then merge them into <out>/<study>. Returns {"directory", "bundles", "new", "equal", "added":
    files of runs that were there, "left_out", "notes"}. Raises InputError, before anything is written, where one is
    damaged, or differs from what is there or from another."""
    bundles = [verified_bundle(path, stream) for path in files]
    names = sorted({bundle.index.study for bundle in bundles})
    if len(names) > 1:
        raise InputError(f"{bundles[0].path}: the bundles are of several studies ({', '.join(names)}): unpack one's")
    home = out.expanduser() / names[0]
    decide(home, bundles)  # refuses
    try:
        with study_lock(home):
            clean_unfinished(home)
            merge = decide(home, bundles)  # what is there now
            with Passing(stream) as passing:
                write_merge(merge, bundles, partial(passing.tell_bytes, "unpacked"))
            notes = [*merge.kept, *_tables(home, bundles)]
    except OSError as error:
        raise _no_space(error, home) from None
    folders = {*merge.new}
    return {
        **{"directory": str(home), "bundles": [bundle.id for bundle in bundles], "new": merge.new},
        "equal": merge.equal,
        "added": sum(folder_of(name) in merge.equal for name in merge.take),
        "left_out": {
            name: why
            for bundle in bundles
            for name, why in bundle.index.left_out.items()
            if name not in folders and not (home / name / "run.json").exists()
        },
        "notes": notes,
    }


def _tables(home: Path, bundles: Sequence[Bundle]) -> list[str]:
    """Make results/evals.parquet anew of all that is there now, which fits read; returns a line where it cannot be."""
    bundle = max(bundles, key=lambda bundle: len(bundle.index.planned))
    path = home / BUNDLES / bundle.id / bundle.index.study_file.partition("/")[2]
    try:
        show_results(Request(load_study(path, [], home.parent), stream=io.StringIO()))
    except (ValueError, OSError) as error:  # of a study file, or of the table that is there
        return [f"results/evals.parquet was not made anew ({error}): `scaling eval study` does it"]
    return []
