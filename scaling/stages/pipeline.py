"""The stages of a study, in the order in which `scaling run` takes them. Each does only what is missing.

Heavy imports happen inside the stages that need them: a study where all is done never loads torch.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from arch.errors import FULL, InputError
from flops import cost_table

from ..rundir.directory import RunDir, clean_unfinished
from ..rundir.held_states import release_states, without_trunk
from ..rundir.lock import study_lock
from ..rundir.prepare import at_stored_rate, prepare_run
from ..rundir.versions import package_versions
from ..rundir.worklist import EXIT_INPUT, check_runs, is_trained, reason_of, thread_environment
from ..study.cost import expected_work
from ..study.run import RunSpec
from ..study.spec import StudySpec
from .corpus import data_stage, reads_text
from .forecast import predict_missing, trainable, waiting, waiting_line
from .progress import Progress, Watched
from .trunks import check_trunks

if TYPE_CHECKING:
    from data.corpus import Corpus
    from jobs.local import Task

REMEDIES = {
    **dict.fromkeys(FULL, "free some space"),
    errno.EACCES: "make it yours to write, or give another --out",
    errno.EROFS: "give another --out",
}


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line: the study, the runs of it (with or without those of its forecast), and
    where lines for people go."""

    study: StudySpec
    only: str | None = None
    stream: TextIO = sys.stdout
    forecast: bool = True

    @cached_property
    def runs(self) -> list[RunSpec]:
        return self.study.all_runs(self.only) if self.forecast else self.study.runs(self.only)

    @property
    def corpus_directory(self) -> Path:
        return self.study.directory / "corpus"

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def rundir(self, run: RunSpec) -> RunDir:
        return RunDir(self.study.run_directory(run))

    @contextmanager
    def writing(self, rates: bool = True) -> Iterator[None]:
        """Alone in the study's directory, and only where no run of another spec is in the way.

        What a kill left unfinished there is removed first. rates: every run must have its learning rate; the corpus
        needs none, and fit and report take runs at the rates that they had.
        """
        if rates:
            self.check_rates()
        self.check_runs()
        with study_lock(self.study.directory):
            try:
                clean_unfinished(self.study.directory)
                yield
            except OSError as error:
                remedy = REMEDIES.get(error.errno or 0)
                if remedy is None:
                    raise
                raise InputError(
                    f"{error.filename or self.study.directory}: {error.strerror}: {remedy} and run it again "
                    f"(complete files are kept, the write that failed left nothing)"
                ) from None

    def check_rates(self) -> None:
        """Raise InputError where runs follow a law that the study's own sweep has not given yet."""
        pending = [run for run in self.runs if run.is_pending]
        if pending:
            first = min(pending, key=lambda run: run.rate["swept"])
            told = f"{len(pending)} runs have no learning rate yet (training.lr: law): {first.rate['pending']}"
            raise InputError(told if first.rate["swept"] else f"{told}: `scaling sweep {self.study.path}` first")

    def check_runs(self) -> None:
        """Raise OtherRun, which names all of them, where directories of runs were written for other specs."""
        check_runs([(self.rundir(run), run) for run in self.runs])


def run_study(request: Request) -> dict[str, Any]:
    """Everything that is missing, stage by stage.

    Returns {"trained": run ids, "failed": {run id: reason}, "evaluations": of eval_stage, "fits", "report": path}; fits
    and report are None for variants made with --set, which lie beside the study's own runs and are not among them.
    """
    from .evaluation import check, eval_stage

    check(request)  # a wrong evaluation is told before anything is trained
    check_trunks(request)
    with request.writing():
        corpus = data_stage(request, reads_text(request))
        check(request)  # what it reads of the corpus too
        trained, failed = train_stage(request, corpus)
        result: dict[str, Any] = {"trained": trained, "failed": failed, "evaluations": eval_stage(request)}
        if request.study.is_variant:
            request.say("fit, report: skipped (they use the study's own runs, not variants made with --set)")
            return result | {"fits": None, "report": None}
        fits = fit_stage(request)
        if waiting(request) and predict_missing(request, fits):
            more, failed = train_stage(request, corpus)
            result |= {"trained": [*trained, *more], "failed": failed, "evaluations": eval_stage(request)}
        return result | {"fits": fits, "report": str(report_stage(request))}


def prepare_runs(request: Request, corpus: Corpus) -> list[RunDir]:
    """The directory with its run.json of every run that may be trained."""
    versions = package_versions()
    return [
        prepare_run(
            request.study.run_directory(run),
            run,
            cost_table(run.config),
            corpus.fingerprint,
            versions,
            corpus.is_known_as,
            corpus.manifest["tokenizer"].get("identity"),
        )
        for run in trainable(request)
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
    request.say(f"train: {len(todo)} of {len(runs)} runs to do, {done} done, {len(failed)} failed before")
    for line in waiting_line(request):
        request.say(line)
    longest = {item.run.trunk: item.weight for item in sorted(todo, key=lambda item: item.weight)}  # branch of a trunk
    todo.sort(key=lambda item: -item.weight - longest.get(item.run.run_id, 0.0))

    def reason(task: Task, code: int) -> str | None:
        return reason_of(code, request.study.directory / "runs" / task.name)

    tasks = [train_task(item.run, item.rundir, request.study.jobs.processes) for item in todo]
    if tasks:
        jobs = request.study.jobs
        if told := describe_use(jobs.parallel, jobs.processes):
            request.say(f"train: {told}")
        parallel = at_once(jobs.parallel, jobs.processes)
        compilers: list[Task] = []
        if jobs.processes == 1:
            log = request.study.directory / "compile_ahead.log"
            compilers = compile_tasks([(item.run, item.rundir) for item in todo], parallel, log)
        if compilers:
            request.say(f"train: {len(compilers)} processes compile the kernels of later runs meanwhile; see {log}")
        with (
            Progress(todo, request.stream) as progress,
            beside(compilers),
            closing(run_tasks(tasks, parallel, ended_well=lambda task, code: reason(task, code) is None)) as events,
        ):
            for event in events:
                if event.task is None:
                    progress.tick()
                elif event.kind == "started":
                    progress.started(event.task.name)
                else:
                    skipped = event.kind == "skipped"
                    why = without_trunk(event.task.after) if skipped else reason(event.task, event.exit_code or 0)
                    if why:
                        failed[event.task.name] = why
                        refused += [why] if event.exit_code == EXIT_INPUT else []
                    progress.finished(event.task.name, "failed" if why else "done", why)
    release_states(request.study.directory / "runs", request.runs)
    if refused:
        raise InputError(refused[0] + (f" (and {len(refused) - 1} more runs)" if len(refused) > 1 else ""))
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


def train_task(run: RunSpec, rundir: RunDir, processes: int = 1) -> Task:
    """The task that trains a prepared run. On GPUs one process trains a GPU's runs one after another: it starts once,
    and what changes bits is not its threads."""
    from jobs.local import Task, visible_gpus

    environment = thread_environment(run.training.threads)
    if processes == 1 and visible_gpus():
        server = [sys.executable, "-m", "scaling.trainer.server"]
        return Task(run.run_id, [str(rundir.path)], rundir.log, environment, server, after=run.trunk)
    return Task(run.run_id, train_argv(rundir, processes), rundir.log, environment, after=run.trunk)


def train_argv(rundir: RunDir, processes: int) -> list[str]:
    """The command that trains a prepared run: one process, or `processes` of them under torchrun."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*launcher, "-m", "scaling.trainer.process", str(rundir.path)]


def fit_stage(request: Request, force: bool = False) -> dict[str, Any]:
    """The laws of the whole study, from the runs that are done. Raises InputError for variants made with --set, and
    where nothing has trained."""
    from analysis.stage import fit

    check_results(request)
    result = fit(request.study, runs_at_stored_rates(request), force)
    request.say(("fit: done" if result.fresh else "fit: nothing to do") + _beside(request, request.study.results))
    return result.fits


def report_stage(request: Request, force: bool = False) -> Path:
    """report/index.html of the whole study. Raises InputError as fit_stage does."""
    from analysis.stage import report

    check_results(request)
    result = report(request.study, runs_at_stored_rates(request), force)
    request.say(("report: drawn" if result.fresh else "report: nothing to do") + _beside(request, request.study.report))
    if result.no_pictures:
        request.say(f"report: no PNGs ({result.no_pictures})")
    return result.path


def runs_at_stored_rates(request: Request) -> list[RunSpec]:
    """The study's runs; those whose rate is to come at the one that they were trained at, which is told."""
    runs = request.study.runs()
    pending = [run for run in runs if run.is_pending and request.rundir(run).run_json.exists()]
    if pending:
        request.say(
            f"warning: {len(pending)} runs are taken at the learning rate that they were trained at; the study file "
            f"asks for another law: {pending[0].rate['pending']}"
        )
    return [at_stored_rate(request.rundir(run), run) for run in runs]


def _beside(request: Request, directory: Path) -> str:
    """Where results of a changed fit or grid go; "" for the study's own."""
    if not request.study.set_results:
        return ""
    return f" (changed by --set, so it is in {directory}/ beside the study's own)"


def check_results(request: Request) -> None:
    """Raise InputError where fit and report are not of the runs asked for, or no run of the study has trained."""
    if request.study.is_variant:
        raise InputError(
            f"{request.study.origin}: fit and report use the study's own runs, not variants: leave out --set of "
            f"training and model, or write a study file with another name"
        )
    if request.study.published is not None:  # some of its runs had trained
        return
    for run in request.study.runs():
        rundir = request.rundir(run)
        if rundir.status()["state"] != "waiting" or rundir.last_row() is not None:
            return
    raise InputError(
        f"{request.study.directory}: no run has trained, so there is nothing to fit or to report: "
        f"`scaling train {request.study.path}` first"
    )
