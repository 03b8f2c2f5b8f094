"""Which models' kernels are compiled while others train: those whose turn comes later, on the cores that are left."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arch.arguments import plugin_words

from ..rundir.directory import RunDir
from ..rundir.worklist import thread_environment
from ..study.cost import memory_bytes
from ..study.run import RunSpec

if TYPE_CHECKING:
    from jobs.local import Task

LAYERS = 2  # the first and another: more call the same kernels again, and need memory
COMPILERS = 6  # at most on a GPU; each takes up to a twentieth of its memory, and its context
Prepared = tuple[RunSpec, RunDir]


def kernels_of(run: RunSpec) -> str:
    """Runs with the same value call the same kernels."""
    training, model = run.training, run.model | {"n_layers": min(LAYERS, run.config.n_layers)}
    return json.dumps(
        [model, run.batch_split(1).micro_rows, training.precision, training.checkpoint_dtype, run.recompute],
        sort_keys=True,
    )


def compiled_ahead(runs: Sequence[Prepared], at_once: int) -> list[Prepared]:
    """One of `runs`, in the order of training, for each set of kernels that the first `at_once` do not compile."""
    by_kernels: dict[str, Prepared] = {}
    for item in runs:
        by_kernels.setdefault(kernels_of(item[0]), item)
    first = {kernels_of(run) for run, _ in runs[:at_once]}
    return [item for name, item in by_kernels.items() if name not in first]


def compile_tasks(runs: Sequence[Prepared], at_once: int, log: Path, shares: Sequence[float] = ()) -> list[Task]:
    """The tasks that compile for `runs` beside their training; none where there is no GPU or no core to spare.

    shares: of a GPU, of each run; left out: each has one for itself.
    """
    from jobs.local import Task, visible_cores, visible_gpus

    shares = shares or [1.0] * len(runs)
    models = compiled_ahead(runs, at_once)  # those in company of a first run begin when that has compiled its own
    n_gpus = len(visible_gpus())
    n = min(len(models), len(visible_cores()) - 2 * at_once, COMPILERS * n_gpus)
    if n < 1:
        return []
    log.unlink(missing_ok=True)  # of an earlier start
    needed = [memory_bytes(run, 1, kernels=True) or float("inf") for run, _ in runs]
    largest = max(n_bytes / share for n_bytes, share in zip(needed, shares, strict=True)) * -(-at_once // n_gpus)
    command = [sys.executable, "-m", "scaling.trainer.compile_ahead", "--layers", str(LAYERS)]
    command += ["--beside", f"{largest:.4g}", *plugin_words(sorted({name for run, _ in runs for name in run.plugins}))]
    return [
        Task(f"compile {i}", [*command, *(str(rundir.path) for _, rundir in models[i::n])], log, thread_environment(1))
        for i in range(n)
    ]
