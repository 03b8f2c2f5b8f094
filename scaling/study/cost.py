"""What the training of runs takes on a device: seconds of a step, bytes of memory and of disk; of a whole study for
`flops study`. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arch.amounts import counted, counted_of
from arch.errors import InputError
from flops import checkpoint_bytes, count_params, state_bytes, train_flops_per_token, training_memory
from flops.hardware import DEVICES, FILLED, Device
from flops.pace import START_S, Pace, makespan, pace, start_of

from .run import RunSpec

if TYPE_CHECKING:
    from .spec import StudySpec


def processes_on(run: RunSpec, device: Device, units: int) -> int:
    """Processes that work on `units` devices: one on each GPU, on cores as many as their threads fill."""
    return units if device.unit == "GPU" else max(1, units // run.training.threads)


def pace_of(run: RunSpec, device: Device, units: int = 1, mfu: float | None = None, convention: str = "exact") -> Pace:
    """The pace of the run's steps on `units` devices; mfu and convention as of flops.pace."""
    passes = run.batch_split(processes_on(run, device, units)).passes
    replayed = run.training.zero_stage == 0 and run.sequence_processes == 1
    return pace(run.config, run.training.batch_tokens, device, units, passes, mfu, convention, replayed)


def expected_work(run: RunSpec, device: Device = DEVICES["cpu"]) -> float:
    """Seconds on one core or GPU: orders the runs, longest first, and shares out the time left; nothing else."""
    return run.trained_steps * pace_of(run, device).step_seconds


def memory_bytes(run: RunSpec, processes: int, kernels: bool) -> float | None:
    """Bytes of each process while the run trains; kernels: with the Triton kernels, as GPUs train. None where the costs
    of a plugin's architecture are not known."""
    training, split = run.training, run.batch_split(processes)
    try:
        return training_memory(
            run.config,
            micro_batch_tokens=split.micro_rows * run.context_length,
            zero_stage=training.zero_stage,
            world_size=processes,
            sequence_processes=run.sequence_processes,
            precision=training.precision,
            recompute=run.recompute,
            accumulate=split.passes > 1,
            kernels=kernels,
        )["total"]
    except InputError:
        return None


def what_fits(run: RunSpec, processes: int, kernels: bool, room: float) -> str:
    """What makes the run need at most `room` bytes of each process: the largest micro-batch, or the smallest share of
    the layers recomputed; in words."""

    def fits(changed: RunSpec) -> bool:
        return (memory_bytes(changed, processes, kernels) or math.inf) <= room

    split, ways = run.batch_split(processes), list[str]()
    for rows in range(split.micro_rows - 1, 0, -1):
        micro = {"micro_batch_tokens": rows * run.context_length}
        smaller = run.model_copy(update={"training": run.training.model_copy(update=micro)})
        if split.process_rows % rows == 0 and fits(smaller):
            ways.append(f"training.micro_batch_tokens={micro['micro_batch_tokens']}")
            break
    for share in (0.25, 0.5, 0.75, 1.0):
        if share > run.recompute and fits(run.model_copy(update={"recompute": share})):
            ways.append(f"jobs.recompute={share:g}")
            break
    if ways:
        return f"{' or '.join(ways)} makes it fit"
    return "lower training.micro_batch_tokens, set jobs.recompute and zero_stage, or take more"


def states_kept(run: RunSpec) -> int:
    """States on disk after the run: the newest training.keep_states, and of a trunk those from which branches begin,
    until all that begin there are trained."""
    return len({*run.state_steps[-run.training.keep_states :], *run.branch_steps})


def bytes_of_checkpoints(run: RunSpec) -> float:
    """Of all that the run writes."""
    return len(run.checkpoint_steps) * checkpoint_bytes(run.config, run.training.checkpoint_dtype)


@dataclass(frozen=True)
class RunCost:
    """A run on `devices` devices. n_tokens, n_steps, flops: what it trains itself, of a branch its decay;
    wall_seconds: its start and all steps; memory_bytes: on each device; state_bytes: the states kept for resuming and
    for branches."""

    run: RunSpec
    n_params_non_embedding: int
    n_tokens: int
    n_steps: int
    flops: float
    devices: int
    wall_seconds: float
    pace: Pace
    memory_bytes: float | None
    state_bytes: float
    n_checkpoints: int
    checkpoint_bytes: float

    @property
    def device_hours(self) -> float:
        return self.wall_seconds * self.devices / 3600


@dataclass(frozen=True)
class StudyCost:
    """The runs of a study on `n_devices` devices (cpu: cores), `at_once` at a time, each on an equal share of them;
    mfu: share of the peak, None for what is usual; FLOP under `convention`."""

    study: str
    device: Device
    n_devices: int
    at_once: int
    mfu: float | None
    convention: str
    runs: list[RunCost]
    warnings: list[str]

    @property
    def flops(self) -> float:
        return math.fsum(row.flops for row in self.runs)

    @property
    def first_start_seconds(self) -> float:
        """What the first run of each process takes longer to start than the next ones."""
        starts = [start_of(self.device, processes_on(row.run, self.device, row.devices)) for row in self.runs]
        return START_S[self.device.unit] - min(starts) if starts else 0.0

    @property
    def wall_seconds(self) -> float:
        """From the start of the first process until the last run ends."""
        return self.first_start_seconds + makespan((row.wall_seconds for row in self.runs), self.at_once)


def study_cost(
    spec: StudySpec, runs: Sequence[RunSpec], device: Device, mfu: float | None, n_devices: int, convention: str
) -> StudyCost:
    """What the runs cost on `n_devices` devices, which train jobs.parallel runs at once, or one. Raises InputError
    where the convention does not cover an architecture."""
    at_once = min(spec.jobs.parallel or 1, n_devices)
    share, processes = n_devices // at_once, spec.jobs.processes
    rows = []
    for run in runs:
        units = share if device.unit == "GPU" else min(share, processes * run.training.threads)
        step = pace_of(run, device, units, mfu, convention)
        used = processes_on(run, device, units)
        row = RunCost(
            run=run,
            n_params_non_embedding=count_params(run.config).non_embedding,
            n_tokens=run.trained_tokens,
            n_steps=run.trained_steps,
            flops=train_flops_per_token(run.config, convention) * float(run.trained_tokens),
            devices=units,
            wall_seconds=start_of(device, used) + run.trained_steps * step.step_seconds,
            pace=step,
            memory_bytes=memory_bytes(run, used, device.unit == "GPU"),
            state_bytes=states_kept(run) * state_bytes(run.config),
            n_checkpoints=len(run.checkpoint_steps),
            checkpoint_bytes=bytes_of_checkpoints(run),
        )
        rows.append(row)
    warnings = [*_uneven(runs, device, share), *_idle(rows, device), *_too_large(rows, device)]
    return StudyCost(spec.name, device, n_devices, at_once, mfu, convention, rows, warnings)


def _uneven(runs: Sequence[RunSpec], device: Device, gpus: int) -> list[str]:
    """A line for each size of batch that does not split over the GPUs, naming the numbers around that it does."""
    lines = []
    batches = {(run.training.batch_tokens // run.context_length, run.sequence_processes) for run in runs}
    for rows, sequence in sorted(batches):
        whole_shares = [sequence * n for n in range(1, rows + 1) if rows % n == 0]
        if device.unit == "GPU" and gpus not in whole_shares:
            fewer = [str(n) for n in whole_shares if n < gpus][-1:]
            more = [str(n) for n in whole_shares if n > gpus][:1]
            lines.append(
                f"a batch of {counted(rows, 'sequence')} does not split over {gpus:,} GPUs: "
                f"{' or '.join(fewer + more)} would do"
            )
    return lines


def _idle(rows: Sequence[RunCost], device: Device) -> list[str]:
    """A line where several GPUs wait for one run's host."""
    bound = [row for row in rows if row.pace.bound_by == "host" and row.devices > 1]
    if device.unit != "GPU" or not bound:
        return []
    return [
        f"{counted_of(len(bound), len(rows), 'run', 'is', 'are')} bound by the host, which more GPUs for one run do "
        f"not help: several runs at once do (jobs.parallel)"
    ]


def _too_large(rows: Sequence[RunCost], device: Device) -> list[str]:
    room = FILLED * device.memory_bytes if device.memory_bytes is not None else math.inf
    large = [row for row in rows if row.memory_bytes is not None and row.memory_bytes > room]
    if not large or device.memory_bytes is None:
        return []
    most = max(large, key=lambda row: row.memory_bytes or 0.0)
    advice = what_fits(most.run, processes_on(most.run, device, most.devices), device.unit == "GPU", room)
    return [
        f"{counted_of(len(large), len(rows), 'run', 'needs', 'need')} more than {FILLED:.0%} of the "
        f"{device.memory_bytes / 1e9:,.0f} GB of {device.name}, up to {(most.memory_bytes or 0.0) / 1e9:,.0f} GB "
        f"({most.run.run_id}): {advice}"
    ]
