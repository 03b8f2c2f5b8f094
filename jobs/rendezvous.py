"""How the processes of a run find each other: rank 0 listens on a port that the kernel chose and writes it down.

The port is open from the moment it is known, so no other job on the node, and no earlier start of this one, can have
it or take it. It is written into the attempt's own record (scaling.rundir.owner), which no other attempt's processes
read. The others connect as torchrun's workers do, by the same environment variables. NCCL and gloo choose ports in
the same way, so a site where this does not work is one where they do not either.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from arch.errors import InputError
from scaling.rundir.owner import Attempt
from scaling.trainer.stop import Stopped, StopRequest

PATIENCE_S = 600.0  # for rank 0 to import PyTorch from a cold file system
POLL_S = 0.1
_listening: list[Any] = []  # rank 0's server, as long as the process lives


@dataclass(frozen=True)
class SrunTask:
    """This process among those of its srun step; `address` is the first node's, as the others reach it."""

    rank: int
    world: int
    local: int
    local_world: int
    address: str


def publish(attempt: Attempt, message: dict[str, Any]) -> None:
    """Rank 0's message to the other ranks of its attempt."""
    attempt.record(rendezvous=message)


def join(attempt: Attempt, stop: StopRequest, here: SrunTask) -> int | None:
    """Set the environment from which the engine starts its process group; None, or rank 0's exit code where there
    is nothing to train.

    Raises InputError where rank 0 writes nothing for ten minutes, and Stopped where a signal ends the wait.
    """
    if here.world == 1:
        return None
    if here.rank == 0:
        from torch.distributed import TCPStore

        wait = timedelta(seconds=PATIENCE_S)
        server = TCPStore(here.address, 0, here.world, is_master=True, timeout=wait, wait_for_workers=False)
        _listening.append(server)
        message: dict[str, Any] = {"address": here.address, "port": server.port}
        publish(attempt, message)
    else:
        message = _listen(attempt, stop, here.rank)
    if "exit" in message:
        return int(message["exit"])
    os.environ |= {
        "RANK": str(here.rank),
        "WORLD_SIZE": str(here.world),
        "LOCAL_RANK": str(here.local),
        "LOCAL_WORLD_SIZE": str(here.local_world),
        "MASTER_ADDR": str(message["address"]),
        "MASTER_PORT": str(message["port"]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already: no rank opens one
    }
    return None


def _listen(attempt: Attempt, stop: StopRequest, rank: int) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = attempt.read().get("rendezvous")
        if isinstance(message, dict) and (type(message.get("exit")) is int or {"address", "port"} <= message.keys()):
            return message
        if stop.name is not None:
            raise Stopped(f"by {stop.name}: rank {rank} was waiting for rank 0 of attempt {attempt.token}")
        time.sleep(POLL_S)
    raise InputError(
        f"{attempt.run}: rank 0 of attempt {attempt.token} wrote no address into {attempt.run / 'attempts'} for "
        f"{PATIENCE_S:.0f} s; see its log, and whether all nodes see this folder"
    )
