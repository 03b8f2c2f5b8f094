"""Independent pieces of work on several cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any

MOST = 16  # processes: more would take longer to start than they save
LOADED = "analysis.design.choose"  # what the processes need, imported once before they are forked

# As `map`: from a function and items to results in the items' order. All may cross to another process: the function
# is a module's, or a partial of such a function, and items and results are plain data.
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@contextmanager
def on_cores(cores: int) -> Iterator[Each]:
    """A `map` on so many cores at once; the built-in map for one core. On exit unfinished work is dropped."""
    if cores < 2:
        yield map
        return
    from concurrent.futures import ProcessPoolExecutor

    # no plain fork: what other threads of this process hold would be held in the child for ever
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload([LOADED])
    pool = ProcessPoolExecutor(min(cores, MOST), context, initializer=_follow_the_parent)
    try:
        yield pool.map
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _follow_the_parent() -> None:
    """In a worker: end when the parent ends. A pool that waits for work does not notice that by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too, and gives the pool up
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
