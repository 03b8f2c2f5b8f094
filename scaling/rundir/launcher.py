"""What launchers say in the environment: which process of how many this is. Imports no torch.

torchrun, mpirun, srun and the controllers of pods set such variables for every process of a job. A process that trains
one run obeys them (`ranks_of`). A command that starts processes itself must not hand them on: each of these would wait
for peers that never come (`alone`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from arch.amounts import first_few
from arch.errors import InputError

OF_LAUNCHERS = re.compile(
    r"((LOCAL_|GROUP_|ROLE_|NODE_|CROSS_)?(RANK|WORLD_SIZE)|(LOCAL|CROSS)_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)|"
    r"(TORCHELASTIC|PET|ACCELERATE|OMPI|PMI2?|PMIX|MV2_COMM_WORLD)_.*|MPI_LOCALN?RANK(S|ID)|"
    r"SLURM_(PROCID|LOCALID|STEP_NUM_TASKS))"
)
PER_PROCESS = ("SLURM_", "PMI", "LOCAL_RANK")  # every step of srun has them, those of one task too
_left = set[str]()


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those of its run; `address`: host:port of the first one's store, "" alone."""

    rank: int = 0
    world: int = 1
    local: int = 0
    address: str = ""


def alone(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without a launcher's variables: the environment of a process that has no peers, or starts them itself."""
    return {name: value for name, value in env.items() if not OF_LAUNCHERS.fullmatch(name)}


def leave() -> None:
    """Make the environment of this process `alone`."""
    for name in os.environ.keys() - alone(os.environ).keys():
        del os.environ[name]
        if not name.startswith(PER_PROCESS):
            _left.add(name)


def what_was_left() -> str | None:
    """One line on that, for a command that starts processes; None from the second time on, and where it was nothing."""
    names = sorted(_left)
    _left.clear()
    message = (
        f"the environment's {first_few(names, 3)}: not used, since this command starts its processes itself "
        f"(jobs.processes of the study says how many a run has)"
    )
    return message if names else None


def ranks_of(env: Mapping[str, str]) -> Ranks:
    """Read the ranks from the variables that torchrun and jobs.task set; without these, one process alone.

    Raises InputError where they are incomplete or do not go together, and in an srun step of several tasks that has
    none of them.
    """
    if "RANK" in env or "WORLD_SIZE" in env:
        if missing := [name for name in ("RANK", "WORLD_SIZE") if name not in env]:
            raise InputError(f"environment: {missing[0]} is missing; start with torchrun, or unset RANK and WORLD_SIZE")
        world = number(env, "WORLD_SIZE", 1)
        rank, local = number(env, "RANK", 0, world - 1), number(env, "LOCAL_RANK", 0, default=0)
        if world == 1:
            return Ranks(rank, world, local)
        if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]:
            raise InputError(
                f"environment: {', '.join(missing)} missing beside RANK={rank} and WORLD_SIZE={world}; start with "
                f"torchrun, or unset RANK and WORLD_SIZE"
            )
        return Ranks(rank, world, local, f"{env['MASTER_ADDR']}:{number(env, 'MASTER_PORT', 1, 65_535)}")
    # A batch script outside srun has SLURM_PROCID too, but no step.
    if "SLURM_PROCID" in env and number(env, "SLURM_STEP_NUM_TASKS", 1, default=1) > 1:
        raise InputError(
            "environment: this is one of several tasks of an srun step; start it with jobs.task, which joins them"
        )
    return Ranks()


def number(env: Mapping[str, str], name: str, least: int, most: int | None = None, default: int | None = None) -> int:
    """The whole number in a variable. Raises InputError for anything else, and outside of `least` to `most`."""
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise InputError(f"environment: {name} is missing")
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) < least or (most is not None and int(text) > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise InputError(f"environment: {name}={text!r}: must be a whole number, {bounds}")
    return int(text)
