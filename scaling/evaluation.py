"""The evaluation stage: which checkpoints have no result yet, and workers that evaluate them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from arch.errors import InputError
from data.files import read_manifest

from .progress import clock
from .spec import RunSpec, StudySpec
from .worklist import expected_work, thread_environment

if TYPE_CHECKING:
    from analysis.evals.loss import LossSettings, Pending
    from data.corpus import Corpus

    from .commands import Request


def eval_stage(request: Request) -> list[str]:
    """Evaluate every checkpoint that has no valid result; returns a line for each that was skipped."""
    from data.corpus import open_corpus
    from jobs.local import Task, run_tasks

    study, log = request.study, request.study.directory / "eval.log"
    corpus = open_corpus(request.corpus_directory)
    pending, warnings = pending_evaluations(request, corpus)
    request.say(f"eval: {len(pending)} checkpoints to do")
    workers = min(study.jobs.parallel, len(pending))
    sets = [option for change in study.sets for option in ("--set", change)]
    command = [sys.executable, "-m", "scaling.cli", "eval", study.path, "--out", study.out, *sets]
    environment = thread_environment(max(run.training.threads for run in request.runs))
    tasks = []
    for i in range(workers):
        share = [option for one in pending[i::workers] for option in ("--checkpoint", _name(one))]
        tasks.append(Task(f"eval worker {i}", [*command, *share], log, environment))
    if not tasks:
        return warnings
    begun = shown = time.monotonic()
    with closing(run_tasks(tasks, workers)) as events:
        for event in events:
            now = time.monotonic()
            if event.kind == "tick" and now - shown >= (1.0 if request.stream.isatty() else 10.0):
                shown, done = now, len(pending) - len(pending_evaluations(request, corpus)[0])
                left = f", {clock((now - begun) * (len(pending) - done) / done)} left" if done else ""
                request.line(f"eval: {done}/{len(pending)} checkpoints{left}", True)
    left_over, _ = pending_evaluations(request, corpus)
    damaged = [one for one in left_over if read_manifest(one.checkpoint) is None]
    if len(damaged) < len(left_over):
        number = len(left_over) - len(damaged)
        raise InputError(f"eval: {number} checkpoints could not be evaluated; the reason is in {log}")
    request.line(f"eval: done, {clock(time.monotonic() - begun)}", False)
    return [*warnings, *(f"{_name(one)}: wrong checksum; skipped" for one in damaged)]


def eval_worker(request: Request, names: Sequence[str]) -> None:
    """Evaluate the named checkpoints in this process: "run_id/step", or "run_id" for all that the run still lacks.

    Holds no lock: `eval_stage` or a cluster's job gives every worker its own share.
    """
    import torch

    from analysis.evals.loss import Pending, evaluate_runs
    from data.corpus import open_corpus

    torch.set_num_threads(max(run.training.threads for run in request.runs))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = {name.partition("/")[0] for name in names}
    corpus = open_corpus(request.corpus_directory) if wanted & set(names) else None
    for run in (run for run in request.runs if run.run_id in wanted):
        rundir = request.rundir(run)
        steps = [int(name.rpartition("/")[2]) for name in names if name.rpartition("/")[0] == run.run_id]
        mine = [Pending(run.run_id, rundir.checkpoint(step), rundir.evaluation(step)) for step in steps]
        if corpus is not None and run.run_id in names:
            mine, _ = pending_of(request, run, corpus)
        for line in evaluate_runs(mine, request.corpus_directory, loss_settings(request.study, run), device):
            print(line, flush=True)


def pending_evaluations(request: Request, corpus: Corpus) -> tuple[list[Pending], list[str]]:
    """Checkpoints to evaluate, the largest models first, and warnings about directories that are no checkpoints."""
    pending: list[Pending] = []
    warnings: list[str] = []
    for run in sorted(request.runs, key=expected_work, reverse=True):
        found, lines = pending_of(request, run, corpus)
        pending += found
        warnings += lines
    return pending, warnings


def pending_of(request: Request, run: RunSpec, corpus: Corpus) -> tuple[list[Pending], list[str]]:
    """The same of one run, in the order of its steps."""
    from analysis.evals.loss import missing

    settings = loss_settings(request.study, run)
    return missing(request.study.directory / "runs", [run.run_id], corpus.fingerprint, settings)


def loss_settings(study: StudySpec, run: RunSpec) -> LossSettings:
    from analysis.evals.loss import LossSettings

    settings = study.evaluation
    return LossSettings(settings.validation_tokens, settings.batch_rows, run.training.precision == "bf16")


def _name(one: Pending) -> str:
    return f"{one.run_id}/{one.checkpoint.name}"
