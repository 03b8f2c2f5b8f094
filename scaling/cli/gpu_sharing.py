"""How the GPUs of this machine are used while runs train: small runs share one, and the kernels of later models are
compiled on the cores that are left.

Small runs take turns in one process, each on a stream of its own (scaling.trainer.turns). What that gains is in
docs/research/trainer-speed.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from arch.arguments import plugin_words
from jobs import local
from jobs.local import Task

from ..rundir.directory import RunDir
from ..rundir.worklist import thread_environment
from ..study.cost import memory_bytes
from ..study.jobs_schema import Jobs
from ..study.run import RunSpec

# (numbers in an activation [positions of a pass, d_model], runs at once; how many times as fast as one after another
# two of them are, and four or more, at least): more numbers or runs gained less than a tenth
MOST = ((1_000_000, 8, 1.6, 2.5), (3_000_000, 4, 1.25, 1.4), (10_000_000, 4, 1.1, 1.1))
GIB = 2**30
ROOM, LITTLE_ROOM = 12 * GIB, 3 * GIB  # bytes of all runs of a GPU together: at most, and of an unknown GPU
SHARE = 1 / 3  # of its memory, at most: allocators keep more than is computed, for each run
LAYERS = 2  # of a model that is compiled: the first and another; more call the same kernels again, and need memory
COMPILERS = 6  # at most on a GPU; each takes up to a twentieth of its memory, and its context
Prepared = tuple[RunSpec, RunDir]


def shares_of(runs: Sequence[RunSpec], jobs: Jobs) -> list[float]:
    """The share of its process that each of `runs` gets on this machine's GPUs; 1 where a run has one alone. Where the
    study asks for more processes than there are GPUs, each trains one run, or as many as it says."""
    n_gpus = len(local.visible_gpus())
    if not n_gpus or jobs.processes > 1 or ((jobs.parallel or 0) > n_gpus and jobs.runs_per_gpu is None):
        return [1.0] * len(runs)
    memory = local.gpu_memory_bytes()
    room = (min(ROOM, SHARE * memory) if memory else LITTLE_ROOM) / -(-(jobs.parallel or 1) // n_gpus)
    return [1 / runs_together(run, jobs.runs_per_gpu, room) for run in runs]


def runs_together(run: RunSpec, runs_per_gpu: int | None, room: float) -> int:
    """How many runs like this one train on a GPU at the same time; runs_per_gpu: of the study; room: bytes of all."""
    if not run.cuda_graphs or run.training.zero_stage:  # the host, which they share, is busy with one
        return 1
    most = next((n for limit, n, *_ in MOST if _numbers(run) <= limit), 1)
    if runs_per_gpu is not None and most > 1:
        most = runs_per_gpu
    memory = memory_bytes(run, 1, kernels=True)
    return max(1, min(most, int(room // memory))) if memory else 1


def gains_of(runs: Sequence[RunSpec], shares: Sequence[float], slots: int) -> dict[str, float]:
    """{run id: how many times as fast it and those beside it train as one after another}, of runs with these shares of
    a GPU, where `slots` GPUs or groups of them train at once; only those that gain."""
    small = [(run, share) for run, share in zip(runs, shares, strict=True) if share < 1]
    runs_per_slot = -(-len(small) // slots)  # on each
    gains = dict[str, float]()
    for run, share in small:
        together = min(round(1 / share), runs_per_slot)
        if together > 1:
            two, four = next(gains for limit, _, *gains in MOST if _numbers(run) <= limit)
            gains[run.run_id] = four if together >= 4 else two
    return gains


def _numbers(run: RunSpec) -> int:
    """Numbers in an activation of a pass."""
    return run.batch_split(1).micro_rows * run.config.positions(run.context_length) * run.config.d_model


def compiled_ahead(runs: Sequence[Prepared], at_once: int) -> list[Prepared]:
    """One of `runs`, in the order of training, for each set of kernels that the first `at_once` do not compile."""
    by_kernels: dict[str, Prepared] = {}
    for item in runs:
        by_kernels.setdefault(_kernels_of(item[0]), item)
    first = {_kernels_of(run) for run, _ in runs[:at_once]}
    return [item for name, item in by_kernels.items() if name not in first]


def _kernels_of(run: RunSpec) -> str:
    """Runs with the same value call the same kernels."""
    training, model = run.training, run.model | {"n_layers": min(LAYERS, run.config.n_layers)}
    return json.dumps(
        [model, run.batch_split(1).micro_rows, training.precision, training.checkpoint_dtype, run.recompute],
        sort_keys=True,
    )


def compile_tasks(runs: Sequence[Prepared], at_once: int, log: Path, shares: Sequence[float] = ()) -> list[Task]:
    """The tasks that compile for `runs` beside their training; none where there is no GPU or no core to spare.

    shares: of a GPU, of each run; left out: each has one for itself.
    """
    shares = shares or [1.0] * len(runs)
    models = compiled_ahead(runs, at_once)  # those in company of a first run begin when that has compiled its own
    n_gpus = len(local.visible_gpus())
    n = min(len(models), len(local.visible_cores()) - 2 * at_once, COMPILERS * n_gpus)
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
