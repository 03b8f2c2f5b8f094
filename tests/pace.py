"""How long something takes, on a machine whose speed and load nobody knows: processor time, in a known one's seconds.

The clock also counts what else the machine does, and a slower processor needs more of its own time. So it is processor
time that limits are set for, divided by how much slower a fixed piece of work was just before, where it was slower.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

N_WORK, WORK_S = 950_000, 0.1  # what `_work` took where the limits were set


def seconds(call: Callable[[], object], times: int = 3) -> float:
    """Of the quickest of `times` calls, here and in processes that they start and wait for."""
    found = []
    for _ in range(times):
        begun = _used()
        _work()
        between = _used()
        call()
        found.append((_used() - between) / max(1.0, (between - begun) / WORK_S))
    return min(found)


def _used() -> float:
    """Processor seconds of this process and of its children that have ended, user's and system's."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def _work() -> None:
    """Plain Python, as most of what is timed."""
    table: dict[int, str] = {}
    for i in range(N_WORK):
        table[i * 7919 % 65_536] = str(i)
    sorted(table.values())
