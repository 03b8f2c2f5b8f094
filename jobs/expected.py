"""How long the training of a study is expected to take on this machine, and how that is known."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arch.amounts import counted
from arch.errors import InputError
from flops.hardware import DEVICES
from flops.pace import START_S, start_of
from flops.tables import duration
from scaling.rundir.directory import RunDir
from scaling.rundir.prepare import check_run
from scaling.study.jobs_schema import Cluster
from scaling.study.run import RunSpec
from scaling.study.spec import StudySpec

from .local import at_once, visible_cores, visible_gpus
from .speed import ASSUMED, device_of, expected, measured, speed_of


@dataclass(frozen=True)
class Expected:
    """`seconds` until the last of `n_runs` runs is trained, `runs_at_once` at a time, which may each be several
    small ones; `basis`: {how known: runs}."""

    seconds: float
    n_runs: int
    runs_at_once: int
    basis: dict[str, int]
    n_small: int = 0  # that train several on a GPU

    def __str__(self) -> str:
        if not self.n_runs:
            return "nothing is left to train"
        heads, tails = Counter[str](), Counter[str]()
        for basis, number in self.basis.items():
            head, divider, tail = basis.partition("; ")
            heads[head] += number
            if divider:
                tails[tail] += number
        more = [f"of {counted(n, 'run')} {tail}" if n < self.n_runs else tail for tail, n in tails.items()]
        known = "; ".join([f"{number} by {head}" if len(heads) > 1 else head for head, number in heads.items()] + more)
        small = f", of {counted(self.n_small, 'small run')} several on each GPU" if self.n_small else ""
        return (
            f"training is expected to take about {duration(self.seconds)} here: {counted(self.n_runs, 'run')}, "
            f"{self.runs_at_once} at once{small} ({known}); corpus, evaluations and report come on top"
        )


def expected_time(
    study: StudySpec,
    todo: Sequence[tuple[RunSpec, RunDir]],
    done: Iterable[tuple[RunSpec, RunDir]],
    gains: Mapping[str, float] | None = None,
) -> Expected:
    """Of the runs `todo`, of which some may have begun, by what the runs `done` took, else by flops.pace. gains: {run
    id: how many times as fast it trains} of small runs that share a GPU, over one after another."""
    gains = gains or {}
    processes = study.jobs.processes
    profile = this_machine(processes)
    device = device_of(profile)
    start_s = start_of(device, processes)
    parallel, factors = at_once(study.jobs.parallel, processes), measured(done, profile)
    alone, gained, basis = dict[str, float](), dict[str, float](), Counter[str]()
    crowd = min(parallel, len(todo)) * processes / (len(visible_gpus()) or len(visible_cores()))
    for run, rundir in todo:
        begun = rundir.last_row() if _is_its_own(rundir, run) else None
        left = max(0, run.n_steps - int(begun["step"])) if begun else run.trained_steps
        step, speed = expected(run, processes, profile), speed_of(run, factors)
        shared = max(1.0, crowd * (1 if profile.gpus_per_node else run.training.threads))
        seconds = left * step.step_seconds * speed.factor * shared
        alone[run.run_id], gained[run.run_id] = start_s + seconds, start_s + seconds / gains.get(run.run_id, 1.0)
        basis[step.basis if speed.source == ASSUMED else "the speed of finished runs"] += 1
    after = {run.run_id: run.trunk for run, _ in todo}
    whole = time_of(gained, after, parallel)
    if alone:
        whole = max(whole, time_of(alone, after, len(alone)))  # none takes less than it does alone
        whole += START_S[device.unit] - start_s
    return Expected(whole, len(alone), min(parallel, max(1, len(alone))), dict(basis), len(gains))


def time_of(seconds: Mapping[str, float], after: Mapping[str, str | None], parallel: int) -> float:
    """Until the last of some runs ends, `parallel` at a time, as the stage of training and jobs.local.run_tasks order
    them: the longest first, a trunk by itself and its longest branch; a run waits for the one that it comes `after`."""
    longest = dict[str | None, float]()
    for name, own in seconds.items():
        longest[after[name]] = max(longest.get(after[name], 0.0), own)
    waiting = sorted(seconds, key=lambda name: -seconds[name] - longest.get(name, 0.0))
    active: list[tuple[float, str]] = []
    now = 0.0
    while waiting or active:
        unfinished = {*waiting, *(name for _, name in active)}
        for name in [name for name in waiting if after[name] not in unfinished][: parallel - len(active)]:
            waiting.remove(name)
            heapq.heappush(active, (now + seconds[name], name))
        now, _ = heapq.heappop(active)
    return now


def _is_its_own(rundir: RunDir, run: RunSpec) -> bool:
    """Whether what was trained there is of this run: a directory of another run would be trained anew."""
    try:
        check_run(rundir, run)
    except InputError:
        return False
    return True


def this_machine(processes: int) -> Cluster:
    """This machine as a profile, for runs of so many processes each."""
    gpus = len(visible_gpus())
    return Cluster(
        nodes=1,
        cpus_per_node=max(os.cpu_count() or 1, gpus, processes),
        gpus_per_node=max(gpus, processes) if gpus else 0,
        gpu=_gpu_kind() if gpus else "cpu",
    )


def _gpu_kind() -> str:
    """The name in flops.hardware of this machine's GPUs; h100 where the driver names none of them."""
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        model = next(
            (line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("Model:")), ""
        ).lower()
        for name in DEVICES:
            if name in model:
                return name
    return "h100"
