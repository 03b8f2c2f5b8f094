"""How long a run takes on a cluster: the pace that flops.pace expects, corrected by what finished runs took."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from arch.amounts import counted
from flops import count_params
from flops.hardware import DEVICES, Device
from flops.pace import Pace
from scaling.rundir.directory import RunDir
from scaling.study.cost import pace_of
from scaling.study.jobs_schema import Cluster
from scaling.study.run import RunSpec

Kind = tuple[str, ...]  # RunSpec.kind
PLAUSIBLE = (0.1, 20.0)  # times the expected; others are of runs that trained on another kind of device
ASSUMED = "assumed until runs have finished"
ON = re.compile(r"\d process(?:es)?, (\w+)$")  # in a run's log


@dataclass(frozen=True)
class Speed:
    """`factor` over the expected seconds, and where it is from."""

    factor: float
    source: str


@dataclass
class Measured:
    """What the finished runs of one kind took over what was expected of them."""

    n_params: int  # non-embedding
    factors: list[float]


def device_of(profile: Cluster) -> Device:
    """A GPU of the cluster, or on CPU nodes one core."""
    device = DEVICES[profile.gpu if profile.gpus_per_node else "cpu"]
    own = profile.memory_gb_per_gpu if profile.gpus_per_node else None
    return device if own is None else replace(device, memory_bytes=own * 1e9)


def expected(run: RunSpec, world_size: int, profile: Cluster) -> Pace:
    """On so many processes, at the profile's MFU; on cores the measured one, unless the profile names one."""
    on_gpus = profile.gpus_per_node > 0
    mfu = profile.mfu if on_gpus or "mfu" in profile.model_fields_set else None
    return pace_of(run, device_of(profile), world_size * (1 if on_gpus else run.training.threads), mfu)


def measured(done: Iterable[tuple[RunSpec, RunDir]], profile: Cluster) -> dict[Kind, Measured]:
    """What finished runs took over what is expected on this cluster, by kind: from the tokens per second of
    their last row and the number of processes that wrote their last state. Without a state, from another kind of device
    (their log says which), or with an implausible factor, a run is not used.
    """
    cells: dict[Kind, Measured] = {}
    kind = "cuda" if profile.gpus_per_node else "cpu"
    for run, rundir in done:
        row, states = rundir.last_row(), rundir.states(verify=False)
        processes = states[-1].world_size if states else None
        if row is None or not processes or not row.get("tokens_per_s") or _device_type(rundir) not in (None, kind):
            continue
        step = expected(run, processes, profile)
        factor = run.training.batch_tokens / row["tokens_per_s"] / step.step_seconds
        if PLAUSIBLE[0] <= factor <= PLAUSIBLE[1]:
            cell = Measured(count_params(run.config).non_embedding, [])
            cells.setdefault(run.kind, cell).factors.append(factor)
    return cells


def _device_type(rundir: RunDir) -> str | None:
    """cpu or cuda, as the trainer says when it starts; None where the log is gone."""
    try:
        lines = rundir.log.read_text(errors="replace", encoding="utf-8").splitlines()
    except OSError:
        return None
    devices = [match[1] for line in lines if (match := ON.search(line))]
    return devices[-1] if devices else None


def speed_of(run: RunSpec, measured: Mapping[Kind, Measured]) -> Speed:
    """Of a run: measured on its own kind, else on the nearest size of its architecture within a factor
    of 4, else as expected."""
    if run.kind in measured:
        own = measured[run.kind].factors
        return Speed(median(own), f"measured on {counted(len(own), 'finished run')} of its kind")
    n_params = count_params(run.config).non_embedding
    near = [(abs(math.log(cell.n_params / n_params)), kind) for kind, cell in measured.items() if kind[0] == run.arch]
    if near and min(near)[0] <= math.log(4):
        kind = min(near)[1]
        return Speed(
            median(measured[kind].factors),
            f"measured on {', '.join(filter(None, (f'{kind[0]}/{kind[1]}', *kind[2:])))}",
        )
    return Speed(1.0, ASSUMED)
