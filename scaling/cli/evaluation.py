"""The evaluation stage: the tasks that a study asks for, what is missing of the matrix checkpoints x tasks, and the
workers that fill it.

Workers (`scaling eval worker STUDY`, here or as array elements of a scheduler) share the matrix by claim files and need
no lock; the stage starts some, watches the results appear, and draws the table at the end. A study that asks for
nothing beside its held-out loss imports nothing of the tasks before it is evaluated.
"""

from __future__ import annotations

import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.amounts import counted_of
from arch.errors import InputError, nearest
from flops.tables import duration

from ..rundir.directory import VALIDATION
from ..rundir.worklist import EXIT_INPUT, thread_environment
from ..study.cost import expected_work
from ..study.file import PACKAGED
from ..trainer.process import set_numerics, set_threads
from .passing import Passing
from .request import Request

if TYPE_CHECKING:
    from analysis.evals.matrix import CurrentResults, Matrix, Pair
    from analysis.evals.planning import Pace
    from analysis.evals.results import Result
    from analysis.evals.task import Reader, Task, TaskContext
    from analysis.evals.worker import Worker

NO_DATA = "evaluation"  # as a warning of a plan begins whose data are not there: a run refuses


@dataclass(frozen=True)
class EvalOptions:
    """What the command line chose: task names and presets (none: the study's), checkpoints, workers (None: the study's
    jobs.parallel), a worker's share as RUN or RUN/STEP (none: all)."""

    tasks: tuple[str, ...] = ()
    checkpoints: str = "all"
    workers: int | None = None
    share: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The options of a worker's command."""
        tasks = ["--tasks", ",".join(self.tasks)] if self.tasks else []
        return ["--checkpoints", self.checkpoints, *tasks]


ALL = EvalOptions()


def task_context(request: Request) -> TaskContext:
    """What the study's tasks are made with. Raises InputError for settings of the held-out loss in the wrong place."""
    from analysis.evals.task import TaskContext

    evaluation = request.study.evaluation
    if VALIDATION in evaluation.settings:
        raise InputError(
            f"{request.study.origin}: evaluation.settings.validation: write evaluation.validation_tokens and batch_rows"
        )
    validation = {"validation_tokens": evaluation.validation_tokens, "batch_rows": evaluation.batch_rows}
    folder = Path(evaluation.data).expanduser() if evaluation.data else None
    return TaskContext(request.corpus_directory, folder, {VALIDATION: validation} | evaluation.settings)


def eval_tasks(request: Request, options: EvalOptions = ALL) -> list[Task]:
    """The tasks to evaluate; without options held-out loss and what the study file names. Raises InputError: a task
    that is not known, settings that cannot be."""
    from analysis.evals.registry import make_tasks

    return make_tasks(options.tasks or (VALIDATION, *(request.study.evaluation.tasks or ())), task_context(request))


def task_names(request: Request) -> list[str] | None:
    """The names of the study's tasks; None where they cannot be made; `check_evaluations` says why."""
    if not request.study.evaluation.tasks:
        return [VALIDATION]
    try:
        return [task.name for task in eval_tasks(request)]
    except InputError:
        return None


def readers_of(request: Request) -> dict[str, Reader]:
    """How the runs' models read text, by run id."""
    from analysis.evals.planning import readers

    return readers(request.corpus_directory, request.study.corpus.tokenizer, request.runs)


def pace_here(request: Request) -> Pace:
    """How fast evaluations are on this machine, by the study's results."""
    from analysis.evals.planning import measured_pace
    from flops.hardware import DEVICES
    from jobs.local import visible_gpus

    kind, device = ("cuda", DEVICES["h100"]) if visible_gpus() else ("cpu", DEVICES["cpu"])
    return measured_pace(request.study.directory / "runs", request.runs, device, kind)


def check_evaluations(request: Request, data_later: bool = False) -> list[str]:
    """Raise InputError, before anything runs, where the evaluations that the study asks for cannot be: a task that is
    not known, settings that contradict each other or the runs, data that are missing or of another form.

    data_later: where data are not there, as a study that is only planned may be, is no error: returned are lines that
    say so. Loads no torch.
    """
    evaluation = request.study.evaluation
    if not (evaluation.tasks or evaluation.settings or evaluation.data):
        return []
    from analysis.evals.planning import check_data, check_settings
    from analysis.evals.registry import PRESETS, entry_of, make_tasks
    from analysis.evals.task import MissingData

    context = task_context(request)
    make_tasks([name for name in evaluation.settings if entry_of(name)], context)  # checks all settings
    tasks = eval_tasks(request)
    check_settings(tasks, readers_of(request).values())
    try:
        if context.data is not None and not context.data.is_dir():
            known = [word for word in evaluation.tasks or () if word in PRESETS or entry_of(word)]
            rows = f" --rows {','.join(known)}" if known else ""
            raise MissingData(
                f"{request.study.origin}: evaluation.data: {context.data} is no folder; "
                f"`scaling eval fetch {context.data}` fills one, `scaling eval list{rows}` says what it must hold"
            )
        check_data(tasks, context)
    except MissingData as error:
        if not data_later:
            raise
        return [f"{NO_DATA}: {error}"]
    return []


def planned_tokens(request: Request, data_later: bool = False, options: EvalOptions = ALL) -> dict[str, dict[str, int]]:
    """{run id: {task: tokens that one evaluation of one of its checkpoints reads, about}} of the tasks of `options` or
    the study. Loads no torch; a task from outside that does not know is left out. Raises InputError where a task's data
    are missing, unless these may come later: it then is left out."""
    from analysis.evals.planning import forward_tokens

    return forward_tokens(eval_tasks(request, options), readers_of(request), data_later)


def eval_matrix(request: Request, options: EvalOptions = ALL) -> Matrix:
    """The matrix, the largest models first. Raises InputError as eval_tasks and `matrix_of` do, and for a share of no
    run."""
    from analysis.evals.matrix import matrix_of
    from analysis.evals.planning import check_settings

    run_ids = [run.run_id for run in request.runs]
    share: dict[str, set[int]] = {}  # steps by run; none of them: all
    for item in options.share:
        name, slash, step = item.partition("/")
        if name not in run_ids or (slash and not step.isdigit()):
            raise InputError(f"--checkpoint {item}: is no RUN or RUN/STEP of this study{nearest(name, run_ids)}")
        share.setdefault(name, set()).update([int(step)] if slash else [])
    share |= {name: set() for name in options.share if name in share}
    runs = [run for run in request.runs if not share or run.run_id in share]
    runs.sort(key=expected_work, reverse=True)
    tasks = eval_tasks(request, options)
    check_settings(tasks, readers_of(request).values())
    return matrix_of(request.study.directory / "runs", runs, tasks, options.checkpoints, share)


def steps_to_evaluate(request: Request) -> dict[str, list[int]]:
    """{run id: steps of its checkpoints that lack a result of a task which the study asks for}."""
    missing: dict[str, list[int]] = {}
    for pair in eval_matrix(request).pairs:
        steps = missing.setdefault(pair.checkpoint.run.run_id, [])
        step = int(pair.checkpoint.path.name)
        if step not in steps and pair.stored() is None:
            steps.append(step)
    return missing


def require_checkpoints(request: Request) -> None:
    """Raise InputError where no chosen run has a checkpoint."""
    runs = request.study.directory / "runs"
    if not any(path for run in request.runs for path in (runs / run.run_id / "checkpoints").glob("[0-9]*")):
        raise InputError(
            f"{request.study.name}: no checkpoints yet in {request.study.directory}: train first, "
            f"`scaling train {shown_words(request)}`"
        )


def shown_words(request: Request) -> str:
    """The study as the next command names it."""
    path = Path(request.study.path)
    words = [path.stem if path.parent == PACKAGED else str(path)]
    words += [word for change in request.study.sets for word in ("--set", change)]
    return shlex.join([*words, *(["--only", request.only] if request.only else [])])


def _worker(request: Request, attempt: str, begun: float) -> Worker:
    """A worker in this process, which began at `begun` [s of time.perf_counter]."""
    threads = max(run.training.threads for run in request.runs)
    set_threads(threads)
    import torch

    from analysis.evals.worker import Worker

    device = "cuda" if torch.cuda.is_available() else "cpu"
    set_numerics(device, threads)
    return Worker(request.corpus_directory, device, attempt, request.say, begun)


def eval_worker(request: Request, options: EvalOptions = ALL, attempt: str | None = None) -> int:
    """Evaluate in this process what no other worker does; returns how many pairs failed. Takes no lock."""
    worker = _worker(request, attempt or uuid.uuid4().hex, time.perf_counter())
    matrix = eval_matrix(request, options)
    worker.work(matrix)
    for name, reason in matrix.refused.items():
        request.say(f"{name}: failed: {reason}")
    return worker.n_failed + matrix.n_refused


def eval_stage(request: Request, options: EvalOptions = ALL) -> dict[str, Any]:
    """Evaluate every pair without a valid result; write results/evals.parquet and draw evals/index.html.

    Returns pairs, done (now), n_failed, failed {reason: [names]}, warnings, and results: the numbers of all pairs that
    have them, as {run_id, step, n_tokens, task, values}.
    """
    from analysis.claims import clear

    matrix = eval_matrix(request, options)
    for pairs in matrix.by_checkpoint:
        clear(pairs[0].checkpoint.results)
    missing = [pair for pair in matrix.pairs if pair.stored() is None]
    n_all = len(matrix.pairs) + matrix.n_refused
    what = ", ".join(matrix.tasks) if n_all else "no checkpoints"
    request.say(f"eval: {counted_of(len(missing), n_all, 'evaluation')} to do ({what})")
    if damaged := [pair.path for pair in missing if pair.path.exists() and pair.result() is None]:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        request.say(f"eval: made again, because it cannot be read: {damaged[0]}{more}")
    failed = _run_workers(request, options, missing) if missing else {}
    if not request.study.is_variant:  # variants made with --set lie beside the study's own runs, which is shown
        show_results(request, options)
    if done := [result for pair in missing if (result := pair.stored()) is not None]:
        seconds = sum(result.seconds + result.setup_seconds for result in done)
        n_tokens = sum(result.forward_tokens for result in done)
        request.say(f"eval: {len(done)} done, {n_tokens:,} tokens read in {duration(seconds)} of all workers together")
    return _outcome(matrix, done, failed)


def eval_hf(request: Request, options: EvalOptions, folders: Sequence[Path]) -> dict[str, Any]:
    """Evaluate other models in this process by the tasks of `options` or the study; returns what `eval_stage` does.
    Raises InputError for a folder that holds no model, and tasks as `eval_tasks` does."""
    attempt = uuid.uuid4().hex
    worker = _worker(request, attempt, time.perf_counter())
    from analysis.evals.hf_model import hf_checkpoint
    from analysis.evals.matrix import Matrix

    tasks, directory = eval_tasks(request, options), request.study.directory
    matrix = Matrix([task.name for task in tasks])
    matrix.add([hf_checkpoint(folder, directory) for folder in folders], tasks)
    missing = [pair for pair in matrix.pairs if pair.stored() is None]
    worker.work(matrix)
    failed: dict[str, list[str]] = {}
    for pair in missing:
        if reason := pair.failed(attempt):
            failed.setdefault(reason, []).append(pair.name)
    show_results(request, options)
    done = [result for pair in missing if (result := pair.stored()) is not None]
    return _outcome(matrix, done, failed)


def _outcome(matrix: Matrix, done: Sequence[Result], failed: Mapping[str, list[str]]) -> dict[str, Any]:
    """What a stage returns that has evaluated `matrix`. done: the new results; failed: {reason: names of pairs}."""
    reasons = matrix.reasons
    for reason, names in failed.items():
        reasons.setdefault(reason, []).extend(names)
    results = [result for pair in matrix.pairs if (result := pair.stored()) is not None]
    return {
        "pairs": len(matrix.pairs) + matrix.n_refused,
        "done": len(done),
        "n_failed": matrix.n_refused + len(matrix.pairs) - len(results),
        "failed": reasons,
        "warnings": list(dict.fromkeys(line for result in done for line in result.values.get("warnings", []))),
        "results": [result.plain for result in results],
    }


def _run_workers(request: Request, options: EvalOptions, missing: Sequence[Pair]) -> dict[str, list[str]]:
    """Start workers and watch them; returns {reason: names of pairs} of those that have no result then."""
    from jobs.local import Task as Process
    from jobs.local import at_once, run_tasks

    study, log, attempt = request.study, request.study.directory / "eval.log", uuid.uuid4().hex
    workers = min(options.workers or at_once(study.jobs.parallel, 1), len(missing))
    argv = [sys.executable, "-m", "scaling", "eval", "worker", study.path, "--out", study.out]
    argv += ["--attempt", attempt, *options.arguments(), *(["--only", request.only] if request.only else [])]
    argv += [option for change in study.sets for option in ("--set", change)]
    environment = thread_environment(max(run.training.threads for run in request.runs))
    processes = [Process(f"eval worker {i}", argv, log, environment) for i in range(workers)]
    progress = EvalProgress(expected_seconds(request, options, missing), workers, attempt)
    codes = []
    with closing(run_tasks(processes, workers)) as events, Passing(request.stream) as passing:
        for event in events:
            if event.kind == "finished":
                codes.append(event.exit_code)
            elif event.kind == "tick":
                passing.show(progress.line)
    progress.refresh()
    failed: dict[str, list[str]] = {}
    for pair, reason in progress.failed.items():
        failed.setdefault(reason, []).append(pair.name)
    if progress.open:
        why = f"a worker ended before its time (exit codes {codes}); run it again to go on, see {log}"
        if EXIT_INPUT in codes:
            lines = log.read_text(errors="replace", encoding="utf-8").splitlines()
            why = [line for line in lines if line.startswith("error: ")][-1].removeprefix("error: ")
        failed[why] = [pair.name for pair in progress.open]
    return failed


def expected_seconds(request: Request, options: EvalOptions, pairs: Sequence[Pair]) -> dict[Pair, float]:
    """Of each pair on one worker here, as `scaling plan` expects it; of a task of unknown length the mean of the
    others."""
    pace, tokens = pace_here(request), planned_tokens(request, True, options)
    known = {
        pair: pace.seconds(pair.task.name, pair.checkpoint.run, n_tokens)
        for pair in pairs
        if (n_tokens := tokens[pair.checkpoint.run.run_id].get(pair.task.name)) is not None
    }
    typical = sum(known.values()) / len(known) if known else 1.0
    return {pair: known.get(pair, typical) for pair in pairs}


class EvalProgress:
    """expected: seconds by pair without a result. open: those that have none yet; done: the new results; failed:
    why."""

    def __init__(self, expected: Mapping[Pair, float], workers: int, attempt: str) -> None:
        self.open, self._expected, self._workers = list(expected), expected, workers
        self.done: dict[Pair, Result] = {}
        self.failed: dict[Pair, str] = {}
        self._attempt, self._begun = attempt, time.monotonic()

    def refresh(self) -> None:
        """Look for new results and failures."""
        for pair in self.open:
            if (result := pair.stored()) is not None:
                self.done[pair] = result
            elif (reason := pair.failed(self._attempt)) is not None:
                self.failed[pair] = reason
        self.open = [pair for pair in self.open if pair not in self.done and pair not in self.failed]

    def line(self) -> str:
        """One line for people: counts, and the time left, at the pace so far or, before anything is done, as
        expected."""
        self.refresh()
        elapsed = time.monotonic() - self._begun
        work, left = (sum(map(self._expected.__getitem__, pairs)) for pairs in (self.done, self.open))
        text = f"eval: {len(self.done)}/{len(self.done) + len(self.failed) + len(self.open)} done"
        text += f", {len(self.failed)} failed" if self.failed else ""
        if work:
            return f"{text}, {duration(round(elapsed * left / work))} left"
        return f"{text}, {duration(round(elapsed))} of about {duration(round(left / self._workers))}"


def current_results(request: Request, options: EvalOptions = ALL) -> CurrentResults:
    """What is stored of the request's runs and of other models, as far as it would be computed so today. The tasks of
    `options` are known beside the study's. Raises InputError for settings that cannot be."""
    from analysis.evals.hf_model import known_hf
    from analysis.evals.matrix import read_current
    from analysis.evals.registry import entry_of, make_tasks

    context, runs_dir = task_context(request), request.study.directory / "runs"
    words = [*(request.study.evaluation.tasks or ()), *options.tasks]
    stored = {path.stem for run in request.runs for path in (runs_dir / run.run_id / "evals").glob("[0-9]*/*.*")}
    others = [] if request.only else known_hf(request.study.directory)
    stored |= {path.stem for other in others for path in other.results.glob("*.json")}
    names = [name for name in sorted(stored) if entry_of(name)] + [word for word in words if ":" in word]
    return read_current(runs_dir, request.runs, make_tasks(names, context), others)


def show_results(request: Request, options: EvalOptions = ALL) -> None:
    """Write results/evals.parquet and evals/index.html of all the study's own runs; print what is left out of them."""
    from analysis.evals.page import write_page
    from analysis.evals.results import write_tables

    directory = request.study.directory
    current = current_results(replace(request, only=None), options)
    for line in current.lines():
        request.say(f"eval: {line}")
    if write_tables(directory / "results", current.results, {run.run_id for run in request.study.forecast_runs()}):
        request.say(f"eval: all numbers are in {directory}/results/evals.parquet")
    if all(result.task == VALIDATION for result in current.results):
        return  # the report shows it
    page = write_page(directory / "evals", request.study.name, current.results, current.lines())
    if page.fresh:
        request.say(f"eval: written, {page.path}" + (f" (no PNGs: {page.no_pictures})" if page.no_pictures else ""))
