"""The stage that trains: every run's directory prepared, and what is missing trained here."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arch.amounts import count, counted, counted_of
from arch.arguments import plugin_words
from arch.config import ARCHS
from arch.errors import InputError
from flops.tables import duration
from jobs import records, slurm
from jobs.expected import this_machine
from jobs.local import Task, at_once, beside, describe_use, run_tasks, visible_gpus
from jobs.speed import device_of
from jobs.status import active_items, active_jobs

from ..rundir.directory import RunDir
from ..rundir.prepare import prepare_run
from ..rundir.tracking import check_trackers, failures, lacking, send_missing
from ..rundir.versions import package_versions
from ..rundir.worklist import EXIT_INPUT, is_trained, reason_of, release_states, thread_environment
from ..study.cost import expected_work
from ..study.only import without_branch
from ..study.rates import resolve
from ..study.run import RunSpec
from .forecast import Waiting, trainable
from .gpu_sharing import compile_tasks, shares_of
from .passing import Passing
from .request import Request

if TYPE_CHECKING:
    from data.corpus import Corpus

    from ..study.spec import StudySpec

WITHOUT_TRUNK = "not trained: its trunk {} failed"
PACE_S = 600.0  # the time left is at the pace since then, which follows a machine that others use too
SHOWN = 6  # runs at work that the progress names, those of the most work left


def prepare_runs(request: Request, corpus: Corpus) -> list[RunDir]:
    """The directory with its run.json of every run that may be trained."""
    from analysis.forecast.stored import digests

    runs = trainable(request)
    predicted = digests(request.study) if any(run.is_forecast for run in runs) else {}
    return [
        prepare_run(
            request.study.run_directory(run),
            run,
            corpus.fingerprint,
            package_versions(run.plugins),
            corpus.manifest["tokenizer"]["identity"],
            predicted.get(run.run_id),
        )
        for run in runs
    ]


def check_architectures(request: Request, here: bool = True) -> list[str]:
    """The names of the architectures from outside of this package, and of patterns, that were checked; raises
    InputError where one is not what it says it is (scaling.check). here: they are trained on this machine."""
    if all(run.arch in ARCHS for run in request.runs):
        return []
    if here:
        for run in request.runs:
            run.config.check_device(bool(visible_gpus()))
    todo = [run for run in request.runs if not is_trained(run, request.rundir(run))]
    if all(run.arch in ARCHS or not run.checked for run in todo):
        return []
    from ..check import check_models

    return check_models(todo, request.study.path)


def train_stage(request: Request, corpus: Corpus) -> tuple[list[str], dict[str, str]]:
    """Train what is missing; returns the ids of the runs trained now, and {run_id: reason} of those not done.

    A run that fails does not stop the others, but for the branches of a trunk. One that failed before (loss or
    gradient did not stay finite) is not tried again: the same spec fails in the same way. Raises InputError where a
    branch has no trunk, and at the end where a run's process refused its input.
    """
    _refuse_queued(request)
    check_trunks(request)
    check_trackers(request.study.tracking)
    check_architectures(request)
    failed: dict[str, str] = {}
    todo: list[Watched] = []
    waiting = Waiting.of(request)
    runs, device = trainable(request, waiting), device_of(this_machine(request.study.jobs.processes))
    for run, rundir in zip(runs, prepare_runs(request, corpus), strict=True):
        status = rundir.status()
        if status["state"] == "failed":
            failed[run.run_id] = f"{status['reason']} (in an earlier start; remove {rundir.path} to try again)"
        elif not is_trained(run, rundir) and run.trunk in failed:
            failed[run.run_id] = WITHOUT_TRUNK.format(run.trunk)
        elif not is_trained(run, rundir):
            todo.append(Watched(run, rundir, expected_work(run, device)))
    done = len(runs) - len(todo) - len(failed)
    request.say(f"train: {counted_of(len(todo), len(runs), 'run')} to do, {done} done, {len(failed)} failed before")
    for line in waiting.lines(request):
        request.say(line)
    longest = {item.run.trunk: item.weight for item in sorted(todo, key=lambda item: item.weight)}  # branch of a trunk
    todo.sort(key=lambda item: -item.weight - longest.get(item.run.run_id, 0.0))
    refused = _train(request, todo, failed) if todo else []
    release_states(request.study.directory / "runs", request.runs)
    if request.study.tracking:
        trained = [request.rundir(run) for run in runs]
        before = {item.run.run_id for item in todo}
        if lack := [rundir for rundir in trained if rundir.path.name not in before and lacking(rundir)]:
            request.say(f"tracking: sends what is missing of {counted(len(lack), 'run')}")
            send_missing(lack)
        for line in failures(trained):
            request.say(f"warning: {line}")
    if refused:
        raise InputError(refused[0] + (f" (and {counted(len(refused) - 1, 'more run')})" if len(refused) > 1 else ""))
    return [item.run.run_id for item in todo if item.run.run_id not in failed], failed


def _train(request: Request, todo: Sequence[Watched], failed: dict[str, str]) -> list[str]:
    """Train the runs, in this order, adding to `failed`; returns why processes refused their input."""
    study, jobs = request.study, request.study.jobs
    shares = shares_of([item.run for item in todo], jobs)
    tasks = [train_task(item.run, item.rundir, study, share) for item, share in zip(todo, shares, strict=True)]
    if use := describe_use(jobs.parallel, jobs.processes):
        small, most = sum(share < 1 for share in shares), round(1 / min(shares))
        use += f", but of {counted(small, 'small run')} up to {most} on each GPU" if small > 1 else ""
        request.say(f"train: {use}")
    parallel, compilers = at_once(jobs.parallel, jobs.processes), list[Task]()
    if jobs.processes == 1:
        log = study.directory / "compile_ahead.log"
        compilers = compile_tasks([(item.run, item.rundir) for item in todo], parallel, log, shares)
    if compilers:
        work = counted(len(compilers), "process compiles", "processes compile")
        request.say(f"train: {work} the kernels of later runs meanwhile; see {log}")
    refused: list[str] = []

    def reason(task: Task, code: int) -> str | None:
        return reason_of(code, study.directory / "runs" / task.name)

    with (
        Progress(todo, request) as progress,
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
                why = WITHOUT_TRUNK.format(event.task.after) if skipped else reason(event.task, event.exit_code or 0)
                if why:
                    failed[event.task.name] = why
                    refused += [why] if event.exit_code == EXIT_INPUT else []
                progress.finished(event.task.name, "failed" if why else "done", why)
    return refused


def _refuse_queued(request: Request) -> None:
    """Raise InputError where jobs of a cluster wait for the chosen runs or train them: these would be taken from it."""
    submissions = [submission for submission in records.submissions(request.study.directory) if submission.ids]
    if not submissions or not slurm.available() or slurm.silent(patient=False):
        return  # SLURM does not answer: the process that trains a run last takes it over
    elements = slurm.queue(records.job_ids(submissions))
    queued = active_items(submissions, elements, "train") & {run.run_id for run in request.runs}
    if queued:
        jobs = ", ".join(active_jobs(submissions, elements, "train"))
        raise InputError(
            f"{request.study.directory}: {len(queued)} of these runs are queued or training on the cluster (jobs "
            f"{jobs}): `scaling cancel` them first, or choose others with --only"
        )


def check_trunks(request: Request) -> None:
    """Raise InputError where a chosen branch is to be trained and its trunk is neither trained nor chosen, or is
    trained and kept no state where the branch begins."""
    chosen = {run.run_id: run for run in request.runs}
    whole: dict[str, RunSpec] = {}
    for run in request.runs:
        rundir = request.rundir(run)
        if run.trunk is None or is_trained(run, rundir) or rundir.status()["state"] == "failed":
            continue
        if run.trunk not in chosen and not whole:
            runs = resolve(request.study.runs(without_branch(request.only)), request.lock)
            whole = {run.run_id: run for run in runs}
        trunk = chosen.get(run.trunk) or whole[run.trunk]
        at = request.rundir(trunk)
        if not is_trained(trunk, at):
            if run.trunk not in chosen:
                raise InputError(
                    f"--only {request.only}: {run.run_id} begins from its trunk {run.trunk}, which is not trained: "
                    f"train its trunk first, or leave --only out"
                )
            continue
        kept = {state.step: state for state in at.states(verify=False)}
        has_begun = any(state.step > run.begins_after for state in rundir.states(verify=False))
        if run.begins_after in kept and not has_begun:
            kept[run.begins_after].held()
        if has_begun or run.begins_after in kept:
            continue
        if why := at.weights_elsewhere:
            raise InputError(f"{run.run_id} begins after step {run.begins_after} of its trunk, and {why}")
        raise InputError(
            f"{run.run_id} begins after step {run.begins_after} of its trunk, and the trunk kept no state there: "
            f"{at.path} has {', '.join(map(str, kept)) or 'none'}; remove that directory to train the trunk again, "
            f"or take the branch out of training.branches"
        )


def train_task(run: RunSpec, rundir: RunDir, study: StudySpec, share: float = 1.0) -> Task:
    """The task that trains a prepared run and then evaluates its held-out losses. One process trains the runs of a
    slot, so that it starts once: one after another, or on a GPU at the same time where their shares fit. A number of
    threads, which changes bits on CPUs, has processes of its own, as all that is in the environment."""
    environment, processes = thread_environment(run.training.threads), study.jobs.processes
    held_out = ["--held-out", str(study.evaluation.validation_tokens), str(study.evaluation.batch_rows)]
    if processes == 1:
        server = [sys.executable, "-m", "scaling.trainer.server"]
        words = [str(rundir.path), *plugin_words(run.plugins), *held_out]
        return Task(run.run_id, words, rundir.log, environment, server, after=run.trunk, share=share)
    words = [*train_argv(rundir, processes, run.plugins), *held_out]
    return Task(run.run_id, words, rundir.log, environment, after=run.trunk)


def train_argv(rundir: RunDir, processes: int, plugins: Sequence[str]) -> list[str]:
    """The command that trains a prepared run: one process, or `processes` of them under torchrun. plugins: those of
    the study that the user named; the run's own record imports none."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*launcher, "-m", "scaling.trainer.process", str(rundir.path), *plugin_words(plugins)]


@dataclass
class Watched:
    """A run in the display: `weight` is its share of the work, `done` the part of it that is finished."""

    run: RunSpec
    rundir: RunDir
    weight: float
    done: float = 0.0
    state: str = "waiting"
    row: dict[str, Any] | None = None

    def refresh(self) -> None:
        self.row = self.rundir.last_row()
        n_steps = self.row["step"] - self.run.begins_after if self.row else 0
        self.done = min(1.0, n_steps / self.run.trained_steps)

    @property
    def figures(self) -> str:
        """Its step, loss and speed."""
        if self.row is None:
            return "starting"
        speed = self.row.get("tokens_per_s")
        text = f"step {self.row['step']:,}/{self.run.n_steps:,}, loss {self.row['loss']:.3f}"
        if self.state == "running" and self.row["step"] == self.run.n_steps:
            return f"{text}, being evaluated"
        return text + (f", {count(speed)} tokens/s" if speed else "")


class Progress(Passing):
    """Context manager around a training stage. Call `started`, `finished` and `tick` as things
    happen: a line for each, and one now and then on the runs at work."""

    def __init__(self, watched: Sequence[Watched], request: Request) -> None:
        super().__init__(request.stream)
        self.watched = {item.run.run_id: item for item in watched}
        self._begun = time.monotonic()
        for item in watched:
            item.refresh()
        self._past = deque([(self._begun, self._work())])  # when how much work was done

    def started(self, run_id: str) -> None:
        self.watched[run_id].state = "running"
        self._say(f"{run_id}: started")

    def lost(self, run_id: str) -> None:
        self.watched[run_id].state = "waiting"
        self._say(f"{run_id}: its process ended with another run; it is begun again from its last state")

    def finished(self, run_id: str, state: str, reason: str | None = None) -> None:
        item = self.watched[run_id]
        item.state = state
        item.refresh()
        text = f"{run_id}: {state}" + (f", {item.figures}" if item.row else "")
        self._say(text + (f" ({reason})" if reason else "") + f"; {self._overall()}")

    def tick(self) -> None:
        self.show(self._line)

    def _line(self) -> str:
        active = [item for item in self.watched.values() if item.state == "running"]
        for item in active:
            item.refresh()
        named = sorted(active, key=lambda item: item.weight * (item.done - 1))[:SHOWN]
        shown = [f"{item.run.run_id} {item.figures}" for item in named]
        more = [f"{counted(len(active) - SHOWN, 'more run')} at work"] if len(active) > SHOWN else []
        return self._timed("; ".join([self._overall(), *shown, *more]))

    def _say(self, text: str) -> None:
        self.say(self._timed(text))

    def _timed(self, text: str) -> str:
        return f"[{duration(round(time.monotonic() - self._begun))}] {text}"

    def _work(self) -> float:
        return sum(
            item.weight * (1.0 if item.state in ("done", "failed") else item.done) for item in self.watched.values()
        )

    def _overall(self) -> str:
        """How many runs have ended, and the time left at the pace of late."""
        ended = [item for item in self.watched.values() if item.state in ("done", "failed")]
        failed = sum(item.state == "failed" for item in ended)
        total, work = sum(item.weight for item in self.watched.values()), self._work()
        self._past.append((now := time.monotonic(), work))
        while self._past[1][0] <= now - PACE_S:
            self._past.popleft()
        elapsed, gained = now - self._past[0][0], work - self._past[0][1]
        text = f"{len(ended)}/{counted(len(self.watched), 'run')}" + (f" ({failed} failed)" if failed else "")
        if len(ended) < len(self.watched) and gained > 0.002 * total:
            text += f", {duration(round(elapsed * (total - work) / gained))} left"
        return text
