"""The evaluation stage: what is missing of the matrix checkpoints x tasks, given to workers on this machine.

The workers (`scaling eval worker STUDY`, here or as array elements of a scheduler) share the matrix by claim files and
need no lock; this process starts some, watches the results appear, and draws the table at the end.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from arch.amounts import counted_of
from flops.tables import duration

from ..rundir.memory import keep_freed_memory
from ..rundir.worklist import EXIT_INPUT, thread_environment
from ..study.cost import expected_work
from .evaluation_matrix import eval_matrix
from .evaluation_results import show_results
from .evaluation_tasks import EvalOptions
from .passing import Passing
from .request import Request
from .trunks import not_merged

if TYPE_CHECKING:
    from analysis.evals.matrix import Pair
    from analysis.evals.results import Result


def eval_worker(request: Request, options: EvalOptions, attempt: str | None) -> int:
    """Evaluate in this process what no other worker does; returns how many pairs failed. Takes no lock."""
    start = time.perf_counter()
    threads = max(run.training.threads for run in request.runs)
    os.environ.update(thread_environment(threads))
    import torch

    from analysis.evals.worker import Worker
    from arch.no_compiler import keep_from_the_compiler
    from arch.products import multiply_in_fp32

    multiply_in_fp32()
    matrix = eval_matrix(request, options)
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        keep_from_the_compiler()
    else:
        keep_freed_memory()
    worker = Worker(request.corpus_directory, device, attempt or uuid.uuid4().hex, request.say, start)
    worker.work(matrix)
    for name, reason in matrix.refused.items():
        request.say(f"{name}: failed: {reason}")
    return worker.n_failed + matrix.n_refused


def eval_stage(request: Request, options: EvalOptions | None = None) -> dict[str, Any]:
    """Evaluate every pair without a valid result; write results/evals.parquet and draw evals/index.html.

    Returns pairs, done (now), failed {reason: [names]}, warnings, cost {seconds, setup_seconds, forward_tokens} of what
    was done now, in seconds of all workers together, and results: the numbers of all pairs that have them, as {run_id,
    step, n_tokens, task, values, merged}.
    """
    from analysis.claims import clear

    options = options or EvalOptions()
    matrix = eval_matrix(request, options)
    for checkpoint, _ in matrix.checkpoints():
        clear(checkpoint.results)
    missing = [pair for pair in matrix.pairs if pair.stored() is None]
    n_all = len(matrix.pairs) + matrix.n_refused
    what = ", ".join(matrix.tasks) if n_all else "no checkpoints"
    request.say(f"eval: {counted_of(len(missing), n_all, 'evaluation')} to do ({what})")
    if damaged := [pair for pair in missing if pair.damage]:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        request.say(f"eval: made again: {damaged[0].path}: {damaged[0].damage}{more}")
    failed: dict[str, list[str]] = {}
    for name, reason in matrix.refused.items():
        failed.setdefault(reason, []).append(name)
    done = _run_workers(request, options, missing, failed) if missing else []
    warnings = list(dict.fromkeys(line for result in done for line in result.values.get("warnings", [])))
    if not request.study.is_variant:  # variants made with --set lie beside the study's own runs, which is shown
        show_results(request, options)
    cost = {
        "seconds": sum(result.seconds for result in done),
        "setup_seconds": sum(result.setup_seconds for result in done),
        "forward_tokens": sum(result.forward_tokens for result in done),
    }
    if done:
        request.say(
            f"eval: {len(done)} done, {cost['forward_tokens']:,} tokens read; {cost['seconds']:.1f} s of evaluation, "
            f"and {cost['setup_seconds']:.1f} s to open models and prepare data"
        )
    n_failed = matrix.n_refused + len(missing) - len(done)
    summary = {"pairs": n_all, "done": len(done), "n_failed": n_failed, "failed": failed, "warnings": warnings}
    results = [result.plain for pair in matrix.pairs if (result := pair.stored()) is not None]
    for line in not_merged(request):
        request.say(line)
    return summary | {"cost": cost, "results": results}


def _run_workers(
    request: Request, options: EvalOptions, missing: Sequence[Pair], failed: dict[str, list[str]]
) -> list[Result]:
    """Start workers and watch them; returns the new results, adds to `failed` what has none."""
    from jobs.local import Task as Process
    from jobs.local import at_once, run_tasks

    study, log, attempt = request.study, request.study.directory / "eval.log", uuid.uuid4().hex
    workers = min(options.workers or at_once(study.jobs.parallel, 1), len(missing))
    argv = [sys.executable, "-m", "scaling", "eval", "worker", study.path, "--out", study.out]
    argv += ["--attempt", attempt, *options.arguments(), *(["--only", request.only] if request.only else [])]
    argv += [option for change in study.sets for option in ("--set", change)]
    environment = thread_environment(max(run.training.threads for run in request.runs))
    processes = [Process(f"eval worker {i}", argv, log, environment) for i in range(workers)]
    progress = EvalProgress(missing, attempt, workers)
    codes = []
    with closing(run_tasks(processes, workers)) as events, Passing(request.stream) as passing:
        for event in events:
            if event.kind == "finished":
                codes.append(event.exit_code)
            elif event.kind == "tick":
                passing.tell(progress.line)
    progress.refresh()
    if request.stream.isatty():
        request.say(progress.line())
    for pair, reason in progress.failed.items():
        failed.setdefault(reason, []).append(pair.name)
    if progress.open:
        why = f"a worker ended before its time (exit codes {codes}); run it again to go on, see {log}"
        if EXIT_INPUT in codes:
            lines = [
                line
                for line in log.read_text(errors="replace", encoding="utf-8").splitlines()
                if line.startswith("error: ")
            ]
            why = lines[-1].removeprefix("error: ")
        failed[why] = [pair.name for pair in progress.open]
    return list(progress.done.values())


NAMED = 3  # evaluations that the line names


class EvalProgress:
    """open: pairs without a result; done: the new results; failed: why. A pair is expected to take what its task took
    elsewhere, by the cost of the model's tokens."""

    def __init__(self, missing: Sequence[Pair], attempt: str, workers: int) -> None:
        self.open = list(missing)
        self.done: dict[Pair, Result] = {}
        self.failed: dict[Pair, str] = {}
        self._attempt, self._workers = attempt, workers
        self._total = len(self.open)
        self._begun = time.monotonic()
        runs = {pair.checkpoint.run.run_id: pair.checkpoint.run for pair in missing}
        self._work = {run_id: expected_work(run) / run.n_tokens for run_id, run in runs.items()}

    def refresh(self) -> None:
        """Look for new results and failures."""
        left = []
        for pair in self.open:
            if (result := pair.stored()) is not None:
                self.done[pair] = result
            elif (reason := pair.failed(self._attempt)) is not None:
                self.failed[pair] = reason
            else:
                left.append(pair)
        self.open = left

    def line(self) -> str:
        """One line for people: counts, time left, what the workers are at."""
        from analysis.claims import progress_of

        self.refresh()
        now = [(pair, progress_of(pair.checkpoint.results, pair.task.name)) for pair in self.open]
        shares = {pair: share for pair, share in now if share is not None}
        text = f"eval: {len(self.done)}/{self._total} done"
        text += f", {len(self.failed)} failed" if self.failed else ""
        left = self.left_s(shares)
        so_far = time.monotonic() - self._begun
        text += f", {duration(round(left))} left" if left is not None else f", {duration(round(so_far))} so far"
        at = [f"{pair.name} {share:.0%}" for pair, share in list(shares.items())[:NAMED]]
        return f"{text}; {'; '.join(at)}" if at else text

    def left_s(self, shares: dict[Pair, float]) -> float | None:
        """Seconds to the end; None before anything is done."""
        if not self.done:
            return None
        pace: dict[str, list[float]] = {}
        for pair, result in self.done.items():
            took = result.seconds + result.setup_seconds
            pace.setdefault(pair.task.name, []).append(took / self._work[pair.checkpoint.run.run_id])
        means = {task: sum(paces) / len(paces) for task, paces in pace.items()}
        typical = sum(means.values()) / len(means)
        left = sum(
            means.get(pair.task.name, typical) * self._work[pair.checkpoint.run.run_id] * (1 - shares.get(pair, 0.0))
            for pair in self.open
        )
        return left / min(self._workers, max(1, len(self.open)))
