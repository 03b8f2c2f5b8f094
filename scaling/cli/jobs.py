"""The commands of `scaling` that have to do with a cluster: submit, status, cancel, and the end of a submission."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted, counted_of
from arch.errors import InputError

from .options import ChangedStudyOptions, DryRun, RunsOptions, close, print_json

if TYPE_CHECKING:
    from jobs.records import Submission
    from jobs.render import ScriptContext

    from ..rundir.directory import RunDir
    from ..stages.request import Request
    from ..stages.submission import Draft


LOCAL = "these jobs run on this machine"


def _show_example(show: bool) -> None:
    if show:
        from jobs.profile import EXAMPLE

        print(EXAMPLE, end="")
        raise typer.Exit


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """Where jobs run, and which runs are submitted although an earlier submission had them."""

    cluster: Annotated[
        str | None, typer.Option(metavar="NAME_OR_FILE", help="Cluster profile; default: the study's jobs.cluster.")
    ] = None
    local: Annotated[bool, typer.Option("--local", help="Run the jobs on this machine.")] = False
    new: Annotated[bool, typer.Option("--new", help="Submit although the study changed since the last submission.")] = (
        False
    )
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also submit runs that failed: their loss became infinite or NaN.")
    ] = False
    explain: Annotated[bool, typer.Option("--explain", help="Print the reason for everything that a job requests.")] = (
        False
    )
    dry_run: DryRun = False
    example_profile: Annotated[
        bool,
        typer.Option("--example-profile", is_eager=True, callback=_show_example, help="Print a cluster profile."),
    ] = False


def submit(study: RunsOptions, options: SubmitOptions) -> None:
    """Submit what a study still lacks to SLURM. These are corpus, training, evaluations, fits and report."""
    from jobs import records, slurm
    from jobs.profile import load_profile
    from jobs.submit import check, prepare, script_context, send, settle

    from ..rundir.lock import study_lock
    from ..stages.corpus import check_corpus
    from ..stages.evaluation_tasks import check as check_evaluations
    from ..stages.forecast import waiting_lines
    from ..stages.submission import draft, settings_hash, spec_hashes
    from ..study.plan import confounded

    local, dry_run = options.local, options.dry_run
    if local and options.cluster is not None:
        raise InputError("--local and --cluster: give one of them")
    request = study.request()
    check_evaluations(request)
    request.check_rates()
    _warn(check_corpus(request))
    if not (local or dry_run):
        slurm.require()
    _warn([] if local else slurm.unused_options())
    of_study = request.study.jobs.cluster, request.study.path
    profile = None if local else load_profile(options.cluster, *of_study)  # before SLURM is waited for
    unheard = _unheard(patient=not (local or dry_run))
    if unheard and not (local or dry_run):
        raise InputError(f"{unheard}: is this a login node of the cluster? --dry-run shows the scripts all the same")
    ask_slurm = slurm.available() if local and not dry_run else not unheard
    with contextlib.nullcontext() if dry_run else study_lock(records.folder(request.study.directory)):
        if slurm.available() and not dry_run:
            settle(records.submissions(request.study.directory))
        submission_draft = draft(
            request, profile=profile, new=options.new, retry=options.retry_failed, ask_slurm=ask_slurm
        )
        _warn(confounded(request.runs))
        path = records.next_path(request.study.directory).absolute()
        of_draft = submission_draft.study, path, submission_draft.profile
        context = script_context(*of_draft, request.only, options.retry_failed)
        if dry_run:
            not_validated = LOCAL if local else unheard
            waiting = waiting_lines(request)
            return _dry_run(submission_draft, context, options.explain, study.as_json, not_validated, waiting)
        request.say("\n".join([_describe(submission_draft, options.explain), *waiting_lines(request)]))
        if not submission_draft.plan.jobs:
            return print_json(_result(submission_draft)) if study.as_json else None
        backend = "local" if local else "slurm"
        hashes, settings = spec_hashes(request), settings_hash(submission_draft.study)
        if not local:
            _warn(check(submission_draft.plan, context))
        submission = prepare(submission_draft.study, submission_draft.plan, context, hashes, settings, backend)
        if local:
            return _run_here(request, submission_draft, submission, context, study.as_json)
        send(submission, submission_draft.plan, context, submission_draft.progress.waits())
    if study.as_json:
        return print_json(_result(submission_draft, submission))
    print("\n".join(f"{name}: job {job_id}" for name, job_id in submission.ids.items()))
    print(f"scripts and logs: {submission.path}")
    study.say_next("status")


def status(
    study: RunsOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until no job is queued or running.")] = False,
    every: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds between two updates of --watch.")] = 10.0,
) -> None:
    """Show how far each run is, here or on a cluster. Prints state, steps, tokens, loss, speed, and why it stopped."""
    from ..stages.evaluation_tasks import task_names
    from ..stages.forecast import waiting_lines
    from ..stages.status import show_jobs, show_status, status_rows
    from ..stages.submission import seen

    request = study.request()
    tasks = task_names(request)
    while True:
        queue = seen(request, status_rows(request.study, request.runs, tasks))
        _warn([queue.warning] if queue.warning else [])
        if study.as_json:
            head = {"study": request.study.name, "directory": str(request.study.directory)}
            print_json(head | {"runs": queue.runs, "jobs": queue.jobs})
        else:
            clear = "\x1b[H\x1b[2J" if watch and sys.stdout.isatty() else ""
            lines = [f"{clear}{show_status(queue.runs)}{show_jobs(queue.jobs)}", *waiting_lines(request)]
            if not (where := request.study.directory).exists():  # as from another folder than the study was run in
                lines.append(f"nothing of this study is in {where.absolute()} yet (--out says where else)")
            print("\n".join(lines), flush=True)
        going = any(row["state"] in ("queued", "requeued", "running") for row in queue.runs)
        at_work = going or any({"PENDING", "RUNNING"} & set(row["states"]) for row in queue.jobs)
        if not watch:
            is_done = all(row["state"] == "done" for row in queue.runs)
            again = "submit" if queue.jobs else "run"
            return study.say_next(*(("status", "--watch") if at_work else ("fit study",) if is_done else (again,)))
        if not at_work:
            return
        time.sleep(every)


def cancel(study: RunsOptions) -> None:
    """Cancel a study's jobs, queued or running. Saved states stay: submit again to continue."""
    from jobs import records, slurm
    from jobs.submit import settle

    from ..rundir.lock import study_lock
    from ..stages.submission import cancel as cancel_jobs

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
    from ..rundir.held_states import release_states
    from ..stages import pipeline as commands
    from ..stages.evaluation_results import show_results
    from ..stages.forecast import waiting_lines
    from ..stages.submission import incomplete

    request = study.request()
    missing = incomplete(request)
    for line in waiting_lines(request):
        print(line, file=sys.stderr)
    for run_id, what in missing.items():
        print(f"missing: {run_id}: {what}", file=sys.stderr)
    with request.writing():
        release_states(request.study.directory / "runs", request.runs)
        show_results(request)
        commands.fit_stage(request)
        report = commands.report_stage(request)
    if study.as_json:
        print_json({"report": str(report), "missing": missing})
    if missing:
        print(
            f"error: {counted_of(len(missing), len(request.runs), 'run', 'is', 'are')} not complete; submit again",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def _run_here(
    request: Request, submission_draft: Draft, submission: Submission, context: ScriptContext, as_json: bool
) -> None:
    """The local backend, while this process holds the study's submissions."""
    from jobs import local_submit
    from jobs.local import at_once, describe_use

    from ..stages.training import train_argv

    processes, parallel_runs = request.study.jobs.processes, request.study.jobs.parallel
    if use := describe_use(parallel_runs, processes):
        request.say(use)
    parallel = at_once(parallel_runs, processes)
    threads = max(run.training.threads for run in request.runs)

    def train(rundir: RunDir, retry: bool) -> list[str]:
        return train_argv(rundir, processes, request.study.plugins) + (["--retry"] if retry else [])

    failed = local_submit.run(submission, submission_draft.plan, context, parallel, train, threads, request.say)
    if as_json:
        print_json(_result(submission_draft, submission) | {"failed": failed})
    close(request, {"failed": failed})


def _unheard(patient: bool) -> str | None:
    """Why SLURM does not answer; None where it does. A controller that restarts is waited for where `patient`."""
    from jobs import slurm

    if not slurm.available():
        return "no SLURM here"
    why = slurm.silent(patient)
    return why and f"no controller of SLURM answers ({why})"


def _dry_run(
    submission_draft: Draft,
    context: ScriptContext,
    explain: bool,
    as_json: bool,
    unjudged: str | None,
    lines: Sequence[str],
) -> None:
    """Print every script, the graph and `lines`. SLURM validates the scripts, unless `unjudged` says why it cannot."""
    from jobs import records
    from jobs.plan import MAX_ARRAY_SIZE
    from jobs.render import render
    from jobs.submit import check

    scripts = {job.name: render(context, job) for job in submission_draft.plan.jobs}
    if as_json:
        warnings = [] if unjudged else check(submission_draft.plan, context)
        validation = {
            "scripts": scripts,
            "validated": unjudged is None,
            "not_validated": unjudged,
            "warnings": warnings,
        }
        return print_json(_result(submission_draft) | validation)
    for name, text in scripts.items():
        print(f"# ----- {name}.sbatch -----\n{text}")
    print("\n".join([_describe(submission_draft, explain), *lines]), flush=True)
    if unjudged is None:
        _warn(check(submission_draft.plan, context))
        validated = "SLURM accepts every script"
    else:
        validated = f"not validated: {unjudged}"
        if submission_draft.profile.max_array_size is None and unjudged != LOCAL:
            validated += f"; arrays of at most {MAX_ARRAY_SIZE:,} elements, SLURM's default"
        if records.job_ids(submission_draft.progress.submissions):
            validated += "; jobs that are queued or running count as missing"
    print(f"{validated} (dry run: nothing was written or submitted)")


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def _describe(submission_draft: Draft, explain: bool) -> str:
    """The plan for reading: what is left out, the graph of jobs, and their reasons."""
    from arch.tables import text_table
    from flops.tables import duration
    from jobs.plan import explain as reasons

    left_out = [f"{number} {why}" for why, number in submission_draft.progress.skipped.items()]
    training = sum(need.train for need in submission_draft.progress.needs)
    checkpoints = sum(len(need.steps) for need in submission_draft.progress.needs)
    lines = [
        f"{submission_draft.study.name}: {counted(training, 'run')} to train, {counted(checkpoints, 'checkpoint')} of "
        f"trained runs to evaluate" + (f"; left out: {', '.join(left_out)}" if left_out else "")
    ]
    rows = []
    for job in submission_draft.plan.jobs:
        resources = job.resources
        size = f"{resources.nodes} x {resources.tasks_per_node}" + (" GPU" if resources.gpus_per_node else "")
        memory = "-" if resources.memory_mb is None else f"{resources.memory_mb / 1024:,.0f} GiB"
        waits = ", ".join(f"{kind} {name}" for name, kind in job.after) or "-"
        waits = waits if job.kind != "finish" else "afterany all"
        items = str(sum(map(len, job.elements)) or 1)
        limit = f"{resources.minutes // 60}:{resources.minutes % 60:02d}"
        elements = f"{len(job.elements)}" + (f" (%{job.throttle})" if job.throttle else "")
        expected = duration(job.longest_s) if job.longest_s else "-"
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
        lines.append(_expected(submission_draft))
    else:
        lines.append("nothing to submit")
    return "\n".join([*lines, *(reasons(submission_draft.plan) if explain else [])])


def _expected(submission_draft: Draft) -> str:
    """What the elements take together; the column of the table is of the longest element."""
    on_gpus = submission_draft.profile.gpus_per_node > 0
    hours_text = []
    for kind, what in (("train", "training"), ("eval", "evaluations")):
        jobs = [job for job in submission_draft.plan.jobs if job.kind == kind]
        per_task = [1 if on_gpus else job.resources.cpus_per_task for job in jobs]
        hours = sum(job.total_s * job.resources.world_size * n / 3600 for job, n in zip(jobs, per_task, strict=True))
        if jobs:
            hours_text.append(f"{what} {hours:,.3g} {'GPU' if on_gpus else 'core'}-hours")
    return (
        f"expected in all: {', '.join(hours_text) or 'minutes'} (the column is the time of an array's longest element; "
        f"--explain prints what it follows from)"
    )


def _result(submission_draft: Draft, submission: Submission | None = None) -> dict[str, Any]:
    return {
        "study": submission_draft.study.name,
        "submission": None if submission is None else str(submission.path),
        "jobs": {} if submission is None else submission.ids,
        "plan": submission_draft.plan.to_dict(),
        "skipped": submission_draft.progress.skipped,
    }
