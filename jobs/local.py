"""Tasks on this machine, in `parallel` slots: a process for each, or those that serve several, none outliving the
parent.

Children stay in the parent's process group, so that Ctrl-C and a kill of the group reach them. A `kill -9` of the
parent alone reaches no child by itself: each child therefore asks the kernel (Linux' PR_SET_PDEATHSIG, which survives
exec) to be killed when the parent's thread dies. On other systems only the group's signals stop them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from arch.amounts import counted
from scaling.rundir.launcher import what_was_left

from .workers import Task, Worker

POLL_S = 0.05
PATIENCE_S = 600.0  # for a terminated child to save its state; Ctrl-C ends the wait, and the child
SILENT_S = 1.0
KILLED_S = 10.0


@dataclass(frozen=True)
class Event:
    """What happened: "started", "finished" (with exit code; negative: killed by that signal), "skipped" (the task that
    it comes after did not end well), "lost" (its process ended with another task: it waits to be started again) or
    "tick"."""

    kind: str
    task: Task | None = None
    exit_code: int | None = None


def run_tasks(
    tasks: Sequence[Task], parallel: int, tick_s: float = 0.25, ended_well: Callable[[Task, int], bool] | None = None
) -> Generator[Event, None, None]:
    """Run `tasks` in the order given, in `parallel` slots, and yield what happens; a tick at least every `tick_s`. A
    task that comes after another waits for it, and is skipped where that did not end well: with exit code 0, or by
    `ended_well`.

    Must be iterated by the thread that calls it (children die with that thread), and closed (contextlib.closing): an
    exception or Ctrl-C on either side then ends the children before it is raised.
    """
    if notice := what_was_left():
        _say(notice)
    waiting, failed = list(tasks), set[str]()
    cores, gpus = core_slots(parallel), gpu_slots(parallel)
    workers: dict[int, Worker] = {}  # by slot, idle ones included
    ticked = time.monotonic()
    try:
        while waiting or any(worker.tasks for worker in workers.values()):
            while skipped := next((task for task in waiting if task.after in failed), None):
                waiting.remove(skipped)
                failed.add(skipped.name)
                yield Event("skipped", skipped)
            active = [task for worker in workers.values() for task in worker.tasks.values()]
            unfinished = {task.name for task in (*waiting, *active)}
            for task in [task for task in waiting if task.after not in unfinished]:
                slot = _slot_for(task, workers, parallel)
                if slot is None:
                    break  # those behind it wait too, so that it has its turn
                waiting.remove(task)
                if slot in workers and workers[slot].takes(task):
                    workers[slot].give(task)
                else:
                    _end([workers.pop(slot).process] if slot in workers else [])
                    workers[slot] = Worker(task, cores[slot], gpus[slot])
                yield Event("started", task)
            for worker in list(workers.values()):
                ended, lost, untouched = worker.ended()
                waiting = [
                    *untouched,
                    *waiting,
                    *lost,
                ]  # those that need a slot of their own go last: no other waits for them
                for task in (*untouched, *lost):
                    yield Event("lost", task)
                for task, code in ended:
                    if not (code == 0 if ended_well is None else ended_well(task, code)):
                        failed.add(task.name)
                    yield Event("finished", task, code)
                if not (waiting or worker.tasks):
                    worker.dismiss()
            if time.monotonic() - ticked >= tick_s:
                ticked = time.monotonic()
                yield Event("tick")
            time.sleep(POLL_S)
    finally:
        _end([worker.process for worker in workers.values()])


def _slot_for(task: Task, workers: dict[int, Worker], parallel: int) -> int | None:
    """The slot with the least at work of those that can take `task` now: one whose process takes it, or has nothing to
    do, or that has none."""
    shares = {slot: workers[slot].share if slot in workers else 0.0 for slot in range(parallel)}
    taking = {slot for slot, worker in workers.items() if worker.takes(task)}
    free = [slot for slot, share in shares.items() if not share or slot in taking]
    return min(free, key=lambda slot: (shares[slot], slot not in taking, slot), default=None)


@contextmanager
def beside(tasks: Sequence[Task]) -> Iterator[None]:
    """Run all of `tasks` at once while the block does its work, in turn on the GPUs; killed when it ends. They must
    leave nothing unfinished behind."""
    gpus, workers = visible_gpus(), list[Worker]()
    try:
        for index, task in enumerate(tasks):
            workers.append(Worker(task, None, gpus[index % len(gpus)] if gpus else None))
        yield
    finally:
        kill([worker.process for worker in workers])


def core_slots(parallel: int) -> list[set[int] | None]:
    """The cores of each of `parallel` workers: equal, disjoint shares of this process's; None where there are fewer."""
    cores = visible_cores()
    share = len(cores) // parallel
    if not share or not hasattr(os, "sched_setaffinity"):
        return [None] * parallel
    return [set(cores[slot * share : (slot + 1) * share]) for slot in range(parallel)]


def visible_cores() -> list[int]:
    """The cores that this process may use; all of the machine where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def visible_gpus() -> list[str]:
    """The GPUs that this process may see, as CUDA_VISIBLE_DEVICES names them: up to the first entry that is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    names = [name.strip() for name in visible.split(",")]
    return list(takewhile(lambda name: name.isdigit() or name.startswith(("GPU-", "MIG-")), names))


@cache  # the driver takes a while, and both a plan and the training after it need the answer
def gpu_memory_bytes() -> int | None:
    """Of the smallest GPU of this machine, by NVIDIA's driver; None where that has no answer."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        printed = subprocess.run(
            query, capture_output=True, encoding="utf-8", errors="replace", timeout=30, check=True
        ).stdout
        return min(int(line) for line in printed.split()) << 20  # MiB
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def at_once(parallel: int | None, processes: int) -> int:
    """How many tasks of `processes` processes run at once on this machine: `parallel` (jobs.parallel), else as many
    as there are GPUs for, and one without GPUs."""
    return parallel or max(1, len(visible_gpus()) // processes)


def describe_use(parallel: int | None, processes: int) -> str | None:
    """One line on how the GPUs of this machine are used; None where there are none."""
    gpus, runs = len(visible_gpus()), at_once(parallel, processes)
    if not gpus:
        return None
    line = f"{counted(gpus, 'GPU')}: {counted(runs, 'run')} at once, {counted(processes, 'process', 'processes')} each"
    if parallel and runs * processes != gpus:
        idle = gpus - runs * processes
        line += " (jobs.parallel; "
        line += f"{counted(idle, 'GPU')} without work)" if idle > 0 else "more than one on a GPU)"
    return line


def gpu_slots(parallel: int) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each of `parallel` workers: equal, disjoint shares of the GPUs this process may see, one
    each in turn where there are fewer GPUs than workers; None where there is no GPU or one worker (it sees all)."""
    gpus = visible_gpus()
    if not gpus or parallel == 1:
        return [None] * parallel
    share = len(gpus) // parallel
    if not share:
        return [gpus[slot % len(gpus)] for slot in range(parallel)]
    return [",".join(gpus[slot * share : (slot + 1) * share]) for slot in range(parallel)]


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminate, wait, then kill, and wait no longer than all that takes. After a Ctrl-C, which they got too, SIGTERM
    is the same request; a stopped process (SIGSTOP, Ctrl-Z, a debugger) is continued so that it gets it."""
    left = _wait(processes, 0.0)
    for process in left:
        process.terminate()
        process.send_signal(signal.SIGCONT)
    try:
        if left := _wait(left, SILENT_S):
            saving = counted(len(left), "process to save its state", "processes to save their state")
            _say(f"waiting for {saving}; Ctrl-C again kills all at once")
        if left := _wait(left, PATIENCE_S):
            _say(f"killed {_named(left)}, which did not end in {PATIENCE_S:.0f} s; the last saved state stays")
    finally:
        kill(left)
        for pipe in (pipe for process in processes for pipe in (process.stdin, process.stdout) if pipe is not None):
            with suppress(OSError):  # what was for a process that has ended
                pipe.close()


def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill at once. A process that the kernel holds (a file server that does not answer) ends when that releases it."""
    for process in processes:
        process.kill()
    if left := _wait(processes, KILLED_S):
        _say(f"{_named(left)} was killed and has not ended: the kernel holds it; this command no longer waits for it")


def _named(processes: Sequence[subprocess.Popen[bytes]]) -> str:
    pids = ", ".join(str(process.pid) for process in processes)
    return f"process{'es' * (len(processes) > 1)} {pids}"


def _say(line: str) -> None:
    with suppress(OSError):  # the reader may be gone
        print(line, file=sys.stderr, flush=True)


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[subprocess.Popen[bytes]]:
    """Those still running after `seconds`, or none as soon as all have ended."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if process.poll() is None]
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = [process for process in left if process.poll() is None]
    return left
