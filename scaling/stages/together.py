"""How many runs train on a GPU at the same time: several where their kernels are too small to fill it.

They take turns in one process, each on a stream of its own (scaling.trainer.turns). What that gains is in
scaling/trainer/NOTES.md.
"""

from __future__ import annotations

from ..study.cost import memory_bytes
from ..study.jobs_schema import Jobs
from ..study.run import RunSpec

# (numbers in an activation [tokens of a pass, d_model], runs at once): more gained less than a tenth there
MOST = ((1_000_000, 8), (10_000_000, 4))
ROOM = 12 * 2**30  # bytes of all runs of a GPU together: what smaller GPUs have to spare too


def share_of(run: RunSpec, jobs: Jobs, n_gpus: int) -> float:
    """Of a GPU, for one process that trains `run` on one of `n_gpus`; 1 where it is to be alone."""
    if jobs.processes > 1 or (jobs.parallel or 0) > n_gpus:  # the study shares the GPUs out by itself
        return 1.0
    return 1 / runs_together(run, jobs.runs_per_gpu)


def runs_together(run: RunSpec, asked: int | None) -> int:
    """How many runs like this one train on a GPU at the same time; asked: jobs.runs_per_gpu."""
    if not run.cuda_graphs or run.training.zero_stage:  # the host, which they share, is busy with one
        return 1
    rows = run.batch_split(1).micro_rows
    numbers = rows * run.context_length * run.config.d_model
    most = next((n for limit, n in MOST if numbers <= limit), 1)
    if asked is not None:
        most = min(asked, MOST[0][1]) if most > 1 else 1
    memory = memory_bytes(run, 1, kernels=True)
    return max(1, min(most, int(ROOM // memory))) if memory else 1
