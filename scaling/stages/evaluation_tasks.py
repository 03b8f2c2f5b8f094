"""The tasks that checkpoints are evaluated on: which a study asks for, whether they can be, and what each reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arch.errors import InputError

from .request import Request

if TYPE_CHECKING:
    from analysis.evals.task import Plan, Task, TaskContext

    from ..study.run import RunSpec


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


def task_context(request: Request) -> TaskContext:
    """What the study's tasks are made with. Raises InputError for settings of the held-out loss in the wrong place."""
    from analysis.evals.task import TaskContext

    evaluation = request.study.evaluation
    if "validation" in evaluation.settings:
        raise InputError(
            f"{request.study.origin}: evaluation.settings.validation: write evaluation.validation_tokens and batch_rows"
        )
    validation = {"validation_tokens": evaluation.validation_tokens, "batch_rows": evaluation.batch_rows}
    folder = Path(evaluation.data).expanduser() if evaluation.data else None
    return TaskContext(request.corpus_directory, folder, {"validation": validation} | evaluation.settings)


def eval_tasks(request: Request, options: EvalOptions) -> list[Task]:
    """The tasks to evaluate; without options held-out loss and what the study file names. Raises InputError: a task
    that is not known, settings that cannot be."""
    from analysis.evals.registry import make_tasks

    return make_tasks(options.tasks or ("validation", *(request.study.evaluation.tasks or ())), task_context(request))


def task_names(request: Request) -> list[str] | None:
    """The names of the study's tasks; None where they cannot be made; `check` says why. Imports nothing for a
    study that names none."""
    if not request.study.evaluation.tasks:
        return ["validation"]
    try:
        return [task.name for task in eval_tasks(request, EvalOptions())]
    except InputError:
        return None


def check_settings(request: Request, tasks: Sequence[Task]) -> None:
    """Raise InputError where a task does not suit one of the runs' models."""
    from analysis.evals import planning

    models = planning.readers(request.corpus_directory, request.study.corpus.tokenizer, request.runs)
    planning.check_settings(tasks, models.values())


def check(request: Request, data_later: bool = False) -> list[str]:
    """Raise InputError, before anything runs, where the evaluations that the study asks for cannot be: a task that is
    not known, settings that contradict each other or the runs, data that are missing or of another form.

    data_later: where data are not there, as a study that is only planned may be, is no error: returned are lines that
    say so. Loads no torch, and nothing for a study that asks for nothing beside its held-out loss.
    """
    evaluation = request.study.evaluation
    if not (evaluation.tasks or evaluation.settings or evaluation.data):
        return []
    from analysis.evals.planning import check_data
    from analysis.evals.registry import entry_of, make_tasks
    from analysis.evals.task import MissingData

    context = task_context(request)
    make_tasks([name for name in evaluation.settings if entry_of(name)], context)  # checks all settings
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


def planned(request: Request, options: EvalOptions | None = None) -> dict[str, dict[str, Plan]]:
    """{run id: {task: what one evaluation of one of its checkpoints reads}}. Loads no torch; a task from outside that
    does not know is left out. Raises InputError where a task's data are missing."""
    from analysis.evals import planning

    tasks = eval_tasks(request, options or EvalOptions())
    readers = planning.readers(request.corpus_directory, request.study.corpus.tokenizer, request.runs)
    return {
        run_id: {task.name: plan for task in tasks if (plan := task.plan(reader)) is not None}
        for run_id, reader in readers.items()
    }


def planned_tokens(request: Request, run: RunSpec) -> dict[str, int]:
    """{task: forward tokens of one evaluation of one checkpoint of `run`}, of the tasks that the study asks for; those
    from outside that do not know are left out. Exact or an estimate: `planned` says. Raises InputError as that does."""
    if not _last or _last[0][0] is not request:
        _last[:] = [(request, planned(request))]
    return {task: plan.tokens for task, plan in _last[0][1][run.run_id].items()}


_last: list[tuple[Request, dict[str, dict[str, Plan]]]] = []  # of the last request
