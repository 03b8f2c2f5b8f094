"""`scaling bundle`: what a study has finished on one machine, as one file for another.

A run is finished where it is trained and every evaluation that the study asks for is stored, or where it failed, which
is a result as well. Others are left out, and named.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from arch.amounts import byte_size, counted
from arch.commands import Application, with_options
from arch.errors import FULL, InputError
from data.files import MANIFEST, json_bytes, read_manifest

from ..bundle.file import ENDING, STUDY, Index, folder_of, read_index, sizes_of, write_bundle
from ..bundle.merge import merge_bundles
from ..rundir.directory import RunDir, clean_unfinished
from ..rundir.lock import is_locked, study_lock
from ..rundir.metrics import complete_rows, record_of_lines
from ..rundir.prepare import at_stored_rate
from ..rundir.worklist import is_trained
from ..study.spec import load_study
from .evaluation import eval_matrix, show_results
from .options import AsJson, DryRun, RunsOptions, print_json
from .passing import Passing
from .request import Request

if TYPE_CHECKING:
    from ..study.run import RunSpec

OF_RUN = ("run.json", "metrics.jsonl", "status.json", "attempts/*.json", "evals/[0-9]*/*.json")
OF_CORPUS = ("tokenizer*", "validation*.idx")
OF_RESULTS = ("bigram.json", "contamination.json", "predictions*.json", "evals.parquet", "difficulty/*.json")

SHOWN = 10  # runs that are named of those left out
Members = dict[str, Path | bytes]  # name in the bundle: where its content lies, or the content

app = Application(help="Carry finished runs between machines. Pack them without their weights, unpack and merge them.")


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
    if left_out := packed["left_out"]:
        print(f"left out: {counted(len(left_out), 'run that is', 'runs that are')} not finished")
        for name, why in list(left_out.items())[:SHOWN]:
            print(f"  {name}: {why}")
        if len(left_out) > SHOWN:
            print(f"  and {len(left_out) - SHOWN} more (--json names all)")
    n_runs, content = len(packed["runs"]), byte_size(packed["content_bytes"])
    if dry_run:
        return print(
            f"would pack {counted(n_runs, 'run')}, {content} before compression (dry run: nothing was written)"
        )
    print(f"{packed['file']}: {counted(n_runs, 'run')}, {byte_size(packed['bytes'])} ({content} before compression)")
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
    added = f", {counted(unpacked['added'], 'file')} added to them" if unpacked["added"] else ""
    print(
        f"{unpacked['directory']}: {counted(len(unpacked['new']), 'run')} unpacked, {len(unpacked['equal'])} there "
        f"already{added}"
    )
    print(f"next: scaling status STUDY --out {out}, by the study file that the bundles were packed with")


def pack_stage(request: Request, to: Path, dry_run: bool, metrics_every: int = 1) -> dict[str, Any]:
    """Write the bundle of what is finished to `to`, with the row of metrics of every `metrics_every`-th step; returns
    {"file", "bytes", "dry_run", "study", "content_bytes", "runs": [folder], "left_out": {folder: why}}, "bytes" None
    for a dry run. Raises InputError where nothing is finished, or `to` is a file that is no bundle of this study."""
    study, home = request.study, request.study.directory
    _check_target(request, to)
    request.check_runs()
    runs, left_out = _finished(request)
    if not runs:
        more = "".join(f": {name}: {why}" for name, why in list(left_out.items())[:1])
        raise InputError(f"{home}: no run of this study is finished, so there is no bundle{more}")
    members: Members = {}
    for folder in runs:
        members |= _members_of_run(home / folder, folder, metrics_every)
    if not dry_run:
        members |= _made_of_text(request, runs)
    members |= members_of_study(request)
    content_bytes, written = sum(sizes_of(members).values()), None
    if not dry_run:
        index = Index(study.name, f"{STUDY}/{Path(study.path).name}", runs, {})
        try:
            with Passing(request.stream) as passing:
                written = write_bundle(to, index, members, partial(passing.show_bytes, "bundle"))
        except OSError as error:
            raise _no_space(error, to) from None
    return {
        **{"file": str(to), "bytes": written, "dry_run": dry_run, "study": study.name},
        **{"content_bytes": content_bytes, "runs": list(runs), "left_out": left_out},
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
            is_of_study = read_index(to).study == request.study.name
        except InputError:
            is_of_study = False
        if not is_of_study:
            raise InputError(f"--to {to}: is there and is no bundle of this study; give another name, or remove it")


def _members_of_run(run: Path, name: str, metrics_every: int) -> Members:
    """What a bundle holds of the run at `run`, as `name`/...: no weights, no training states, no logs; of its metrics
    the first row, the last one, and those of every `metrics_every`-th step."""
    paths = [path for pattern in OF_RUN for path in run.glob(pattern)]
    for folder in run.glob("checkpoints/[0-9]*"):
        if read_manifest(folder, verify=False, partial=True) is not None:
            paths += [path for file_name in (MANIFEST, "config.json") if (path := folder / file_name).is_file()]
    members: Members = {
        f"{name}/{path.relative_to(run).as_posix()}": path for path in paths if not path.name.startswith(".")
    }
    if metrics_every > 1:
        rundir = RunDir(run)
        rows, status = complete_rows(rundir.metrics), rundir.status()
        kept = [line for i, (step, line) in enumerate(rows) if i in (0, len(rows) - 1) or step % metrics_every == 0]
        members[f"{name}/{rundir.metrics.name}"] = content = b"".join(kept)
        members[f"{name}/status.json"] = json_bytes(status | {"metrics": record_of_lines(content)})
    return members


def members_of_study(request: Request) -> Members:
    """What a bundle holds of the study beside its runs: the study file and the laws beside it, the corpus' manifest and
    tokenizer, where its held-out documents begin, results that cannot be made again without text or weights, and the
    law of its sweep."""
    home, file = request.study.directory, Path(request.study.path)
    paths = [home / "rates.json", *(path for pattern in OF_RESULTS for path in (home / "results").glob(pattern))]
    if read_manifest(home / "corpus", verify=False, partial=True) is not None:
        paths += [path for pattern in (MANIFEST, *OF_CORPUS) for path in (home / "corpus").glob(pattern)]
    members: Members = {path.relative_to(home).as_posix(): path for path in paths if path.is_file()}
    laws = [law for law in map(Path, request.study.law_files) if not law.is_absolute() and ".." not in law.parts]
    return members | {f"{STUDY}/{path.as_posix()}": file.parent / path for path in (Path(file.name), *laws)}


def _made_of_text(request: Request, runs: dict[str, str]) -> Members:
    """What reports and fits need and only the text gives: results/bigram.json, and the difficulty of the runs' batches,
    where the study's fits control for it."""
    from analysis.bigram import DIFFICULTY, difficulties, difficulty_file
    from analysis.source.run_directories import RunDirectories
    from data.corpus import open_corpus

    home, study = request.study.directory, request.study
    if not (home / "corpus" / MANIFEST).exists() or (corpus := open_corpus(home / "corpus")).is_left_out:
        return {}
    own = load_study(study.path, [], study.out) if study.sets else study
    RunDirectories(own, request.whole_grid).baseline()
    specs = [RunDir(home / folder).spec() for folder in runs if folder.startswith("runs/")]
    if study.fit.control != "bigram" or not specs:
        return {}
    files = [difficulty_file(kind, corpus, nats) for kind, nats in difficulties(specs, corpus).items()]
    return {f"results/{DIFFICULTY}/{name}": content for name, content in files}


def _finished(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """{folder: spec hash} of the chosen runs that are finished, and {folder: why not} of the others, first of those
    that were begun. Without --only and --set all that are there: variants and runs of an earlier grid too, which the
    tables have; the sweep's always."""
    home = request.study.directory
    chosen = {f"runs/{run.run_id}": run for run in request.runs}
    begun = {name: run for name, run in chosen.items() if (home / name / "run.json").exists()}
    finished, left_out = dict[str, str](), dict[str, str]()
    unevaluated = _unevaluated(request) if begun else {}
    others = sorted((home / "sweep" / "runs").glob("*/run.json"))
    if request.only is None and not request.study.sets:
        others += sorted((home / "runs").glob("*/run.json"))
    for name in dict.fromkeys([*begun, *(path.parent.relative_to(home).as_posix() for path in others)]):
        rundir = RunDir(home / name)
        try:
            run = at_stored_rate(rundir, begun[name]) if name in begun else rundir.spec()
        except InputError as error:  # of another version
            left_out[name] = str(error)
            continue
        if why := _unfinished(run, rundir) or unevaluated.get(name, "") or _unjudged(run, rundir):
            left_out[name] = why
        else:
            finished[name] = str(rundir.record()["spec_hash"])
    return finished, left_out | {name: "not begun here" for name in chosen if name not in begun}


def _unfinished(run: RunSpec, rundir: RunDir) -> str:
    """Why a run is not to be bundled; "" where it has ended."""
    status = rundir.status()
    if is_locked(rundir.path):
        return "being trained"
    if status["state"] == "failed" or is_trained(run, rundir):
        return ""
    return f"not trained: {status['reason'] or status['state']}, step {status['step']} of {run.n_steps}"


def _unjudged(run: RunSpec, rundir: RunDir) -> str:
    """Why a trained run of a sweep is not to be bundled: no law can be made of it without its loss, for which weights
    are needed."""
    of_sweep = rundir.path.parent.parent.name == "sweep" and rundir.status()["state"] != "failed"
    if not of_sweep or rundir.evaluation(run.n_steps, "validation").exists():
        return ""
    return "not evaluated: `scaling sweep` first"


def _unevaluated(request: Request) -> dict[str, str]:
    """{folder: what is missing} of the runs whose checkpoints lack a result that the study asks for. Results of tasks
    whose data are not here are taken as they are."""
    matrix = eval_matrix(request)
    missing = dict[str, list[str]]()
    for pair in matrix.pairs:
        if pair.stored() is None:
            run_id = pair.checkpoint.run.run_id
            missing.setdefault(run_id, []).append(pair.name.removeprefix(f"{run_id}/"))
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


def unpack_stage(files: Sequence[Path], out: Path, stream: TextIO) -> dict[str, Any]:
    """Verify the bundles and merge them into <out>/<study>. Returns {"directory", "new", "equal", "added": files of
    runs that were there, "notes"}. Raises InputError, and leaves the directory as it was, where one is damaged, or
    differs from what is there or from another."""
    indexes = [read_index(path) for path in files]
    names = sorted({index.study for index in indexes})
    if len(names) > 1:
        raise InputError(f"{files[0]}: the bundles are of several studies ({', '.join(names)}): unpack one's")
    home = out.expanduser() / names[0]
    try:
        with study_lock(home), Passing(stream) as passing:
            clean_unfinished(home)
            merge = merge_bundles(home, files, partial(passing.show_bytes, "verified and unpacked"))
            notes = [*merge.kept, *_tables(home, max(indexes, key=lambda index: len(index.runs)))]
    except OSError as error:
        raise _no_space(error, home) from None
    added = sum(folder_of(name) in merge.equal for name in merge.take)
    return {"directory": str(home), "new": merge.new, "equal": merge.equal, "added": added, "notes": notes}


def _tables(home: Path, index: Index) -> list[str]:
    """Make results/evals.parquet anew of all that is there now, which fits read; returns a line where it cannot be."""
    try:
        study = load_study(home / index.place_of(index.study_file), [], home.parent)
        show_results(Request(study, stream=io.StringIO()))
    except (ValueError, OSError) as error:  # of a study file, or of the table that is there
        return [f"results/evals.parquet was not made anew ({error}): `scaling eval study` does it"]
    return []
