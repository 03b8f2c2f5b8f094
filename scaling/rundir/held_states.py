"""Training states that a trunk keeps for its branches: held until all that begin there are trained."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from arch.errors import InputError

from ..study.run import RunSpec
from .directory import RunDir
from .lock import is_locked
from .worklist import is_trained


def without_trunk(trunk: str | None) -> str:
    """Why a branch is not trained whose trunk failed."""
    return f"not trained: its trunk {trunk} failed"


def release_states(runs_dir: Path, runs: Iterable[RunSpec]) -> None:
    """Remove the states of these runs' trunks that no branch of theirs needs, or needs any more; the newest
    training.keep_states stay, as of any run, and a trunk in training is left alone. A branch that failed may be tried
    again (--retry-failed, or its directory removed): it needs its state."""
    names = {run.trunk if run.trunk is not None else run.run_id for run in runs if run.trunk or run.branches}
    for name in sorted(names):
        trunk = RunDir(runs_dir / name)
        if not trunk.run_json.exists() or is_locked(trunk.path):
            continue
        run = trunk.spec()
        needed = {step for branch, step in run.branches.items() if not _is_done(RunDir(runs_dir / branch))}
        states = [state.step for state in trunk.states(verify=False)]
        for step in states[: -run.training.keep_states]:
            if step not in needed:
                shutil.rmtree(trunk.state(step))


def _is_done(branch: RunDir) -> bool:
    try:
        return is_trained(branch.spec(), branch)
    except InputError:  # not even prepared
        return False
