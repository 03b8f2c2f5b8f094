"""How many leases of a machine a study takes: its sweep, its grid, each round of its forecast, with evaluations.

A lease is some GPUs for some minutes. What belongs together ends inside one: a trunk with its branches, a run with its
evaluations. Each stage begins in a lease of its own, since what one finds out is registered before the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.evals.planning import Pace
from arch.errors import InputError
from flops import train_flops_per_token
from flops.hardware import Device
from flops.pace import START_S, start_of

from ..rundir.directory import VALIDATION
from ..study.cost import pace_of
from ..study.run import RunSpec
from ..study.spec import StudySpec
from ..study.sweep import sweep_of
from .evaluation import eval_tasks, planned_tokens
from .gpu_sharing import ROOM, SHARE, gains_of, runs_together
from .request import Request


@dataclass(frozen=True)
class Lease:
    """GPUs of a device, for a time."""

    device: Device
    gpus: int
    seconds: float


@dataclass(frozen=True)
class Stage:
    """name: of what; flops: `exact`; training, evaluation: seconds of one GPU; leases: the seconds that each is used,
    until its last GPU is done."""

    name: str
    n_runs: int
    flops: float
    training: float
    evaluation: float
    leases: list[float]


def stages_of(study: StudySpec, lease: Lease) -> tuple[list[Stage], list[str]]:
    """The stages in the order in which they are trained, and notes on what is not counted. Raises InputError, one line,
    where something that ends inside a lease takes longer."""
    tokens, notes = _tokens_of(study)
    pace = Pace(lease.device, {}, ())
    parts: list[tuple[str, list[RunSpec]]] = [("sweep", sweep_of(study).runs())] if study.sweep else []
    parts.append(("grid", study.runs()))
    rounds = range(len(study.rounds))
    parts += [(f"forecast{f', round {at + 1}' if at else ''}", study.forecast_runs(at)) for at in rounds]
    return [_stage(study, name, runs, lease, pace, tokens) for name, runs in parts], notes


def _tokens_of(study: StudySpec) -> tuple[dict[str, dict[str, int]], list[str]]:
    """{run id: {task: tokens of an evaluation}} of the grid and the forecast, and a note on tasks of which they are not
    known."""
    request = Request(study)
    tokens = planned_tokens(request, data_later=True)
    known = {task for of_run in tokens.values() for task in of_run}
    unknown = [task.name for task in eval_tasks(request) if task.name not in known]
    why = "their data are not here, or they do not say what they read"
    return tokens, [f"evaluations: without {', '.join(unknown)}: {why}"] if unknown else []


def _stage(
    study: StudySpec, name: str, runs: Sequence[RunSpec], lease: Lease, pace: Pace, tokens: dict[str, dict[str, int]]
) -> Stage:
    memory = lease.device.memory_bytes or math.inf
    room = min(ROOM, SHARE * memory)
    apart = study.jobs.processes > 1 or lease.device.unit != "GPU"
    shares = [1.0 if apart else 1 / runs_together(run, study.jobs.runs_per_gpu, room) for run in runs]
    gains = gains_of(runs, shares, lease.gpus)
    units, alone_s, training, evaluation = dict[str, float](), dict[str, float](), 0.0, 0.0
    for run in runs:
        whole = start_of(lease.device) + run.trained_steps * pace_of(run, lease.device).step_seconds
        steps = whole / gains.get(run.run_id, 1.0)
        read = tokens.get(run.run_id, {VALIDATION: study.evaluation.validation_tokens})
        evals = len(run.checkpoint_steps) * math.fsum(pace.seconds(task, run, n) for task, n in read.items())
        training, evaluation = training + steps, evaluation + evals
        family = run.trunk or run.run_id
        units[family] = units.get(family, 0.0) + steps + evals
        alone_s[family] = alone_s.get(family, 0.0) + whole + evals
    longest = max(alone_s, key=lambda family: alone_s[family])
    if (needed := START_S[lease.device.unit] + alone_s[longest]) > lease.seconds:
        raise InputError(
            f"{study.path}: {longest} with its branches and evaluations takes {needed / 60:.3g} min of one "
            f"{lease.device.name}, and a lease has {lease.seconds / 60:g}: plan a shorter run, or longer leases"
        )
    flops = math.fsum(float(train_flops_per_token(run.config, "exact")) * run.trained_tokens for run in runs)
    return Stage(name, len(runs), flops, training, evaluation, _packed(list(units.values()), lease))


def _packed(units: Sequence[float], lease: Lease) -> list[float]:
    """The seconds that each lease is used: the longest unit first, each in the first lease that has a GPU on which it
    ends in time."""
    start, leases = START_S[lease.device.unit], list[list[float]]()
    for seconds in sorted(units, reverse=True):
        for used in leases:
            least = min(range(lease.gpus), key=lambda at: used[at])
            if used[least] + seconds <= lease.seconds:
                used[least] += seconds
                break
        else:
            leases.append([start + seconds, *[start] * (lease.gpus - 1)])
    return [max(used) for used in leases]
