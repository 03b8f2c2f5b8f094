"""What a study will take before anything runs: its plan with the time of what is missing here."""

from __future__ import annotations

import dataclasses
from typing import Any

from arch.amounts import count, counted, flop
from arch.errors import InputError

from ..rundir.directory import RunDir
from ..rundir.worklist import is_trained
from ..study.plan import plan
from ..study.run import RunSpec
from .forecast import trainable
from .request import Request
from .together import gains_of, shares_of
from .trunks import check_trunks


def outstanding(request: Request) -> list[str]:
    """The ids of the runs that `scaling train` would train now. Raises InputError where it would refuse."""
    request.check_runs()
    check_trunks(request)
    todo = [run for run in trainable(request) if not is_trained(run, request.rundir(run))]
    return [run.run_id for run in todo if request.rundir(run).status()["state"] != "failed"]


def timed_plan(request: Request) -> dict[str, Any]:
    """The plan, a warning where training would refuse, and the time that what is missing is expected to take here:
    {"expected": {"seconds", "n_runs", "runs_at_once", "basis": {how it is known: runs}, "n_small", "text"}}."""
    from jobs.expected import expected_time
    from jobs.local import at_once

    todo, done = list[tuple[RunSpec, RunDir]](), list[tuple[RunSpec, RunDir]]()
    for run in request.runs:
        rundir = request.rundir(run)
        if is_trained(run, rundir):
            done.append((run, rundir))
        elif rundir.status()["state"] != "failed":
            todo.append((run, rundir))
    runs, jobs = [run for run, _ in todo], request.study.jobs
    gains = gains_of(runs, shares_of(runs, jobs), at_once(jobs.parallel, jobs.processes))
    expected = expected_time(request.study, todo, done, gains)
    timed = plan(request.study, request.runs)
    timed["notes"] += [f"learning rates (lr: law) are those of {path}" for path in request.lock.files]
    try:
        request.check_runs()
    except InputError as error:
        timed["warnings"].append(f"training refuses: {error}")
    return timed | {"expected": dataclasses.asdict(expected) | {"text": str(expected)}}


def headline(request: Request) -> str:
    """What is to be done and how long that takes, and a line for each warning of the plan."""
    timed = timed_plan(request)
    table = timed["totals"]
    return "".join(f"warning: {line}\n" for line in timed["warnings"]) + (
        f"{request.study.name}: {counted(table['n_runs'], 'run')}, {count(table['n_tokens'])} tokens, "
        f"C = {flop(table['flops_exact'])} FLOP exact; everything goes to {request.study.directory}/\n"
        f"{timed['expected']['text']}"
    )
