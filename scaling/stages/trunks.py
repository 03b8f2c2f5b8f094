"""Whether the trunks are there that chosen branches begin from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arch.errors import InputError

from ..rundir.worklist import is_trained
from ..study.only import without_branch

if TYPE_CHECKING:
    from ..study.run import RunSpec
    from .pipeline import Request


def check_trunks(request: Request) -> None:
    """Raise InputError where a chosen branch is to be trained and its trunk is neither trained nor chosen."""
    chosen = {run.run_id for run in request.runs}
    whole: list[RunSpec] = []
    for run in request.runs:
        if run.trunk is None or run.trunk in chosen or is_trained(run, request.rundir(run)):
            continue
        whole = whole or request.study.runs(without_branch(request.only))
        trunk = next(one for one in whole if one.run_id == run.trunk)
        if not is_trained(trunk, request.rundir(trunk)):
            raise InputError(
                f"--only {request.only}: {run.run_id} begins from its trunk {trunk.run_id}, which is not trained: "
                f"train its trunk first, or leave --only out"
            )
