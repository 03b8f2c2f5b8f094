"""A plan becomes a submission: its folder with everything the jobs need, then one sbatch a job, or this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from arch.errors import InputError
from data.files import write_bytes
from scaling.rundir.versions import code_digests
from scaling.study.jobs_schema import Cluster
from scaling.study.spec import StudySpec

from . import records, slurm
from .model import ArrayJob, JobPlan
from .plan import elements_text
from .records import PLANNED, SUBMITTED, SUBMITTING, Submission
from .render import Paths, ScriptContext, job_name, render
from .snapshot import copy_code, copy_study

SLURM_PATTERNS = ("%", "\\")  # in the path of a log, which begins with the folder of the submission


def script_context(study: StudySpec, path: Path, profile: Cluster, only: str | None, retry: bool) -> ScriptContext:
    """What the scripts of a submission at `path` share."""
    sets = tuple(word for change in study.sets for word in ("--set", change))
    return ScriptContext(
        study=study.name,
        profile=profile,
        paths=Paths(path, path / "code", path / "study.yaml", study.directory.absolute(), Path.cwd()),
        python=sys.executable,
        options=sets,
        only=() if only is None else ("--only", only),
        retry=retry,
        plugins=tuple(study.plugins),
        python_path=os.environ.get("PYTHONPATH", ""),
    )


def prepare(
    study: StudySpec, plan: JobPlan, context: ScriptContext, specs: Mapping[str, str], settings: str
) -> Submission:
    """Write everything of a submission but its record; `specs`: {run id: spec hash}.

    Raises InputError for names and paths that no script can hold, before anything is written; an error after that
    leaves nothing behind.
    """
    scripts = {job.name: render(context, job) for job in plan.jobs}
    elements = {job.name: elements_text(job) for job in plan.jobs}
    paths = context.paths
    shutil.rmtree(paths.submission, ignore_errors=True)  # what a refused submission left
    try:
        (paths.submission / "logs").mkdir(parents=True)
        copy_study(Path(study.path), paths.study_file, study.law_files)
        copy_code(paths.code, study.modules)
        for job in plan.jobs:
            write_bytes(paths.script(job), scripts[job.name].encode())
            write_bytes(paths.elements(job), elements[job.name].encode())
    except BaseException:
        shutil.rmtree(paths.submission, ignore_errors=True)
        raise
    record = {
        "schema": records.SCHEMA,
        "study": study.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "user": _user(),
        "python": context.python,
        "study_path": study.path,
        "sets": list(study.sets),
        "only": list(context.only),
        "retry": context.retry,
        "settings": settings,
        "code": code_digests(tuple(study.modules)),
        "spec_hashes": dict(specs),
        "profile": context.profile.model_dump(mode="json"),
        "plan": plan.to_dict(),
        "jobs": {job.name: {"state": PLANNED, "id": None, "name": job_name(context, job)} for job in plan.jobs},
    }
    return Submission(paths.submission, record)


def check(plan: JobPlan, context: ScriptContext) -> list[str]:
    """Let SLURM check every script before anything is written; returns warnings.

    Raises InputError with its message and the job's name, and for a folder in which SLURM could start no job.
    """
    if signs := [sign for sign in SLURM_PATTERNS if sign in str(context.paths.submission)]:
        raise InputError(
            f"{context.paths.submission}: SLURM replaces {signs[0]} in the path of a job's log and would start no job: "
            f"give another --out"
        )
    warnings = [slurm.check(render(context, job), f"job {job.name}") for job in plan.jobs]
    return [line for line in warnings if line is not None]


def send(submission: Submission, plan: JobPlan, context: ScriptContext, waits: Mapping[str, Sequence[str]]) -> None:
    """Submit the jobs in their order; `waits`: ids of earlier submissions' jobs that a kind of job lets end first.

    Raises InputError where SLURM refuses one: the jobs before it are then cancelled, and the submission is removed.
    """
    submission.save()
    for job in plan.jobs:
        submission.note(job.name, SUBMITTING)
        try:
            job_id = slurm.submit(
                context.paths.script(job), job_name(context, job), _dependencies(job, submission, waits)
            )
        except slurm.Unnamed as error:  # the record keeps the job's name, by which `settle` finds it
            slurm.cancel(submission.ids.values())
            raise InputError(
                f"{error}: `scaling cancel` ends it once it is in the queue; the jobs before it are cancelled"
            ) from None
        except InputError:
            submission.note(job.name, PLANNED)
            slurm.cancel(submission.ids.values())  # where this fails too, the record stays for `scaling cancel`
            shutil.rmtree(submission.path, ignore_errors=True)
            raise
        submission.note(job.name, SUBMITTED, job_id)


def _dependencies(
    job: ArrayJob, submission: Submission, waits: Mapping[str, Sequence[str]]
) -> list[tuple[str, list[str]]]:
    """(kind, ids) of a job."""
    ids, by_kind = submission.ids, dict[str, list[str]]()
    for name, kind in job.after:
        by_kind.setdefault(kind, []).append(ids[name])
    if others := list(waits.get(job.kind, ())):
        by_kind.setdefault("afterany", []).extend(others)
    return list(by_kind.items())


def settle(submitted: Sequence[Submission]) -> None:
    """Find the jobs that a kill between sbatch and the record left without their ids."""
    for submission in submitted:
        for name, job in submission.record["jobs"].items():
            if job["state"] == SUBMITTING:
                job_id = slurm.find(job["name"], submission.path)
                submission.note(name, PLANNED if job_id is None else SUBMITTED, job_id)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, in a container
        return "?"
