"""Watching a study run: a live display on a terminal, plain lines elsewhere. Reads the tails of the runs' metrics.

Time left is judged by the work done: each run's planned FLOP times a factor for what its architecture's mixer costs on
top, so that a study whose small runs come last does not promise too much.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

from arch.amounts import count, counted
from flops.tables import duration

from ..rundir.directory import RunDir
from ..study.run import RunSpec
from .passing import Throttle


@dataclass
class Watched:
    """One run in the display: `weight` is its share of the work, `done` the part of it that is finished."""

    run: RunSpec
    rundir: RunDir
    weight: float
    done: float = 0.0
    state: str = "waiting"
    row: dict[str, Any] | None = None

    def refresh(self) -> None:
        self.row = self.rundir.last_row()
        made = self.row["step"] - self.run.begins_after if self.row else 0
        self.done = min(1.0, made / self.run.trained_steps)

    def left_s(self, company: float) -> float | None:
        """At its speed so far, which is that of a run that has its device to itself; company: runs on each."""
        speed = self.row.get("tokens_per_s") if self.row else None
        return company * (self.run.trained_tokens * (1 - self.done)) / speed if speed else None


class Progress:
    """Context manager around a training stage, of so many `slots`. Call `started`, `finished` and `tick` as things
    happen."""

    def __init__(self, watched: Sequence[Watched], stream: TextIO = sys.stdout, slots: int = 1) -> None:
        self.watched = {item.run.run_id: item for item in watched}
        self._stream, self._slots = stream, slots
        self._live: Any = None
        self._begun, self._throttle = time.monotonic(), Throttle(stream)
        for item in watched:
            item.refresh()
        self._work_before = self._work()

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            # no refresh thread: children are forked from this process
            self._live = Live(self._picture(), console=Console(file=self._stream), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()

    def started(self, run_id: str) -> None:
        self.watched[run_id].state = "running"
        if not self._live:
            self._say(f"{run_id}: started")

    def lost(self, run_id: str) -> None:
        self.watched[run_id].state = "waiting"
        self._say_now(f"{run_id}: its process ended with another run; it is begun again from its last state")

    def finished(self, run_id: str, state: str, reason: str | None = None) -> None:
        item = self.watched[run_id]
        item.state = state
        item.refresh()
        text = f"{run_id}: {state}" + (f", {self._figures(item)}" if item.row else "")
        text += f" ({reason})" if reason else ""
        self._say_now(text if self._live else f"{text}; {self._overall()}")

    def tick(self) -> None:
        if not self._throttle.is_due():
            return
        active = [item for item in self.watched.values() if item.state == "running"]
        for item in active:
            item.refresh()
        if self._live:
            self._live.update(self._picture(), refresh=True)
        else:
            self._say("; ".join([self._overall(), *(f"{item.run.run_id} {self._figures(item)}" for item in active)]))

    def _say_now(self, text: str) -> None:
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            self._say(text)

    def _say(self, text: str) -> None:
        print(f"[{duration(round(time.monotonic() - self._begun))}] {text}", file=self._stream, flush=True)

    def _work(self) -> float:
        return sum(
            item.weight * (1.0 if item.state in ("done", "failed") else item.done) for item in self.watched.values()
        )

    def left_s(self) -> float | None:
        """Seconds to the end of the stage at the pace so far; None before there is one."""
        total = sum(item.weight for item in self.watched.values())
        gained = self._work() - self._work_before
        elapsed = time.monotonic() - self._begun
        return elapsed * (total - self._work()) / gained if gained > 0.002 * total else None

    def _overall(self) -> str:
        ended = [item for item in self.watched.values() if item.state in ("done", "failed")]
        failed = sum(item.state == "failed" for item in ended)
        left = self.left_s() if len(ended) < len(self.watched) else None
        text = f"{len(ended)}/{counted(len(self.watched), 'run')}" + (f" ({failed} failed)" if failed else "")
        return f"{text}, {duration(round(left))} left" if left is not None else text

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total = sum(item.weight for item in self.watched.values())
        table = Table.grid(padding=(0, 2))
        for item in self.watched.values():
            if item.state == "running":
                bar = ProgressBar(total=1.0, completed=item.done, width=20)
                table.add_row(Text(item.run.run_id), bar, Text(self._figures(item)))
        elapsed = duration(round(time.monotonic() - self._begun))
        whole = ProgressBar(total=total or 1.0, completed=self._work(), width=40)
        head = Table.grid(padding=(0, 2))
        head.add_row(whole, Text(f"{self._overall()}, {elapsed} so far"))
        return Group(head, table)

    def _figures(self, item: Watched) -> str:
        if item.row is None:
            return "starting"
        at_work = sum(one.state == "running" for one in self.watched.values())
        left = item.left_s(max(1.0, at_work / self._slots)) if item.state == "running" else None
        loss, speed = item.row.get("loss"), item.row.get("tokens_per_s")
        text = f"step {item.row['step']:,}/{item.run.n_steps:,}"
        text += f", loss {loss:.3f}" if loss is not None else ""
        text += f", {count(speed)} tokens/s" if speed else ""
        return text + (f", {duration(round(left))} left" if left else "")
