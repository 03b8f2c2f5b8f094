"""`scaling clean-text`: datatrove's rules and near-duplicate pass over text, here or on SLURM."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted_of
from arch.errors import InputError

from .options import AsJson, print_json, tell

if TYPE_CHECKING:
    from data.clean.datatrove_stages import Slurm
    from data.clean.filtering import Filtering

JOBS = "jobs.json"


@dataclass(frozen=True, kw_only=True)
class CleanOptions:
    """Where the cleaned text goes, by which rules, and on what machines."""

    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the result; DIR/text is then a source.")]
    text_key: Annotated[str, typer.Option(help="The key of a record that holds its text.")] = "text"
    rule: Annotated[
        list[str] | None, typer.Option(help="language, repetition or quality; repeatable. Default: the last two.")
    ] = None
    language: Annotated[
        list[str] | None, typer.Option(help="With the rule language: keep this one, as the model calls it; repeatable.")
    ] = None
    language_model: Annotated[Path | None, typer.Option(help="With the rule language: a fastText model's file.")] = None
    keep_near_duplicates: Annotated[
        bool, typer.Option("--keep-near-duplicates", help="Drop by rules alone, not by MinHash.")
    ] = False
    tasks: Annotated[int, typer.Option(min=1, help="Number of parts of the work.")] = 1
    workers: Annotated[int, typer.Option(min=1, help="Parts that are at work at a time on this machine.")] = 1
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME_OR_FILE", help="Submit to SLURM by this cluster profile instead.")
    ] = None
    memory_gb: Annotated[int, typer.Option(min=1, help="Memory of a task on SLURM, 10^9 bytes.")] = 2
    as_json: AsJson = False


def clean_text(
    source: Annotated[list[str], typer.Argument(metavar="SOURCE..", help="Text, as corpus.source of a study file.")],
    options: CleanOptions,
) -> None:
    """Drop low-quality text and near-duplicates.

    datatrove's rules and MinHash decide what is dropped; the rest is written as JSONL. The same command does only what
    is missing when it is run again, and prints what was dropped.
    """
    if find_spec("datatrove") is None:
        raise InputError("clean-text needs datatrove, which is not installed: pip install 'linear-scaling[corpus]'")
    from data.checks import check_text
    from data.clean.filtering import Filtering, claim
    from data.settings import CorpusSettings

    try:
        check_text(CorpusSettings(source=tuple(source), text_key=options.text_key))
    except InputError as error:
        raise InputError(str(error).replace("corpus.source:", "SOURCE:", 1)) from None
    filtering = Filtering(
        sources=tuple(source),
        directory=options.to,
        text_key=options.text_key,
        rules=("repetition", "quality") if options.rule is None else tuple(dict.fromkeys(options.rule)),
        languages=tuple(options.language or ()),
        model=options.language_model,
        near=not options.keep_near_duplicates,
        tasks=options.tasks,
    )
    slurm = None if options.cluster is None else _slurm(options.cluster, options.memory_gb)
    record = claim(filtering)
    if record is None and slurm is not None:
        return _submit(filtering, slurm, options.as_json)
    if record is None:
        from data.clean.datatrove_stages import run_here

        run_here(filtering, options.workers, lambda line: print(line, file=sys.stderr))
        record = claim(filtering)
        assert record is not None
    if options.as_json:
        return print_json(record)
    _show(record)
    print(f"corpus.source: {filtering.text}")


def _show(record: dict[str, Any]) -> None:
    from data.clean.summary import examples, headline

    counts = record["counts"]
    left_out = [
        f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n and name not in ("documents", "kept")
    ]
    print(f"{counted_of(counts['kept'], counts['documents'], 'document', 'stays', 'stay')}", end="")
    print(f" (not read: {', '.join(left_out)})" if left_out else "")
    for step in record["steps"]:
        print(headline(step))
        for example in examples(step):
            print(f"  {example}")


def _slurm(cluster: str, memory_gb: int) -> Slurm:
    from data.clean.datatrove_stages import Slurm
    from jobs.profile import load_profile

    profile = load_profile(cluster, None)
    partition = profile.partition.get("corpus")
    if partition is None:
        raise InputError(f"{cluster}: clean-text needs a partition; add `partition: NAME` to the profile")
    flags = [option.lstrip("-").partition("=") for option in profile.sbatch]
    options = [("account", profile.account), ("constraint", profile.constraint)]
    return Slurm(
        partition=partition,
        hours=profile.max_hours,
        memory_gb=memory_gb,
        qos=profile.qos,
        options=(*((name, value) for name, value in options if value), *((name, value) for name, _, value in flags)),
        lines=(*profile.setup, *(f"export {name}={shlex.quote(value)}" for name, value in profile.environment.items())),
        at_once=profile.max_running or -1,
    )


def _submit(filtering: Filtering, slurm: Slurm, as_json: bool) -> None:
    from data.clean.datatrove_stages import submit
    from data.files import write_json
    from jobs.slurm import its_environment, unused_options

    path = filtering.directory / JOBS
    if path.exists() and (waiting := _queued(_submitted(path))):
        raise InputError(
            f"--to: jobs of {filtering.directory} are queued or running ({', '.join(waiting)}); wait for them"
        )
    for line in unused_options():
        tell(f"warning: {line}")
    with its_environment():
        jobs = submit(filtering, slurm, lambda jobs: write_json(path, jobs))
    if as_json:
        return print_json(jobs)
    print("submitted: " + ", ".join(f"{name} {job}" for name, job in jobs.items()))
    print("run the same command once they have ended: it prints the result, or submits again what is missing")


def _submitted(path: Path) -> list[str]:
    """The jobs that an earlier call submitted."""
    from data.files import read_json, reading

    with reading(path, "cancel its jobs and remove it"):
        jobs = list(read_json(path).values())
        if not all(isinstance(job, str) and job.isdecimal() for job in jobs):
            raise ValueError("a job's id is no number")
    return jobs


def _queued(jobs: list[str]) -> list[str]:
    """The jobs of `jobs` that SLURM has not ended."""
    from jobs import slurm

    return sorted({element.job_id for element in slurm.queue(jobs) if element.active}) if slurm.available() else []
