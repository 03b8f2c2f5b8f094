"""How long a run takes on a cluster: its work over the peak of its devices and the share of it that is reached.

On GPUs the work is the FLOP of the convention `exact`. On CPUs, where runs are small and their FLOP are the lesser part
of a step, it is worklist.expected_work. The share (MFU) is the profile's until finished runs tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from flops import count_params, train_flops_per_token
from flops.hardware import DEVICES, Device
from scaling.rundir import RunDir
from scaling.sections import Cluster
from scaling.spec import RunSpec
from scaling.worklist import expected_work

Cell = tuple[str, str]  # (arch, size)
PLAUSIBLE = (0.002, 1.0)  # shares of the peak; others are of runs that trained on another kind of device


@dataclass(frozen=True)
class Speed:
    """`share` of the peak (in the work's own FLOP), and where it is from."""

    share: float
    source: str


@dataclass
class Measured:
    """The shares that the finished runs of one (arch, size) reached."""

    n_params: int  # non-embedding
    shares: list[float]


def device_of(profile: Cluster) -> Device:
    """A GPU of the cluster, or on CPU nodes one core."""
    return DEVICES[profile.gpu if profile.gpus_per_node else "cpu"]


def work(run: RunSpec, profile: Cluster) -> float:
    """FLOP of a whole run."""
    if profile.gpus_per_node:
        return train_flops_per_token(run.config, "exact") * float(run.n_tokens)
    return expected_work(run)


def units(world_size: int, run: RunSpec, profile: Cluster) -> int:
    """GPUs, or cores, at work on a run of so many processes."""
    return world_size if profile.gpus_per_node else world_size * run.training.threads


def measured(done: Iterable[tuple[RunSpec, RunDir]], profile: Cluster) -> dict[Cell, Measured]:
    """The shares that finished runs reached, by (arch, size): from the tokens per second of their last row and the
    number of processes that wrote their last state. Without a state, or with an implausible share, a run tells nothing.
    """
    found: dict[Cell, Measured] = {}
    for run, rundir in done:
        row, states = rundir.last_row(), rundir.states(verify=False)
        if row is None or not states or not row.get("tokens_per_s"):
            continue
        at_work = units(int(states[-1].manifest["world_size"]), run, profile)
        per_token = work(run, profile) / run.n_tokens
        share = row["tokens_per_s"] * per_token / (at_work * device_of(profile).peak_flops_per_s)
        if PLAUSIBLE[0] <= share <= PLAUSIBLE[1]:
            kind = Measured(count_params(run.config).non_embedding, [])
            found.setdefault((run.arch, run.size), kind).shares.append(share)
    return found


def speed_of(run: RunSpec, profile: Cluster, measured: Mapping[Cell, Measured]) -> Speed:
    """Of a run: measured on its own architecture and size, else on the nearest size of its architecture, else assumed.

    A larger model reaches more of the peak than a smaller one, so a far size is no measure: within a factor of 4.
    """
    if (run.arch, run.size) in measured:
        own = measured[run.arch, run.size].shares
        return Speed(median(own), f"measured on {len(own)} finished run{'s' if len(own) > 1 else ''} of its kind")
    n_params = count_params(run.config).non_embedding
    near = [
        (abs(math.log(one.n_params / n_params)), size) for (arch, size), one in measured.items() if arch == run.arch
    ]
    if near and min(near)[0] <= math.log(4):
        size = min(near)[1]
        return Speed(median(measured[run.arch, size].shares), f"measured on {run.arch}/{size}")
    return Speed(profile.mfu, "assumed by the profile")
