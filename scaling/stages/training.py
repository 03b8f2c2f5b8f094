"""The stage that trains: every run's directory prepared, and what is missing trained here."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from arch.amounts import count, counted, counted_of
from arch.arguments import plugin_words
from arch.errors import InputError
from flops import cost_table
from flops.tables import duration

from ..rundir.directory import RunDir
from ..rundir.held_states import release_states, without_trunk
from ..rundir.prepare import prepare_run
from ..rundir.versions import package_versions
from ..rundir.worklist import EXIT_INPUT, is_trained, reason_of, thread_environment
from ..study.cost import expected_work
from ..study.run import RunSpec
from .forecast import trainable, waiting_lines
from .passing import Throttle
from .request import Request
from .together import shares_of
from .trunks import check_trunks

if TYPE_CHECKING:
    from data.corpus import Corpus
    from jobs.local import Task

SHOWN = 6  # runs at work that the progress names, those of the most work left


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
    trunk, and at the end where a run's process refused its input.
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
        if use := describe_use(jobs.parallel, jobs.processes):
            small, most = sum(share < 1 for share in shares), round(1 / min(shares))
            use += f", but of {counted(small, 'small run')} up to {most} on each GPU" if small > 1 else ""
            request.say(f"train: {use}")
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


@dataclass
class Watched:
    """One run in the display: `weight` is its share of the work, `done` the part of it that is finished."""

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

    def left_s(self, company: float) -> float | None:
        """At its speed so far, which is that of a run that has its device to itself; company: runs on each."""
        speed = self.row.get("tokens_per_s") if self.row else None
        return company * (self.run.trained_tokens * (1 - self.done)) / speed if speed else None


class Progress:
    """Context manager around a training stage, of so many `slots`. Call `started`, `finished` and `tick` as things
    happen."""

    def __init__(self, watched: Sequence[Watched], stream: TextIO = sys.stdout, slots: int = 1) -> None:
        self.watched = {item.run.run_id: item for item in watched}
        self._stream, self._slots = stream, slots
        self._live: Any = None
        self._begun, self._throttle = time.monotonic(), Throttle(stream)
        for item in watched:
            item.refresh()
        self._work_before = self._work()

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            # no refresh thread: children are forked from this process
            self._live = Live(self._picture(), console=Console(file=self._stream), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()

    def started(self, run_id: str) -> None:
        self.watched[run_id].state = "running"
        if not self._live:
            self._say(f"{run_id}: started")

    def lost(self, run_id: str) -> None:
        self.watched[run_id].state = "waiting"
        self._say_now(f"{run_id}: its process ended with another run; it is begun again from its last state")

    def finished(self, run_id: str, state: str, reason: str | None = None) -> None:
        item = self.watched[run_id]
        item.state = state
        item.refresh()
        text = f"{run_id}: {state}" + (f", {self._figures(item)}" if item.row else "")
        text += f" ({reason})" if reason else ""
        self._say_now(text if self._live else f"{text}; {self._overall()}")

    def tick(self) -> None:
        if not self._throttle.is_due():
            return
        active = [item for item in self.watched.values() if item.state == "running"]
        for item in active:
            item.refresh()
        if self._live:
            self._live.update(self._picture(), refresh=True)
        else:
            shown = [f"{item.run.run_id} {self._figures(item)}" for item in self._shown(active)]
            more = [f"{counted(len(active) - SHOWN, 'more run')} at work"] if len(active) > SHOWN else []
            self._say("; ".join([self._overall(), *shown, *more]))

    def _shown(self, active: Sequence[Watched]) -> Sequence[Watched]:
        """Of the runs at work, at most SHOWN: those of the most work left."""
        return sorted(active, key=lambda item: item.weight * (item.done - 1))[:SHOWN]

    def _say_now(self, text: str) -> None:
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            self._say(text)

    def _say(self, text: str) -> None:
        print(f"[{duration(round(time.monotonic() - self._begun))}] {text}", file=self._stream, flush=True)

    def _work(self) -> float:
        return sum(
            item.weight * (1.0 if item.state in ("done", "failed") else item.done) for item in self.watched.values()
        )

    def left_s(self) -> float | None:
        """Seconds to the end of the stage at the pace so far; None before there is one."""
        total = sum(item.weight for item in self.watched.values())
        gained = self._work() - self._work_before
        elapsed = time.monotonic() - self._begun
        return elapsed * (total - self._work()) / gained if gained > 0.002 * total else None

    def _overall(self) -> str:
        ended = [item for item in self.watched.values() if item.state in ("done", "failed")]
        failed = sum(item.state == "failed" for item in ended)
        left = self.left_s() if len(ended) < len(self.watched) else None
        text = f"{len(ended)}/{counted(len(self.watched), 'run')}" + (f" ({failed} failed)" if failed else "")
        return f"{text}, {duration(round(left))} left" if left is not None else text

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total = sum(item.weight for item in self.watched.values())
        table = Table.grid(padding=(0, 2))
        active = [item for item in self.watched.values() if item.state == "running"]
        for item in self._shown(active):
            bar = ProgressBar(total=1.0, completed=item.done, width=20)
            table.add_row(Text(item.run.run_id), bar, Text(self._figures(item)))
        elapsed = duration(round(time.monotonic() - self._begun))
        whole = ProgressBar(total=total or 1.0, completed=self._work(), width=40)
        head = Table.grid(padding=(0, 2))
        head.add_row(whole, Text(f"{self._overall()}, {elapsed} so far"))
        return Group(head, table)

    def _figures(self, item: Watched) -> str:
        if item.row is None:
            return "starting"
        at_work = sum(item.state == "running" for item in self.watched.values())
        left = item.left_s(max(1.0, at_work / self._slots)) if item.state == "running" else None
        loss, speed = item.row.get("loss"), item.row.get("tokens_per_s")
        text = f"step {item.row['step']:,}/{item.run.n_steps:,}"
        text += f", loss {loss:.3f}" if loss is not None else ""
        text += f", {count(speed)} tokens/s" if speed else ""
        return text + (f", {duration(round(left))} left" if left else "")
