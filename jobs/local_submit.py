"""The local backend of `scaling submit`: the same plan, folder and record, its jobs as processes of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from arch.amounts import counted
from arch.errors import InputError
from flops.hardware import DEVICES
from scaling.rundir.directory import RunDir
from scaling.rundir.held_states import without_trunk
from scaling.rundir.worklist import reason_of, thread_environment
from scaling.study.jobs_schema import Cluster, ResourceRequest
from scaling.study.spec import StudySpec

from .local import Task, run_tasks, visible_gpus
from .model import ArrayJob, JobPlan
from .records import SUBMITTED, Submission
from .render import ScriptContext

Say = Callable[[str], None]
KINDS = {"corpus": "corpus", "train": "training", "eval": "evaluation", "finish": "fits and report"}


def this_machine(study: StudySpec) -> tuple[StudySpec, Cluster]:
    """The study with what its runs may have here (jobs.processes each), and this machine as a profile."""
    processes = study.jobs.processes
    gpus = len(visible_gpus())
    share = ResourceRequest(gpus_per_node=processes) if gpus else ResourceRequest(tasks_per_node=processes)
    cores = max(os.cpu_count() or 1, gpus, processes)
    profile = Cluster(
        nodes=1,
        cpus_per_node=cores,
        gpus_per_node=max(gpus, processes) if gpus else 0,
        gpu=_gpu_kind() if gpus else "cpu",
        pack_minutes=1,
    )
    jobs = study.jobs.model_copy(update={"resources": dict.fromkeys(study.grid.sizes, share), "cluster": None})
    return study.model_copy(update={"jobs": jobs}), profile


def _gpu_kind() -> str:
    """The name in flops.hardware of this machine's GPUs; h100 where the driver names none of them."""
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        model = next(
            (line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("Model:")), ""
        ).lower()
        for name in DEVICES:
            if name in model:
                return name
    return "h100"


def run(
    submission: Submission,
    plan: JobPlan,
    context: ScriptContext,
    parallel: int,
    train: Callable[[RunDir, bool], Sequence[str]],
    threads: int,
    say: Say,
) -> dict[str, str]:
    """Work through a plan here, `parallel` elements at once; returns {run id: reason} of the runs not trained.

    `train` gives the command line of a run. Raises InputError where corpus, evaluation or report cannot be made.
    """
    failed: dict[str, str] = {}
    submission.record["pid"] = os.getpid()
    submission.save()
    for kind, what in KINDS.items():
        jobs = [job for job in plan.jobs if job.kind == kind]
        tasks = [task for job in jobs for task in _tasks(job, context, train, threads)]
        if not tasks:
            continue
        say(f"{what}: {counted(len(tasks), 'task')}")
        ends = partial(_ended_well, kind, context)
        with closing(run_tasks(tasks, min(parallel, len(tasks)), ended_well=ends)) as events:
            for event in events:
                if event.kind not in ("finished", "skipped") or event.task is None:
                    continue
                reason = _reason(kind, event.task, event.exit_code or 0, context)
                if event.kind == "skipped":
                    reason = without_trunk(event.task.after)
                say(f"{event.task.name}: {reason or 'done'}")
                if reason and kind == "train":
                    failed[event.task.name] = reason
                elif reason and kind != "finish":
                    raise InputError(f"{event.task.name}: {reason}")
        for job in jobs:
            submission.note(job.name, SUBMITTED, None)
    return failed


def _tasks(
    job: ArrayJob, context: ScriptContext, train: Callable[[RunDir, bool], Sequence[str]], threads: int
) -> list[Task]:
    """A task for each run of a training array, for each element of the others."""
    paths = context.paths
    before = os.environ.get("PYTHONPATH")
    environment = {"PYTHONPATH": os.pathsep.join([str(paths.code), *([before] if before else [])])}
    environment |= {"PYTHONSAFEPATH": "1"} | thread_environment(threads)
    if job.kind == "train":
        runs = [run for element in job.elements for run in element]
        dirs = [RunDir(paths.runs / run) for run in runs]
        return [
            Task(run, train(rundir, context.retry), rundir.log, environment, after=rundir.spec().trunk)
            for run, rundir in zip(runs, dirs, strict=True)
        ]
    command = [sys.executable, "-m", "scaling"]
    log = paths.submission / "logs"
    if job.kind == "eval":
        items = [[word for item in element for word in ("--checkpoint", item)] for element in job.elements]
        return [
            Task(
                f"{job.name}_{i}",
                [*command, "eval", "worker", *context.study_arguments, *words],
                log / f"{job.name}_{i}.log",
                environment,
            )
            for i, words in enumerate(items)
        ]
    more = {"corpus": ["train", *context.study_arguments, *context.only, "--prepare"]}
    words = more.get(job.kind, ["finish", *context.study_arguments])
    return [Task(job.name, [*command, *words], log / f"{job.name}.log", environment)]


def _ended_well(kind: str, context: ScriptContext, task: Task, exit_code: int) -> bool:
    return _reason(kind, task, exit_code, context) is None


def _reason(kind: str, task: Task, exit_code: int, context: ScriptContext) -> str | None:
    """Why a task did not end well; None where it did."""
    if kind == "train":
        return reason_of(exit_code, context.paths.runs / task.name)
    if exit_code == 0:
        return None
    lines = [line for line in task.log.read_text(errors="replace", encoding="utf-8").splitlines() if line.strip()]
    return (lines[-1].removeprefix("error: ") if lines else f"exit code {exit_code}") + f" ({task.log})"
