"""The owner of a run: of several processes that set out to train it, the last one alone may write.

A scheduler that loses sight of a node starts its jobs again elsewhere, while the old process may live on and write. So
each process that sets out first leaves a file <run>/attempts/SUBMISSION.JOB.RESTART.LOCAL.json, whose name is its
token; tokens are ordered, files never replaced by another's, and the greatest is the owner. The owner's token is read
again before every write (data.files.guarded) and every few seconds beside the training: an older process ends by itself
with exit code 76, even one that waits for a lost peer. Imports no torch.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from data.files import read_json, write_json

NAMED = re.compile(r"\d+(\.\d+){3}\.json", re.ASCII)
OF_ATTEMPTS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("schema", "pid", "step", "exit_code", "processes"), int),
    **dict.fromkeys(("token", "host", "hardware", "reason"), str),
    **dict.fromkeys(("started", "peak_memory_gb"), (int, float)),
    "rendezvous": dict,
}
SUPERSEDED = 76  # exit code: a newer process owns the run
WATCH_S = 5.0
LATEST = 1e11  # of a Unix time: after the year 5000, which no date is made of


class Superseded(RuntimeError):
    """A newer process owns the run: this one must not write any more."""


@dataclass(frozen=True, order=True)
class Token:
    """Later is greater: by submission, then job id, then how often the job was started again, then processes started
    by hand, which follow whatever was there."""

    submission: int = 0
    job: int = 0
    restart: int = 0
    local: int = 0

    def __str__(self) -> str:
        return "{:04d}.{:010d}.{:04d}.{:04d}".format(*astuple(self))


def tokens(run: Path) -> list[Token]:
    """The token of every process that set out to train the run at `run`, oldest first."""
    try:
        names = os.listdir(run / "attempts")
    except FileNotFoundError:
        return []
    return sorted(Token(*map(int, name.removesuffix(".json").split("."))) for name in names if NAMED.fullmatch(name))


def attempts(run: Path) -> list[dict[str, Any]]:
    """What those processes left: token, host, pid, started (Unix time), step of the state they found (0: none), and
    what else was recorded of them. Of a record that is damaged, which no number rests on, what can be read is left, the
    token, and what is wrong (`damaged`)."""
    return [_record(run, token) for token in tokens(run)]


def last_attempt(run: Path) -> dict[str, Any] | None:
    """What the newest of them left; None before the first."""
    attempt_tokens = tokens(run)
    return _record(run, attempt_tokens[-1]) if attempt_tokens else None


def _record(run: Path, token: Token) -> dict[str, Any]:
    """All that was recorded, and `step`, less the keys of OF_ATTEMPTS whose value is not of their kind; `damaged`
    names these."""
    try:
        read = read_json(_file(run, token))
    except (OSError, ValueError):
        read = None
    known = read if isinstance(read, dict) else {}
    wrong = [key for key, value in known.items() if not _is_kind(key, value)]
    kept = {key: value for key, value in known.items() if key not in wrong}
    if wrong or known is not read:
        kept["damaged"] = f"attempts/{token}.json is damaged: {', '.join(wrong) or 'all of it'}"
    return {"step": 0} | kept | {"token": str(token)}


def _is_kind(key: str, value: Any) -> bool:
    if key == "started" and isinstance(value, int | float) and abs(value) >= LATEST:
        return False
    return key not in OF_ATTEMPTS or (isinstance(value, OF_ATTEMPTS[key]) and not isinstance(value, bool))


def _file(run: Path, token: Token) -> Path:
    return run / "attempts" / f"{token}.json"


class Attempt:
    """One process's attempt to train the run at `run`: it owns the run, and may write it, until a newer one registers.

    analysis.claims shares out evaluations; scaling.rundir.lock keeps two commands from one directory.
    """

    def __init__(self, run: Path, token: Token) -> None:
        self.run, self.token = run, token

    def register(self) -> None:
        """Become the owner. Raises Superseded where a newer process was there before."""
        if not _file(self.run, self.token).exists():
            (self.run / "attempts").mkdir(parents=True, exist_ok=True)
            states = [int(path.name) for path in self.run.glob("state/[0-9]*") if path.name.isdigit()]
            record = {"schema": 1, "token": str(self.token), "host": this_host()}
            record |= {"pid": os.getpid(), "started": time.time(), "step": max(states, default=0)}
            write_json(_file(self.run, self.token), record, kind="attempt")
        self.check()

    def record(self, **more: Any) -> None:
        """Add to what the attempt left."""
        self.check()
        write_json(_file(self.run, self.token), self.read() | more, kind="attempt")

    def read(self) -> dict[str, Any]:
        """This attempt's record, as of `attempts`; before it is registered too."""
        return _record(self.run, self.token)

    def check(self) -> None:
        """Raise Superseded where this is no longer the owner; before every write."""
        attempt_tokens = tokens(self.run)
        if self.token not in attempt_tokens:
            raise Superseded(f"{self.run}: attempt {self.token} is gone from {self.run / 'attempts'}")
        if attempt_tokens[-1] > self.token:
            raise Superseded(f"{self.run}: attempt {attempt_tokens[-1]} has taken over from {self.token}")

    def watch(self) -> None:
        """End this process from a thread beside it as soon as a newer one owns the run: it may be waiting for a peer
        that is lost, and holds the run's lock as long as it lives."""
        threading.Thread(target=self._watch, name="owner", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_S)
            attempt_tokens = tokens(self.run)
            if attempt_tokens and attempt_tokens[-1] > self.token:
                with suppress(OSError):  # the reader may be gone
                    print(f"{self.run}: attempt {attempt_tokens[-1]} has taken over from {self.token}", file=sys.stderr)
                    sys.stderr.flush()
                os._exit(SUPERSEDED)


def attempt_by_hand(run: Path) -> Attempt:
    """Take the run over from its last owner; the caller holds its lock, so no other process trains it."""
    attempt_tokens = tokens(run)
    last = attempt_tokens[-1] if attempt_tokens else Token()
    attempt = Attempt(run, replace(last, local=last.local + 1))
    attempt.register()
    return attempt


def this_host() -> str:
    """The name of this machine, as its scheduler knows it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
