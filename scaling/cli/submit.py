"""`scaling submit`: what a study lacks as a plan of jobs for a cluster; `cancel`; and `finish`, the last of them."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted, counted_of, first_few
from arch.errors import InputError
from arch.tables import text_table
from data.splitting import bytes_to_read
from flops.registry import entry_of
from flops.tables import duration
from jobs import records, slurm, status
from jobs.plan import MAX_ARRAY_SIZE, Need, make_plan
from jobs.plan import explain as reasons
from jobs.profile import EXAMPLE, load_profile
from jobs.render import render
from jobs.resources import ResourceEstimator
from jobs.speed import measured
from jobs.submit import check, prepare, script_context, send, settle

from ..rundir.directory import RunDir
from ..rundir.lock import study_lock
from ..rundir.owner import last_attempt
from ..rundir.prepare import check_run
from ..rundir.tracking import check_trackers
from ..rundir.worklist import is_trained, release_states
from ..study.plan import confounded
from ..study.run import RunSpec
from ..study.spec import StudySpec
from .corpus import check_corpus
from .evaluation import check_evaluations, eval_tasks, planned_tokens, show_results, steps_to_evaluate
from .fitting import fit_stage, report_stage
from .forecast import Waiting, trainable
from .options import ChangedStudyOptions, DryRun, RunsOptions, notify, print_json
from .request import Request
from .training import check_architectures, check_trunks

if TYPE_CHECKING:
    from jobs.model import JobPlan
    from jobs.records import Submission
    from jobs.render import ScriptContext
    from jobs.slurm import Element

    from ..study.jobs_schema import Cluster

TOKENIZERS = "TIKTOKEN_CACHE_DIR"  # tiktoken's folder


def _show_example(show: bool) -> None:
    if show:
        print(EXAMPLE, end="")
        raise typer.Exit


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """Where jobs run, and which runs are submitted although an earlier submission had them."""

    cluster: Annotated[
        str | None, typer.Option(metavar="NAME_OR_FILE", help="Cluster profile; default: the study's jobs.cluster.")
    ] = None
    new: Annotated[bool, typer.Option("--new", help="Submit although the study changed since the last submission.")] = (
        False
    )
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also submit runs that failed: loss or gradient did not stay finite.")
    ] = False
    explain: Annotated[bool, typer.Option("--explain", help="Print the reason for everything that a job requests.")] = (
        False
    )
    dry_run: DryRun = False
    example_profile: Annotated[
        bool,
        typer.Option("--example-profile", is_eager=True, callback=_show_example, help="Print a cluster profile."),
    ] = False


@contextlib.contextmanager
def tokenizers_of(profile: Cluster | None) -> Iterator[None]:
    """Inside, tiktoken's folder is that of the corpus job."""
    here = os.environ.get(TOKENIZERS)
    there = profile.of_kind("corpus").environment.get(TOKENIZERS) if profile else None
    if there is None:
        yield
        return
    os.environ[TOKENIZERS] = there
    try:
        yield
    finally:
        del os.environ[TOKENIZERS]
        os.environ.update({} if here is None else {TOKENIZERS: here})


def submit(study: RunsOptions, options: SubmitOptions) -> None:
    """Submit what a study still lacks to SLURM. These are corpus, training, evaluations, fits and report."""
    request, dry_run = study.request(), options.dry_run
    later = check_evaluations(request, data_later=dry_run)
    request.check_rates()
    named = options.cluster, request.study.jobs.cluster, request.study.path
    profile = load_profile(*named) if any(named[:2]) else None
    with tokenizers_of(profile):
        later += check_corpus(request, data_later=dry_run)
    if not dry_run:
        slurm.require()
    profile = profile or load_profile(*named)  # before models are checked and SLURM is waited for
    check_architectures(request, here=False)
    _warn(slurm.unused_options())
    later += trackers_of_jobs(request.study.tracking, profile.of_kind("train"))
    silence = _silence(patient=not dry_run)
    if silence and not dry_run:
        raise InputError(f"{silence}: is this a login node of the cluster? --dry-run shows the scripts all the same")
    with contextlib.nullcontext() if dry_run else study_lock(records.folder(request.study.directory)):
        if not dry_run:
            settle(records.submissions(request.study.directory))
        drafted = draft(request, profile, options, ask_slurm=not silence)
        _warn([*later, *confounded(request.runs), *_without_memory(request.runs)])
        path = records.next_path(request.study.directory).absolute()
        context = script_context(request.study, path, profile, request.only, options.retry_failed)
        waiting = Waiting.of(request).lines(request)
        if dry_run:
            return _dry_run(drafted, context, options.explain, study.as_json, silence, waiting)
        request.say("\n".join([drafted.text(options.explain), *waiting]))
        if not drafted.plan.jobs:
            return print_json(drafted.to_dict()) if study.as_json else None
        _warn(check(drafted.plan, context))
        settings = settings_hash(request.study)
        submission = prepare(request.study, drafted.plan, context, spec_hashes(request), settings)
        send(submission, drafted.plan, context, drafted.progress.waits())
    if study.as_json:
        return print_json(drafted.to_dict(submission))
    print("\n".join(f"{name}: job {job_id}" for name, job_id in submission.ids.items()))
    print(f"scripts and logs: {submission.path}")
    study.say_next("status")


def trackers_of_jobs(trackers: Sequence[str], profile: Cluster) -> list[str]:
    """A line where a tracker is not installed here and jobs train by another Python. Raises InputError where they train
    by this one."""
    try:
        check_trackers(trackers)
    except InputError as error:
        if profile.python is None and not profile.container:
            raise
        return [f"{error}: needed where the jobs' own Python is"]
    return []


def _without_memory(runs: Sequence[RunSpec]) -> list[str]:
    """A line where memory cannot be requested by what training takes."""
    archs = dict.fromkeys(kind.arch for run in runs for kind in run.config.kinds)
    unknown = [arch for arch in archs if entry_of(arch).memory is None]
    return [f"memory of {arch} is not known, since its costs have none: give it in jobs.resources" for arch in unknown]


def cancel(study: RunsOptions) -> None:
    """Cancel a study's jobs, queued or running. Saved states stay: submit again to continue."""
    slurm.require()
    request = study.request()
    with study_lock(records.folder(request.study.directory)):
        settle(records.submissions(request.study.directory))
        cancelled = cancel_jobs(request)
    if study.as_json:
        return print_json({"cancelled": cancelled})
    if not cancelled:
        return print("no job is queued or running")
    print(f"cancelled: {', '.join(cancelled)}")
    study.say_next("submit")


def finish(study: ChangedStudyOptions) -> None:
    """The last job of a submission: print what is missing, then make laws and report of the runs that are done."""
    request = study.request()
    missing = incomplete(request)
    for line in Waiting.of(request).lines(request):
        notify(line)
    for run_id, what in missing.items():
        notify(f"missing: {run_id}: {what}")
    with request.writing():
        release_states(request.study.directory / "runs", request.runs)
        show_results(request)
        fit_stage(request)
        report = report_stage(request)
    if study.as_json:
        print_json({"report": str(report), "missing": missing})
    if missing:
        notify(f"error: {counted_of(len(missing), len(request.runs), 'run', 'is', 'are')} not complete; submit again")
        raise typer.Exit(1)


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

    def waits(self) -> dict[str, list[str]]:
        """Jobs of earlier submissions that write the whole study, one at a time."""
        whole = [
            job for kind in ("corpus", "finish") for job in status.active_jobs(self.submissions, self.elements, kind)
        ]
        return {"corpus": whole, "finish": whole} if whole else {}


@dataclass(frozen=True)
class Draft:
    """A plan to be submitted, the study it is of, and its cluster."""

    plan: JobPlan
    study: StudySpec
    profile: Cluster
    progress: StudyProgress

    def to_dict(self, submission: Submission | None = None) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "study": self.study.name,
            "submission": None if submission is None else str(submission.path),
            "jobs": {} if submission is None else submission.ids,
            "plan": self.plan.to_dict(),
            "skipped": self.progress.skipped,
        }

    def text(self, explain: bool) -> str:
        """The plan for reading: what is left out, the graph of jobs, and their reasons."""
        left_out = [f"{number} {why}" for why, number in self.progress.skipped.items()]
        training = sum(need.train for need in self.progress.needs)
        checkpoints = sum(len(need.steps) for need in self.progress.needs)
        lines = [
            f"{self.study.name}: {counted(training, 'run')} to train, {counted(checkpoints, 'checkpoint')} of "
            f"trained runs to evaluate" + (f"; left out: {', '.join(left_out)}" if left_out else "")
        ]
        rows = []
        for job in self.plan.jobs:
            resources = job.resources
            size = f"{resources.nodes} x {resources.tasks_per_node}" + (" GPU" if resources.gpus_per_node else "")
            size += f", {resources.at_once} at once" if resources.at_once > 1 else ""
            memory = "-" if resources.memory_mb is None else f"{resources.memory_mb / 1024:,.0f} GiB"
            waits = ", ".join(f"{kind} {name}" for name, kind in job.after) or "-"
            waits = waits if job.kind != "finish" else "afterany all"
            items = str(sum(map(len, job.elements)) or 1)
            limit = f"{resources.minutes // 60}:{resources.minutes % 60:02d}"
            elements = f"{len(job.elements)}" + (f" (%{job.throttle})" if job.throttle else "")
            expected = duration(job.longest_s) + " or more" * job.at_least if job.longest_s else "-"
            rows.append((job.name, elements, items, size, str(resources.cpus_per_task), memory, expected, limit, waits))
        if rows:
            heads = (
                "job",
                "elements",
                "runs or checkpoints",
                "nodes x tasks",
                "cores",
                "memory",
                "expected",
                "limit",
                "after",
            )
            lines.append(text_table(heads, rows))
            lines.append(self._expected())
            hints = ((job.name, job.resources.reasons.get("micro_batch_tokens")) for job in self.plan.jobs)
            lines += [f"{name}: its memory decides: {hint}" for name, hint in hints if hint]
        else:
            lines.append("nothing to submit")
        return "\n".join([*lines, *(reasons(self.plan) if explain else [])])

    def _expected(self) -> str:
        """What the elements take together; the column of the table is of the longest element."""
        texts = []
        for kind, what in (("train", "training"), ("eval", "evaluations")):
            profile, held_s, used_s = self.profile.of_kind(kind), 0.0, 0.0
            on_gpus = profile.gpus_per_node > 0
            for job in (job for job in self.plan.jobs if job.kind == kind):
                resources, cpus = job.resources, 1 if on_gpus else job.resources.cpus_per_task
                used_s += job.work_s * resources.world_size * cpus
                at_once = cpus * resources.at_once * resources.tasks_per_node
                if profile.whole_nodes:
                    at_once = profile.gpus_per_node or profile.cpus_per_node
                held_s += job.total_s * resources.nodes * at_once
            if held_s:
                idle = f", {1 - used_s / held_s:.0%} of them idle" if used_s < 0.995 * held_s else ""
                hours = f"{held_s / 3600:,.0f}" if held_s > 360_000 else f"{held_s / 3600:.3g}"
                hours += " or more" * any(job.at_least for job in self.plan.jobs if job.kind == kind)
                texts.append(f"{what} {hours} {'GPU' if on_gpus else 'core'}-hours{idle}")
        return (
            f"expected in all: {', '.join(texts) or 'minutes'} (the column is the time of an array's longest "
            f"element; --explain prints what it follows from)"
        )


def draft(request: Request, profile: Cluster, options: SubmitOptions, ask_slurm: bool = True) -> Draft:
    """The jobs of what is missing, neither done nor in the queue. Raises InputError, and has written nothing, where the
    profile, the study or the cluster do not go together."""
    study = request.study
    request.check_runs()
    check_trunks(request)
    submissions = records.submissions(study.directory)
    elements = slurm.queue(records.job_ids(submissions)) if ask_slurm and records.job_ids(submissions) else []
    active = {entry.submission.number for entry in records.queue_entries(submissions, elements) if entry.element.active}
    records.refuse_changed(submissions, spec_hashes(request), settings_hash(study), active, options.new)
    progress = look(request, submissions, elements, options.retry_failed)
    factors = measured(((run, request.rundir(run)) for run in progress.done), profile)
    most = profile.max_array_size
    if most is None and ask_slurm:
        most = slurm.max_array_size()
    reported = (study.directory / "report" / "index.html").is_file() or bool(active)
    finish = not study.is_variant and (bool(progress.needs) or not reported)
    plan = make_plan(
        study,
        progress.needs,
        ResourceEstimator(profile, factors),
        corpus=progress.unprepared,
        finish=finish,
        text_bytes=_text_bytes(request) if progress.unprepared else None,
        max_array_size=most or MAX_ARRAY_SIZE,
        tokens=_token_counts(request, data_later=options.dry_run),
    )
    return Draft(plan, study, profile, progress)


def look(
    request: Request, submissions: list[records.Submission], elements: list[Element], retry: bool
) -> StudyProgress:
    """What is missing of the request's runs."""
    progress = StudyProgress(submissions, elements)
    training = status.active_items(submissions, elements, "train")
    evaluating = status.active_items(submissions, elements, "eval")
    missing, failed, waiting = _steps_to_evaluate(request), set[str](), Waiting.of(request)
    unpredicted = {run.run_id for run in waiting.for_prediction}
    unrated = {run.run_id for run in waiting.for_rate}
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


def cancel_jobs(request: Request) -> list[str]:
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
                f"--only {request.only}: element {element.job_id}_{element.index} also works on {first_few(others)}: "
                "choose these too, or cancel all"
            )
        targets.append(f"{element.job_id}_{element.index}")
    targets = list(dict.fromkeys(targets))
    slurm.cancel(targets)
    return targets


def _text_bytes(request: Request) -> int | None:
    """About how much text the corpus is made of; None where that, or how fast it is cleaned, is unknown."""
    if request.study.corpus.clean:
        return None
    with contextlib.suppress(InputError):  # the text is not here
        return bytes_to_read(request.study.corpus.settings(), guess=True)
    return None


def _token_counts(request: Request, data_later: bool) -> Callable[[RunSpec], dict[str, float | None]]:
    """Of a run the tokens of one checkpoint's evaluation, by task; None for one that does not know."""
    reads = cache(lambda: planned_tokens(request, data_later))
    names = cache(lambda: [task.name for task in eval_tasks(request)])

    def tokens(run: RunSpec) -> dict[str, float | None]:
        of_run = reads()[run.run_id]
        return {name: of_run.get(name) for name in names()}

    return tokens


def _steps_to_evaluate(request: Request) -> dict[str, list[int]]:
    """The steps to evaluate by run; nothing where there is no corpus yet, and so nothing trained."""
    return steps_to_evaluate(request) if (request.corpus_directory / "manifest.json").is_file() else {}


def _silence(patient: bool) -> str | None:
    """Why SLURM does not answer; None where it does. A controller that restarts is waited for where `patient`."""
    if not slurm.available():
        return "no SLURM here"
    why = slurm.silent(patient)
    return why and f"no controller of SLURM answers ({why})"


def _dry_run(
    drafted: Draft, context: ScriptContext, explain: bool, as_json: bool, silence: str | None, lines: Sequence[str]
) -> None:
    """Print every script, the graph and `lines`. SLURM validates the scripts, unless `silence` says why it cannot."""
    scripts = {job.name: render(context, job) for job in drafted.plan.jobs}
    if as_json:
        warnings = [] if silence else check(drafted.plan, context)
        validated = {"validated": silence is None, "not_validated": silence, "warnings": warnings}
        return print_json(drafted.to_dict() | {"scripts": scripts} | validated)
    first: dict[str, str] = {}  # of each kind of job
    for job in drafted.plan.jobs:
        name, text = job.name, scripts[job.name]
        like = first.setdefault(job.kind, name)
        if like == name:
            print(f"# ----- {name}.sbatch -----\n{text}")
        else:
            print(f"# ----- {name}.sbatch: as {like}.sbatch but for -----")
            compared = difflib.ndiff(scripts[like].splitlines(), text.splitlines())
            print("\n".join(line[2:] for line in compared if line.startswith("+ ")) + "\n")
    print("\n".join([drafted.text(explain), *lines]), flush=True)
    if silence is None:
        _warn(check(drafted.plan, context))
        outcome = "SLURM accepts every script"
    else:
        outcome = f"not validated: {silence}"
        if drafted.profile.max_array_size is None:
            outcome += f"; arrays of at most {MAX_ARRAY_SIZE:,} elements, SLURM's default"
        if records.job_ids(drafted.progress.submissions):
            outcome += "; jobs that are queued or running count as missing"
    print(f"{outcome} (dry run: nothing was written or submitted)")


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        notify(f"warning: {line}")
