"""The matrix checkpoints x tasks of a study, in the order in which workers take it, and what is missing of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arch.errors import InputError, nearest

from ..study.cost import expected_work
from ..study.find import PACKAGED
from .evaluation_tasks import EvalOptions, check_settings, eval_tasks
from .request import Request

if TYPE_CHECKING:
    from analysis.evals.matrix import Matrix

    from ..study.run import RunSpec


def eval_matrix(request: Request, options: EvalOptions) -> Matrix:
    """The matrix, the largest models first, those of one configuration together. Raises InputError as eval_tasks and
    `expand` do; for a share of no run."""
    from analysis.evals.matrix import expand

    run_ids = [run.run_id for run in request.runs]
    share: dict[str, set[int]] = {}  # steps by run; none of them: all
    for item in options.share:
        name, slash, step = item.partition("/")
        if name not in run_ids or (slash and not step.isdigit()):
            raise InputError(f"--checkpoint {item}: is no RUN or RUN/STEP of this study{nearest(name, run_ids)}")
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
