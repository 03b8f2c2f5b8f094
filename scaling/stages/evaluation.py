"""The evaluation stage: what is missing of the matrix checkpoints x tasks, given to workers on this machine.

The workers (`scaling eval STUDY --worker`, here or as array elements of a scheduler) share the matrix by claim files
and need no lock; this process starts some, watches the results appear, and draws the table at the end.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError, nearest

from ..rundir.memory import keep_freed_memory
from ..rundir.worklist import EXIT_INPUT, thread_environment
from ..study.cost import expected_work
from ..study.find import PACKAGED
from .passing import write_line
from .trunks import not_merged

if TYPE_CHECKING:
    from analysis.evals.matrix import Matrix, Pair
    from analysis.evals.planning import Planned
    from analysis.evals.standing import Standing
    from analysis.evals.task import Task, TaskContext

    from ..study.run import RunSpec
    from .pipeline import Request

LIVE_EVERY_S, PLAIN_EVERY_S = 1.0, 10.0
NOW_SHOWN = 3


@dataclass(frozen=True)
class EvalOptions:
    """What the command line chose: task names and presets (none: the study's), checkpoints, workers (None: the study's
    jobs.parallel), a worker's share as RUN or RUN/STEP (none: all)."""

    tasks: tuple[str, ...] = ()
    checkpoints: str = "all"
    workers: int | None = None
    share: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """As options of a worker's command."""
        tasks = ["--tasks", ",".join(self.tasks)] if self.tasks else []
        return ["--checkpoints", self.checkpoints, *tasks]


def task_context(request: Request) -> TaskContext:
    """Where the study's tasks are asked for. Raises InputError for settings of the held-out loss in the wrong place."""
    from analysis.evals.task import TaskContext

    wanted = request.study.evaluation
    if "validation" in wanted.settings:
        raise InputError(
            f"{request.study.origin}: evaluation.settings.validation: write evaluation.validation_tokens and batch_rows"
        )
    validation = {"validation_tokens": wanted.validation_tokens, "batch_rows": wanted.batch_rows}
    folder = Path(wanted.data).expanduser() if wanted.data else None
    return TaskContext(request.corpus_directory, folder, {"validation": validation} | wanted.settings)


def eval_tasks(request: Request, options: EvalOptions) -> list[Task]:
    """The tasks to evaluate; without options held-out loss and what the study file names. Raises InputError: a task
    that is not known, settings that cannot be."""
    from analysis.evals.registry import make_tasks

    return make_tasks(options.tasks or ("validation", *(request.study.evaluation.tasks or ())), task_context(request))


def task_names(request: Request) -> list[str] | None:
    """Of the tasks that the study asks for; None where they cannot be made, which `check` tells. Imports nothing for a
    study that names none."""
    if not request.study.evaluation.tasks:
        return ["validation"]
    try:
        return [task.name for task in eval_tasks(request, EvalOptions())]
    except InputError:
        return None


def check_settings(request: Request, tasks: Sequence[Task]) -> None:
    """Raise InputError where a task cannot be asked of one of the runs' models."""
    from analysis.evals import planning

    models = planning.readers(request.corpus_directory, request.study.corpus.tokenizer, request.runs)
    planning.check_settings(tasks, models.values())


def check(request: Request, data_later: bool = False) -> list[str]:
    """Raise InputError, before anything runs, where the evaluations that the study asks for cannot be: a task that is
    not known, settings that contradict each other or the runs, data that are missing or of another form.

    data_later: where data are not there, as a study that is only planned may be, is no error: returned are lines that
    say so. Loads no torch, and nothing for a study that asks for nothing beside its held-out loss.
    """
    wanted = request.study.evaluation
    if not (wanted.tasks or wanted.settings or wanted.data):
        return []
    from analysis.evals.planning import check_data
    from analysis.evals.registry import ENTRIES, make_tasks
    from analysis.evals.task import MissingData

    context = task_context(request)
    make_tasks([name for name in wanted.settings if name in ENTRIES], context)  # checks all settings
    tasks = eval_tasks(request, EvalOptions())
    check_settings(request, tasks)
    try:
        if context.data is not None and not context.data.is_dir():
            raise MissingData(
                f"{request.study.origin}: evaluation.data: {context.data} is no folder; "
                f"`scaling eval fetch {context.data}` fills one"
            )
        check_data(tasks, context)
    except MissingData as error:
        if not data_later:
            raise
        return [f"evaluation: {error}"]
    return []


def planned(request: Request, options: EvalOptions | None = None) -> dict[str, dict[str, Planned]]:
    """{run id: {task: what one evaluation of one of its checkpoints reads}}. Loads no torch; a task from outside that
    cannot tell is left out. Raises InputError where a task's data are missing."""
    from analysis.evals import planning

    tasks = eval_tasks(request, options or EvalOptions())
    readers = planning.readers(request.corpus_directory, request.study.corpus.tokenizer, request.runs)
    return {run_id: planning.planned(tasks, reader) for run_id, reader in readers.items()}


def planned_tokens(request: Request, run: RunSpec) -> dict[str, int]:
    """{task: forward tokens of one evaluation of one checkpoint of `run`}, of the tasks that the study asks for; those
    from outside that cannot tell are left out. Exact or an estimate: `planned` says. Raises InputError as that does."""
    if not _last or _last[0][0] is not request:
        _last[:] = [(request, planned(request))]
    return {task: one.tokens for task, one in _last[0][1][run.run_id].items()}


_last: list[tuple[Request, dict[str, dict[str, Planned]]]] = []  # asked for run after run, of one request


def shown_words(request: Request) -> str:
    """The study as the next command names it."""
    path = Path(request.study.path)
    words = [path.stem if path.parent == PACKAGED else str(path)]
    words += [word for change in request.study.sets for word in ("--set", change)]
    return shlex.join([*words, *(["--only", request.only] if request.only else [])])


def require_checkpoints(request: Request) -> None:
    """Raise InputError where no run that was asked for has a checkpoint."""
    runs = request.study.directory / "runs"
    if not any(path for run in request.runs for path in (runs / run.run_id / "checkpoints").glob("[0-9]*")):
        raise InputError(
            f"{request.study.name}: no checkpoints yet in {request.study.directory}: train first, "
            f"`scaling train {shown_words(request)}`"
        )


def eval_matrix(request: Request, options: EvalOptions) -> Matrix:
    """The matrix, the largest models first, those of one configuration together. Raises InputError as eval_tasks and
    `expand` do; for a share of no run."""
    from analysis.evals.matrix import expand

    known = [run.run_id for run in request.runs]
    share: dict[str, set[int]] = {}  # steps by run; none of them: all
    for item in options.share:
        name, slash, step = item.partition("/")
        if name not in known or (slash and not step.isdigit()):
            raise InputError(f"--checkpoint {item}: is no RUN or RUN/STEP of this study{nearest(name, known)}")
        share.setdefault(name, set()).update([int(step)] if slash else [])
    share |= {name: set() for name in options.share if name in share}
    runs = alike_together([run for run in request.runs if not share or run.run_id in share])
    tasks = eval_tasks(request, options)
    check_settings(request, tasks)
    return expand(request.study.directory / "runs", runs, tasks, options.checkpoints, share)


def alike_together(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Runs whose models one worker builds once, next to each other; the largest first."""
    largest = sorted(runs, key=expected_work, reverse=True)
    kinds = list(dict.fromkeys(_kind(run) for run in largest))
    return sorted(largest, key=lambda run: kinds.index(_kind(run)))


def _kind(run: RunSpec) -> tuple[str, str]:
    return json.dumps(run.config.to_dict(), sort_keys=True), run.training.precision


def steps_to_evaluate(request: Request) -> dict[str, list[int]]:
    """{run id: steps of its checkpoints that lack a result of a task which the study asks for}."""
    missing: dict[str, list[int]] = {}
    for pair in eval_matrix(request, EvalOptions()).pairs:
        steps = missing.setdefault(pair.checkpoint.run.run_id, [])
        step = int(pair.checkpoint.path.name)
        if step not in steps and pair.stored() is None:
            steps.append(step)
    return missing


def eval_worker(request: Request, options: EvalOptions, attempt: str | None) -> int:
    """Evaluate in this process what nobody else does; returns how many pairs failed. Takes no lock."""
    begun = time.perf_counter()
    import torch

    from analysis.evals.worker import Worker
    from arch.no_compiler import keep_from_the_compiler

    matrix = eval_matrix(request, options)
    torch.set_num_threads(max(run.training.threads for run in request.runs))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        keep_from_the_compiler()
    else:
        keep_freed_memory()
    worker = Worker(request.corpus_directory, device, attempt or uuid.uuid4().hex, request.say, begun)
    worker.work(matrix)
    for name, reason in matrix.refused.items():
        request.say(f"{name}: failed: {reason}")
    return worker.n_failed + matrix.n_refused


def eval_stage(request: Request, options: EvalOptions | None = None) -> dict[str, Any]:
    """Evaluate every pair without a valid result; write results/evals.parquet and draw evals/index.html.

    Returns pairs, done (now), failed {reason: [names]}, warnings, cost {seconds, setup_seconds, forward_seconds,
    forward_tokens} of what was done now, in seconds of all workers together, and results: the numbers of all pairs that
    have them, as {run_id, step, n_tokens, task, values}.
    """
    from analysis.claims import clear
    from analysis.evals.table import numbers

    options = options or EvalOptions()
    matrix = eval_matrix(request, options)
    for checkpoint, _ in matrix.checkpoints():
        clear(checkpoint.results)
    missing = [pair for pair in matrix.pairs if pair.stored() is None]
    n_all = len(matrix.pairs) + matrix.n_refused
    what = ", ".join(matrix.tasks) if n_all else "no checkpoints"
    request.say(f"eval: {len(missing)} of {n_all} evaluations to do ({what})")
    failed: dict[str, list[str]] = {}
    for name, reason in matrix.refused.items():
        failed.setdefault(reason, []).append(name)
    done = _run_workers(request, options, missing, failed) if missing else []
    warnings = list(dict.fromkeys(line for r in done for line in r["values"].get("warnings", [])))
    if not request.study.is_variant:  # variants made with --set lie beside the study's own runs, which is shown
        show_results(request, options)
    cost = {name: sum(r[name] for r in done) for name in ("seconds", "setup_seconds", "forward_seconds")}
    cost["forward_tokens"] = sum(r["forward_tokens"] for r in done)
    if done:
        in_all = cost["seconds"] + cost["setup_seconds"]
        request.say(
            f"eval: {len(done)} done, {cost['forward_tokens']:,} tokens read; {cost['seconds']:.1f} s of evaluation, "
            f"of which forward passes took {cost['forward_seconds']:.1f} s, and {cost['setup_seconds']:.1f} s to open "
            f"models and prepare data; in all {in_all / max(cost['forward_seconds'], 1e-9):.2f} times the forward "
            f"passes"
        )
    n_failed = matrix.n_refused + len(missing) - len(done)
    result = {"pairs": n_all, "done": len(done), "n_failed": n_failed, "failed": failed, "warnings": warnings}
    told = [
        {key: one[key] for key in ("run_id", "step", "n_tokens", "task")}
        | {"values": numbers(one)}
        | ({"merged": True} if pair.checkpoint.is_merged else {})
        for pair in matrix.pairs
        if (one := pair.stored()) is not None
    ]
    for line in not_merged(request):
        request.say(line)
    return result | {"cost": cost, "results": told}


def _run_workers(
    request: Request, options: EvalOptions, missing: Sequence[Pair], failed: dict[str, list[str]]
) -> list[dict[str, Any]]:
    """Start workers and watch them; returns the new results, adds to `failed` what has none."""
    from jobs.local import Task as Process
    from jobs.local import at_once, run_tasks

    from .evaluation_progress import EvalProgress

    study, log, attempt = request.study, request.study.directory / "eval.log", uuid.uuid4().hex
    workers = min(options.workers or at_once(study.jobs.parallel, 1), len(missing))
    argv = [sys.executable, "-m", "scaling", "eval", study.path, "--out", study.out, "--worker"]
    argv += ["--attempt", attempt, *options.arguments(), *(["--only", request.only] if request.only else [])]
    argv += [option for change in study.sets for option in ("--set", change)]
    environment = thread_environment(max(run.training.threads for run in request.runs))
    processes = [Process(f"eval worker {i}", argv, log, environment) for i in range(workers)]
    progress = EvalProgress(missing, attempt, workers)
    live = request.stream.isatty()
    codes, shown = [], time.monotonic()
    with closing(run_tasks(processes, workers)) as events:
        for event in events:
            if event.kind == "finished":
                codes.append(event.exit_code)
            elif event.kind == "tick" and time.monotonic() - shown >= (LIVE_EVERY_S if live else PLAIN_EVERY_S):
                shown = time.monotonic()
                write_line(request.stream, progress.line(), live)
    progress.refresh()
    if live:
        write_line(request.stream, progress.line(), False)
    for pair, reason in progress.failed.items():
        failed.setdefault(reason, []).append(pair.name)
    if progress.open:
        why = f"a worker ended before its time (exit codes {codes}); run it again to go on, see {log}"
        if EXIT_INPUT in codes:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error: ")]
            why = lines[-1].removeprefix("error: ")
        failed[why] = [pair.name for pair in progress.open]
    return list(progress.done.values())


def current_results(request: Request, options: EvalOptions | None = None) -> Standing:
    """What is stored of the request's runs, as far as it would be computed so today. The tasks of `options` are known
    beside the study's. Raises InputError for settings that cannot be."""
    from analysis.evals.registry import known_tasks, make_tasks
    from analysis.evals.standing import standing

    context, runs_dir = task_context(request), request.study.directory / "runs"
    words = [*(request.study.evaluation.tasks or ()), *(options.tasks if options else ())]
    names = {path.stem for run in request.runs for path in (runs_dir / run.run_id / "evals").glob("[0-9]*/*.*")}
    wanted = [name for name in known_tasks(context) if name in names] + [word for word in words if ":" in word]
    return standing(runs_dir, request.runs, make_tasks(wanted, context))


def show_results(request: Request, options: EvalOptions | None = None) -> None:
    """results/evals.parquet and evals/index.html of all the study's own runs; what is left out of them is told."""
    from analysis.evals.page import write_page
    from analysis.evals.table import write_tables

    directory = request.study.directory
    found = current_results(replace(request, only=None), options)
    for line in found.lines():
        request.say(f"eval: {line}")
    if write_tables(directory / "results", found.results, {run.run_id for run in request.study.forecast_runs()}):
        request.say(f"eval: all numbers are in {directory}/results/evals.parquet")
    if all(result["task"] == "validation" for result in found.results):
        return  # the report shows it
    page = write_page(directory / "evals", request.study.name, found.results, found.lines())
    if page.fresh:
        request.say(f"eval: drawn, {page.path}" + (f" (no PNGs: {page.no_pictures})" if page.no_pictures else ""))
