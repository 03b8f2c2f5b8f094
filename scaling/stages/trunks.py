"""Whether the trunks are there that chosen branches begin from, with the states where they begin, and their merged
weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arch.errors import InputError

from ..rundir.worklist import is_trained
from ..study.only import without_branch

if TYPE_CHECKING:
    from ..study.run import RunSpec
    from .pipeline import Request


def check_trunks(request: Request) -> None:
    """Raise InputError where a chosen branch is to be trained and its trunk is neither trained nor chosen, or is
    trained and kept no state where the branch begins."""
    chosen = {run.run_id: run for run in request.runs}
    whole: dict[str, RunSpec] = {}
    for run in request.runs:
        rundir = request.rundir(run)
        if run.trunk is None or is_trained(run, rundir) or rundir.status()["state"] == "failed":
            continue
        if run.trunk not in chosen:
            whole = whole or {one.run_id: one for one in request.study.runs(without_branch(request.only))}
        trunk = chosen.get(run.trunk) or whole[run.trunk]
        at = request.rundir(trunk)
        if not is_trained(trunk, at):
            if run.trunk not in chosen:
                raise InputError(
                    f"--only {request.only}: {run.run_id} begins from its trunk {run.trunk}, which is not trained: "
                    f"train its trunk first, or leave --only out"
                )
            continue
        kept = [state.step for state in at.states(verify=False)]
        begun = [state for state in rundir.states(verify=False) if state.step > run.begins_after]
        if not begun and run.begins_after not in kept and (why := at.weights_elsewhere):
            raise InputError(f"{run.run_id} begins after step {run.begins_after} of its trunk, and {why}")
        if not begun and run.begins_after not in kept:
            raise InputError(
                f"{run.run_id} begins after step {run.begins_after} of its trunk, and the trunk kept no state there: "
                f"{at.path} has {', '.join(map(str, kept)) or 'none'}; remove that directory to train the trunk again, "
                f"or take the branch out of training.branches"
            )


def not_merged(request: Request) -> list[str]:
    """A line for each trained run that lacks merged points which the study asks for."""
    told = []
    for run in request.runs:
        rundir = request.rundir(run)
        if rundir.status()["state"] == "done":
            missing = [step for step in run.merged_after if not rundir.has_merged(step, run.training)]
            if missing:
                told.append(
                    f"eval: {run.run_id} has no merged weights after steps {', '.join(map(str, missing))}: it was "
                    f"trained without training.merge_last or with another, or they were lost; remove its directory to "
                    f"train it again"
                )
    return told
