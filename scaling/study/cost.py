"""What the training of a run takes on a device: seconds of a step, bytes of memory and of disk. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arch.amounts import byte_size, counted
from arch.errors import InputError
from flops import checkpoint_bytes, training_memory
from flops.hardware import DEVICES, Device
from flops.pace import Pace, pace

from .merging import most_sources
from .run import RunSpec

MERGED_KEYS = ("n_merged", "merged_bytes", "merging_bytes")


def processes_on(run: RunSpec, device: Device, units: int) -> int:
    """Processes that work on `units` devices: one on each GPU, on cores as many as their threads fill."""
    return units if device.unit == "GPU" else max(1, units // run.training.threads)


def pace_of(run: RunSpec, device: Device, units: int = 1, mfu: float | None = None, convention: str = "exact") -> Pace:
    """The pace of the run's steps on `units` devices; mfu and convention as of flops.pace."""
    passes = run.batch_split(processes_on(run, device, units)).passes
    replayed = run.training.zero_stage == 0
    return pace(run.config, run.training.batch_tokens, device, units, passes, mfu, convention, replayed)


def expected_work(run: RunSpec) -> float:
    """Seconds on one CPU core: orders the runs, longest first, and shares out the time left; nothing else."""
    return run.trained_steps * pace_of(run, DEVICES["cpu"]).step_seconds


def memory_bytes(run: RunSpec, processes: int, kernels: bool) -> float | None:
    """Bytes of each process while the run trains; kernels: with the Triton kernels, as GPUs train. None where the costs
    of a plugin's architecture are not known."""
    training, split = run.training, run.batch_split(processes)
    try:
        lines = training_memory(
            run.config,
            micro_batch_tokens=split.micro_rows * run.context_length,
            zero_stage=training.zero_stage,
            world_size=processes,
            precision=training.precision,
            recompute=run.recompute,
            accumulate=split.passes > 1,
            kernels=kernels,
        )
    except InputError:
        return None
    return lines["total"]


def merged_files(run: RunSpec) -> dict[str, Any]:
    """{"n_merged", "merged_bytes", "merging_bytes"}: the run's merged points, their bytes on disk, and of the fp32
    weights that they are of the most at once, which go as the points are written."""
    number = len(run.merged_after)
    return {
        "n_merged": number,
        "merged_bytes": number * checkpoint_bytes(run.config, run.training.checkpoint_dtype),
        "merging_bytes": most_sources(run.merged_after, run.training) * checkpoint_bytes(run.config, "fp32"),
    }


def merged_note(totals: Mapping[str, Any]) -> str:
    """`merged_files` of all runs together, in words; "" without any."""
    if not totals["n_merged"]:
        return ""
    return (
        f"{counted(totals['n_merged'], 'merged point')} ({byte_size(totals['merged_bytes'])}, and up to "
        f"{byte_size(totals['merging_bytes'])} of weights that they are of while the runs train)"
    )


def states_kept(run: RunSpec) -> int:
    """States on disk after the run: the newest training.keep_states, and of a trunk those from which branches begin,
    until all that begin there are trained."""
    return len({*run.state_steps[-run.training.keep_states :], *run.branch_steps})
