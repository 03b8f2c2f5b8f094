"""The stage that trains: every run's directory prepared, and what is missing trained here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from arch.amounts import counted, counted_of
from arch.arguments import plugin_words
from arch.errors import InputError
from flops import cost_table

from ..rundir.directory import RunDir
from ..rundir.held_states import release_states, without_trunk
from ..rundir.prepare import prepare_run
from ..rundir.versions import package_versions
from ..rundir.worklist import EXIT_INPUT, is_trained, reason_of, thread_environment
from ..study.cost import expected_work
from ..study.run import RunSpec
from .forecast import trainable, waiting_lines
from .progress import Progress, Watched
from .request import Request
from .together import shares_of
from .trunks import check_trunks

if TYPE_CHECKING:
    from data.corpus import Corpus
    from jobs.local import Task


def prepare_runs(request: Request, corpus: Corpus) -> list[RunDir]:
    """The directory with its run.json of every run that may be trained."""
    from analysis.forecast.stored import digests

    versions, runs = package_versions(), trainable(request)
    predicted = digests(request.study) if any(run.is_forecast for run in runs) else {}
    return [
        prepare_run(
            request.study.run_directory(run),
            run,
            cost_table(run.config),
            corpus.fingerprint,
            versions,
            corpus.manifest["tokenizer"]["identity"],
            predicted.get(run.run_id),
        )
        for run in runs
    ]


def train_stage(request: Request, corpus: Corpus) -> tuple[list[str], dict[str, str]]:
    """Train what is missing; returns the ids of the runs trained now, and {run_id: reason} of those not done.

    A run that fails does not stop the others, but for the branches of a trunk. One that failed before (its loss became
    infinite or NaN) is not tried again: the same spec fails in the same way. Raises InputError where a branch has no
    trunk, and at the end where a run's process found its input bad.
    """
    from jobs.local import at_once, beside, describe_use, run_tasks

    from .kernels import compile_tasks

    _refuse_queued(request)
    check_trunks(request)
    failed: dict[str, str] = {}
    refused: list[str] = []
    todo: list[Watched] = []
    runs = trainable(request)
    for run, rundir in zip(runs, prepare_runs(request, corpus), strict=True):
        status = rundir.status()
        if status["state"] == "failed":
            failed[run.run_id] = f"{status['reason']} (in an earlier start; remove {rundir.path} to try again)"
        elif not is_trained(run, rundir) and run.trunk in failed:
            failed[run.run_id] = without_trunk(run.trunk)
        elif not is_trained(run, rundir):
            todo.append(Watched(run, rundir, expected_work(run)))
    done = len(runs) - len(todo) - len(failed)
    request.say(f"train: {counted_of(len(todo), len(runs), 'run')} to do, {done} done, {len(failed)} failed before")
    for line in waiting_lines(request):
        request.say(line)
    longest = {item.run.trunk: item.weight for item in sorted(todo, key=lambda item: item.weight)}  # branch of a trunk
    todo.sort(key=lambda item: -item.weight - longest.get(item.run.run_id, 0.0))

    def reason(task: Task, code: int) -> str | None:
        return reason_of(code, request.study.directory / "runs" / task.name)

    jobs = request.study.jobs
    shares = shares_of([item.run for item in todo], jobs)
    tasks = [train_task(item.run, item.rundir, jobs.processes, share) for item, share in zip(todo, shares, strict=True)]
    if tasks:
        if told := describe_use(jobs.parallel, jobs.processes):
            small, most = sum(share < 1 for share in shares), round(1 / min(shares))
            told += f", but of {counted(small, 'small run')} up to {most} on each GPU" if small > 1 else ""
            request.say(f"train: {told}")
        parallel = at_once(jobs.parallel, jobs.processes)
        compilers: list[Task] = []
        if jobs.processes == 1:
            log = request.study.directory / "compile_ahead.log"
            compilers = compile_tasks([(item.run, item.rundir) for item in todo], parallel, log, shares)
        if compilers:
            work = counted(len(compilers), "process compiles", "processes compile")
            request.say(f"train: {work} the kernels of later runs meanwhile; see {log}")
        with (
            Progress(todo, request.stream, parallel) as progress,
            beside(compilers),
            closing(run_tasks(tasks, parallel, ended_well=lambda task, code: reason(task, code) is None)) as events,
        ):
            for event in events:
                if event.task is None:
                    progress.tick()
                elif event.kind == "started":
                    progress.started(event.task.name)
                elif event.kind == "lost":
                    progress.lost(event.task.name)
                else:
                    skipped = event.kind == "skipped"
                    why = without_trunk(event.task.after) if skipped else reason(event.task, event.exit_code or 0)
                    if why:
                        failed[event.task.name] = why
                        refused += [why] if event.exit_code == EXIT_INPUT else []
                    progress.finished(event.task.name, "failed" if why else "done", why)
    release_states(request.study.directory / "runs", request.runs)
    if refused:
        raise InputError(refused[0] + (f" (and {counted(len(refused) - 1, 'more run')})" if len(refused) > 1 else ""))
    return [item.run.run_id for item in todo if item.run.run_id not in failed], failed


def _refuse_queued(request: Request) -> None:
    """Raise InputError where jobs of a cluster wait for the chosen runs or train them: these would be taken from it."""
    from jobs import records, slurm
    from jobs.status import active_items, active_jobs

    found = [one for one in records.submissions(request.study.directory) if one.ids]
    if not found or not slurm.available() or slurm.silent(patient=False):
        return  # nobody to ask: who trains a run at last takes it over
    elements = slurm.queue(records.job_ids(found))
    queued = active_items(found, elements, "train") & {run.run_id for run in request.runs}
    if queued:
        jobs = ", ".join(active_jobs(found, elements, "train"))
        raise InputError(
            f"{request.study.directory}: {len(queued)} of these runs are queued or training on the cluster (jobs "
            f"{jobs}): `scaling cancel` them first, or choose others with --only"
        )


def train_task(run: RunSpec, rundir: RunDir, processes: int = 1, share: float = 1.0) -> Task:
    """The task that trains a prepared run. One process trains the runs of a slot, so that it starts once: one after
    another, or on a GPU at the same time where their shares fit. A number of threads, which changes bits on CPUs, has
    processes of its own, as all that is in the environment."""
    from jobs.local import Task

    environment = thread_environment(run.training.threads)
    if processes == 1:
        server = [sys.executable, "-m", "scaling.trainer.server"]
        words = [str(rundir.path), *plugin_words(run.plugins)]
        return Task(run.run_id, words, rundir.log, environment, server, after=run.trunk, share=share)
    return Task(run.run_id, train_argv(rundir, processes, run.plugins), rundir.log, environment, after=run.trunk)


def train_argv(rundir: RunDir, processes: int, plugins: Sequence[str]) -> list[str]:
    """The command that trains a prepared run: one process, or `processes` of them under torchrun. plugins: those of
    the study that the user named; the run's own record imports none."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*launcher, "-m", "scaling.trainer.process", str(rundir.path), *plugin_words(plugins)]
