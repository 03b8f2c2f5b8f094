"""The store over which the processes of a run find each other. Waits end after ten minutes, or at a signal."""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta

from torch.distributed import Store, TCPStore

from arch.amounts import first_few
from arch.errors import InputError

from ..rundir.launcher import Ranks
from .stop import Stopped, StopRequest

PATIENCE_S = 600.0  # for the others to import PyTorch from a cold file system
SILENT_S = 5.0  # then a line says what the process waits for
POLL_S = 0.1
CONNECT_S = 2.0


def shared_store(ranks: Ranks, stop: StopRequest) -> Store:
    """The store at `ranks.address`, once all processes of the run have reached it. The first process opens it, unless
    torchrun or jobs.task has.

    Raises InputError where some do not arrive within ten minutes, and Stopped where a signal ends the wait.
    """
    host, _, port = ranks.address.rpartition(":")
    wait = _Wait(ranks, stop)
    opens = ranks.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        if opens:
            store = TCPStore(host, int(port), ranks.world, True, timedelta(seconds=PATIENCE_S), wait_for_workers=False)
        else:
            while not _answers(host, int(port)):
                wait.longer(f"rank 0 at {ranks.address}")
            store = TCPStore(host, int(port), ranks.world, False, timedelta(seconds=PATIENCE_S))
        store.set(f"here/{ranks.rank}", "1")
        missing = list(range(ranks.world))
        while missing := [rank for rank in missing if not store.check([f"here/{rank}"])]:
            wait.longer(f"rank{'s' * (len(missing) > 1)} {first_few(missing, 5)} at {ranks.address}")
    except RuntimeError as error:  # the store's own: its port is taken, its process has ended
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{wait.who}: cannot reach the other processes at {ranks.address} ({why}); {ADVICE}") from None
    return store


ADVICE = "start all processes with torchrun, or unset RANK and WORLD_SIZE to train in one process"


class _Wait:
    """A wait that prints a line after some seconds."""

    def __init__(self, ranks: Ranks, stop: StopRequest) -> None:
        self.who = f"rank {ranks.rank} of {ranks.world}"
        self._stop, self._begun, self._is_printed = stop, time.monotonic(), False

    def longer(self, what: str) -> None:
        """Sleep for a moment. Raises InputError where `what` has not arrived in time, and Stopped at a signal."""
        if self._stop.name is not None:
            raise Stopped(f"by {self._stop.name}: {self.who} was waiting for {what}")
        waited = time.monotonic() - self._begun
        if waited > PATIENCE_S:
            raise InputError(f"{self.who}: {what} did not come in {PATIENCE_S:.0f} s; {ADVICE}")
        if waited > SILENT_S and not self._is_printed:
            self._is_printed = True
            print(f"{self.who}: waiting for {what}, for up to {PATIENCE_S:.0f} s", file=sys.stderr, flush=True)
        time.sleep(POLL_S)


def _answers(host: str, port: int) -> bool:
    """Whether a server listens there. (PyTorch's own attempts would fill the log.)"""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S):
            return True
    except OSError:
        return False
