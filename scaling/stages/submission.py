"""What is missing of a study, as a plan of jobs for a cluster or this machine; cli/jobs.py talks to the user."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arch.amounts import counted
from arch.errors import InputError
from jobs import records, slurm, status
from jobs.local_submit import this_machine
from jobs.plan import MAX_ARRAY_SIZE, Need, make_plan
from jobs.resources import ResourceEstimator
from jobs.speed import measured

from ..rundir.directory import RunDir
from ..rundir.owner import last_attempt
from ..rundir.prepare import check_run
from ..rundir.worklist import is_trained
from ..study.run import RunSpec
from ..study.spec import StudySpec
from .evaluation_matrix import steps_to_evaluate
from .evaluation_tasks import EvalOptions, eval_tasks, planned_tokens
from .forecast import trainable, waiting, without_rate
from .request import Request
from .trunks import check_trunks

if TYPE_CHECKING:
    from jobs.model import JobPlan
    from jobs.slurm import Element

    from ..study.jobs_schema import Cluster


@dataclass
class StudyProgress:
    """The state of a study: what was submitted, what is in the queue, what is missing, and the count of the rest."""

    submissions: list[records.Submission]
    elements: list[Element]
    needs: list[Need] = field(default_factory=list)
    unprepared: bool = False  # a run without its directory: the corpus job makes them
    done: list[RunSpec] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def queued(self) -> bool:
        return any(entry.element.active for entry in records.queue_entries(self.submissions, self.elements))

    def waits(self) -> dict[str, list[str]]:
        """Jobs of earlier submissions that write the whole study, one at a time."""
        whole = [
            job for kind in ("corpus", "finish") for job in status.active_jobs(self.submissions, self.elements, kind)
        ]
        return {"corpus": whole, "finish": whole} if whole else {}


@dataclass(frozen=True)
class Draft:
    """A plan to be submitted, the study it is of (with local resources where it is a local one), and its cluster."""

    plan: JobPlan
    study: StudySpec
    profile: Cluster
    progress: StudyProgress


def draft(request: Request, *, profile: Cluster | None, new: bool, retry: bool, ask_slurm: bool = True) -> Draft:
    """The jobs of what is missing, neither done nor in the queue; without a profile this machine's. Raises InputError,
    and has written nothing, where the profile, the study or the cluster do not go together."""
    local, study = profile is None, request.study
    if profile is None:
        study, profile = this_machine(study)
    request.check_runs()
    check_trunks(request)
    submissions = records.submissions(study.directory)
    elements = slurm.queue(records.job_ids(submissions)) if ask_slurm and records.job_ids(submissions) else []
    active = {entry.submission.number for entry in records.queue_entries(submissions, elements) if entry.element.active}
    records.refuse_changed(submissions, spec_hashes(request), settings_hash(study), active, new)
    progress = look(request, submissions, elements, retry)
    factors = measured(((run, request.rundir(run)) for run in progress.done), profile)
    most = profile.max_array_size
    if most is None and not local and ask_slurm:
        most = slurm.max_array_size()
    reported = (study.directory / "report" / "index.html").is_file() or progress.queued()
    finish = not study.is_variant and (bool(progress.needs) or not reported)
    plan = make_plan(
        study,
        progress.needs,
        ResourceEstimator(profile, factors),
        corpus=progress.unprepared,
        finish=finish,
        max_array_size=most or MAX_ARRAY_SIZE,
        tokens=lambda run: _tokens(request, run),
    )
    return Draft(plan, study, profile, progress)


def look(
    request: Request, submissions: list[records.Submission], elements: list[Element], retry: bool
) -> StudyProgress:
    """What is missing of the request's runs."""
    progress = StudyProgress(submissions, elements)
    training = status.active_items(submissions, elements, "train")
    evaluating = status.active_items(submissions, elements, "eval")
    missing, failed = _steps_to_evaluate(request), set[str]()
    unpredicted = {run.run_id for run in waiting(request)}
    unrated = {run.run_id for run in without_rate(request)}
    for run in request.runs:
        rundir = request.rundir(run)
        if run.run_id in unpredicted:
            progress.skip("forecast runs without a prediction (`scaling predict`)")
        elif run.run_id in unrated:
            progress.skip("forecast runs without a learning rate")
        elif run.run_id in training:
            progress.skip("in the queue")
        elif is_trained(run, rundir):
            progress.done.append(run)
            pending = missing.get(run.run_id, []) if run.run_id not in evaluating else []
            steps = tuple(step for step in pending if f"{run.run_id}/{step}" not in evaluating)
            if steps:
                progress.needs.append(Need(run, False, steps))
            else:
                progress.skip("evaluations in the queue" if run.run_id in evaluating else "done")
        elif rundir.status()["state"] == "failed" and not retry:
            progress.skip("failed before (--retry-failed submits them again)")
            failed.add(run.run_id)
        elif run.trunk in failed:
            progress.skip("branches of a trunk that failed before")
        elif run.trunk in training:
            progress.skip("branches of a trunk in the queue: submit them once it is trained")
        else:
            progress.needs.append(Need(run, True, world_size=_of_trunk(request, run)))
            progress.unprepared = progress.unprepared or not check_run(rundir, run)
    return progress


def _of_trunk(request: Request, run: RunSpec) -> int | None:
    """The processes that saved the states of a branch's trunk; None without one, or before it has any."""
    if run.trunk is None:
        return None
    states = RunDir(request.study.directory / "runs" / run.trunk).states(verify=False)
    return states[-1].world_size if states else None


def incomplete(request: Request) -> dict[str, str]:
    """{run id: what is missing} of the study's runs that are not trained and evaluated."""
    pending, missing = _steps_to_evaluate(request), dict[str, str]()
    for run in trainable(request):
        rundir = request.rundir(run)
        if not is_trained(run, rundir):
            status, attempt = rundir.status(), last_attempt(rundir.path) or {}
            missing[run.run_id] = f"not trained: {attempt.get('reason') or status['reason'] or status['state']}"
        elif steps := pending.get(run.run_id):
            missing[run.run_id] = f"not evaluated: {counted(len(steps), 'checkpoint')}"
    return missing


def spec_hashes(request: Request) -> dict[str, str]:
    return {run.run_id: run.spec_hash for run in request.runs}


def settings_hash(study: StudySpec) -> str:
    """16 hex digits over what evaluations and fits depend on beside the runs."""
    parts: dict[str, Any] = {name: getattr(study, name).model_dump(mode="json") for name in ("evaluation", "fit")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def cancel(request: Request) -> list[str]:
    """End the jobs of the study that wait or run, or those elements that hold chosen runs alone; returns what was
    cancelled, as "17" or "17_3". Raises InputError where an element also holds other runs."""
    submissions = records.submissions(request.study.directory)
    elements = slurm.queue(records.job_ids(submissions))
    active_entries = [entry for entry in records.queue_entries(submissions, elements) if entry.element.active]
    chosen = {run.run_id for run in request.runs}
    targets: list[str] = []
    for entry in active_entries:
        element = entry.element
        if request.only is None:
            targets.append(element.job_id)
            continue
        runs = {item.partition("/")[0] for item in records.items(entry)}
        if not runs & chosen:
            continue
        if others := sorted(runs - chosen):
            raise InputError(
                f"--only {request.only}: element {element.job_id}_{element.index} also works on {others[0]}"
                + (f" and {len(others) - 1} more" if len(others) > 1 else "")
                + ": choose these too, or cancel all"
            )
        targets.append(f"{element.job_id}_{element.index}")
    targets = list(dict.fromkeys(targets))
    slurm.cancel(targets)
    return targets


@dataclass(frozen=True)
class Seen:
    """The rows of `scaling status`: of runs, and of the newest submission's jobs; and why SLURM was not heard."""

    runs: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    warning: str | None = None


def seen(request: Request, rows: Sequence[dict[str, Any]]) -> Seen:
    """The rows of scaling.stages.status with what SLURM says, where it is installed and something was submitted."""
    submissions = [submission for submission in records.submissions(request.study.directory) if submission.ids]
    if not submissions or not slurm.available():
        return Seen(status.merge(rows, [], []), [])
    try:
        elements = status.look(submissions)
    except InputError as error:
        return Seen(status.merge(rows, [], []), [], f"{error}; the table shows what the run directories say")
    return Seen(status.merge(rows, submissions, elements), status.job_rows(submissions, elements))


def _tokens(request: Request, run: RunSpec) -> dict[str, float | None]:
    """Tokens of one checkpoint's evaluation, by task; None for one from outside that does not know."""
    tokens_of = planned_tokens(request, run)
    return {task.name: tokens_of.get(task.name) for task in eval_tasks(request, EvalOptions())}


def _steps_to_evaluate(request: Request) -> dict[str, list[int]]:
    """The steps to evaluate by run; nothing where there is no corpus yet, and so nothing trained."""
    return steps_to_evaluate(request) if (request.corpus_directory / "manifest.json").is_file() else {}
