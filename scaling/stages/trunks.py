"""Whether the trunks are there that chosen branches begin from, with the states where they begin, and their merged
weights."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from arch.amounts import count, flop
from arch.errors import InputError
from flops import train_flops_per_token

from ..rundir.worklist import is_trained
from ..study.only import without_branch
from ..study.rates import resolve
from .request import Request

if TYPE_CHECKING:
    from ..study.run import RunSpec


def check_trunks(request: Request) -> None:
    """Raise InputError where a chosen branch is to be trained and its trunk is neither trained nor chosen, or is
    trained and kept no state where the branch begins."""
    chosen = {run.run_id: run for run in request.runs}
    whole: dict[str, RunSpec] = {}
    for run in request.runs:
        rundir = request.rundir(run)
        if run.trunk is None or is_trained(run, rundir) or rundir.status()["state"] == "failed":
            continue
        if run.trunk not in chosen and not whole:
            runs = resolve(request.study.runs(without_branch(request.only)), request.lock)
            whole = {run.run_id: run for run in runs}
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
        own_states = [state for state in rundir.states(verify=False) if state.step > run.begins_after]
        if not own_states and run.begins_after not in kept and (why := at.weights_elsewhere):
            raise InputError(f"{run.run_id} begins after step {run.begins_after} of its trunk, and {why}")
        if not own_states and run.begins_after not in kept:
            raise InputError(
                f"{run.run_id} begins after step {run.begins_after} of its trunk, and the trunk kept no state there: "
                f"{at.path} has {', '.join(map(str, kept)) or 'none'}; remove that directory to train the trunk again, "
                f"or take the branch out of training.branches"
            )


def short_trunks(request: Request) -> list[str]:
    """One line on the trunks on disk that end before the study's longest branch begins, and what training them anew
    costs: a longer trunk is another run, which `scaling train` refuses while the old one is there. No line where there
    is none."""
    named = {run.trunk for run in request.runs}
    short, tokens, cost = [], 0.0, 0.0
    for run in (run for run in request.runs if run.run_id in named):
        rundir, n_trained = request.rundir(run), run.n_tokens
        with suppress(InputError):  # a damaged record: `scaling train` says so
            n_trained = rundir.spec().n_tokens if rundir.run_json.exists() else n_trained
        if n_trained < run.n_tokens:
            short.append(f"{run.run_id} ({count(n_trained)} of {count(run.n_tokens)} tokens)")
            tokens += run.n_tokens
            cost += run.n_tokens * float(train_flops_per_token(run.config, "exact"))
    if not short:
        return []
    more = f" and {len(short) - 1} more" if len(short) > 1 else ""
    return [
        f"branches: the longest begins after the end of its trunk as it is on disk: {short[0]}{more}; a longer trunk "
        f"is another run, trained anew from its first step ({count(tokens)} tokens, {flop(cost)} FLOP exact), once the "
        f"old directory is removed: `scaling train` refuses it until then"
    ]


def not_merged(request: Request) -> list[str]:
    """A line for each trained run that lacks merged points which the study asks for."""
    lines = []
    for run in request.runs:
        rundir = request.rundir(run)
        if rundir.status()["state"] == "done":
            missing = [step for step in run.merged_after if not rundir.has_merged(step, run.training)]
            if missing:
                lines.append(
                    f"eval: {run.run_id} has no merged weights after steps {', '.join(map(str, missing))}: it was "
                    f"trained without training.merge_last or with another, or they were lost; remove its directory to "
                    f"train it again"
                )
    return lines
