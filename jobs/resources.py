"""What a run needs of a cluster: nodes, processes, memory and time, each with its reason.

A run gets the fewest processes whose memory suffices (flops.training_memory at its ZeRO stage and micro-batch), that
split its batch, and that are expected to finish within the profile's target_hours; a study may set them
(jobs.resources). What no node has is refused here, before anything is submitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from arch.amounts import counted
from arch.errors import InputError
from flops import checkpoint_bytes, count_params, training_memory
from flops.hardware import FILLED
from flops.pace import pace
from flops.tables import duration, short
from scaling.study.cost import memory_bytes, what_fits
from scaling.study.jobs_schema import Cluster, ResourceRequest
from scaling.study.run import RunSpec

from .model import Resources
from .speed import Kind, Measured, Speed, device_of, expected, speed_of

PROCESS_BYTES = 1e9  # Python, torch and DeepSpeed: 0.37e9 measured on a CPU
START_S = 120.0  # allowed for from the start of a job to the first step: imports from a shared file system
CORPUS_BYTES_PER_S = 1e7  # 10.9e6 to 16.3e6 measured on two cores: docs/research/corpus-pace.md
READ_BYTES_PER_S = 2e8  # allowed for when a checkpoint is read
LIMITS = (10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 1440)  # minutes: jobs of one limit share an array
MIB = 1 << 20
ASKED = "set in jobs.resources"
DEFAULT_MEMORY = "the partition's default: the profile names no memory_gb_per_node"
NAMED_TASKS = 4  # in a reason; the others are counted


@dataclass(frozen=True)
class ResourceEstimate:
    """What some work needs: resources, the seconds that it is expected to take with them, whether the study fixed the
    time limit, what the seconds are made of, and whether they are the least, as a part of the work is of unknown
    length: its time limit is the partition's."""

    resources: Resources
    seconds: float
    fixed: bool = False
    why: str = ""
    at_least: bool = False


@dataclass(frozen=True)
class ResourceEstimator:
    """Estimates what work needs of one cluster; `factors` are the measured ones (speed.measured)."""

    profile: Cluster
    factors: Mapping[Kind, Measured] = field(default_factory=dict)

    def of_kind(self, kind: str) -> ResourceEstimator:
        """For jobs of a kind, where the profile gives that another partition."""
        return replace(self, profile=self.profile.of_kind(kind))

    def train(self, run: RunSpec, asked: ResourceRequest, world_size: int | None = None) -> ResourceEstimate:
        """world_size: the number of processes that a branch needs. Raises InputError where no node, or no number of
        processes, can do it."""
        profile, speed = self.profile, speed_of(run, self.factors)
        fixed = self._of_size(run, world_size) if world_size is not None else None
        nodes, tasks, why = fixed or self._world(run, asked, speed)
        world, (cpus, why_cpus) = nodes * tasks, self._cpus(run, asked)
        seconds = self._seconds(run, world, speed)
        memory, why_memory = self._memory(run, nodes, tasks, asked)
        step = expected(run, world, profile)
        why_time = (
            f"{counted(run.trained_steps, 'step')} of {duration(seconds / run.trained_steps)} on "
            f"{counted(world, 'process', 'processes')} "
            f"({step.basis}; {speed.source}): {duration(seconds)} expected"
        )
        reasons = why | {"cpus_per_task": why_cpus, "memory_mb": why_memory}
        resources = Resources(nodes, tasks, tasks if profile.gpus_per_node else 0, cpus, memory, 0, 0, reasons)
        return self._checked(
            run.run_id, self.limited(ResourceEstimate(self._shared(resources), seconds, why=why_time), asked.minutes)
        )

    def evaluate(
        self, run: RunSpec, tokens: Mapping[str, float | None], batch_rows: int, asked: ResourceRequest
    ) -> ResourceEstimate:
        """For one checkpoint of the run, on one GPU or the cores of one process: the forward passes of `tokens` by task
        (None: unknown), in batches of `batch_rows` rows."""
        profile, cfg = self.profile, run.config
        batch = batch_rows * run.context_length
        step = pace(cfg, batch, device_of(profile), 1 if profile.gpus_per_node else run.training.threads)
        forward = step.step_seconds / 3 / batch * speed_of(run, self.factors).factor
        known = {task: number for task, number in tokens.items() if number is not None}
        seconds = (
            forward * sum(known.values()) + checkpoint_bytes(cfg, run.training.checkpoint_dtype) / READ_BYTES_PER_S
        )
        memory, why = _asked_mib(asked), ASKED
        if memory is None and profile.memory_gb_per_node is None:
            why = DEFAULT_MEMORY
        elif memory is None and profile.gpus_per_node:
            memory, why = self._gpu_share(1), "its GPU's share of the node's memory"
        elif memory is None:
            needed = 0.0
            with suppress(InputError):  # else the costs of a plugin's architecture are not known
                needed = training_memory(cfg, micro_batch_tokens=batch, zero_stage=0, precision="fp32")["total"]
            memory, why = _gib(needed + 2 * PROCESS_BYTES), "at most what training needs for the same rows"
        cpus, why_cpus = self._cpus(run, asked)
        reasons = {"nodes": "a checkpoint is evaluated by one process", "memory_mb": why, "cpus_per_task": why_cpus}
        resources = Resources(1, 1, 1 if profile.gpus_per_node else 0, cpus, memory, 0, 0, reasons)
        at_least = len(known) < len(tokens)
        least = "or more " if at_least else ""
        why_time = f"{duration(seconds)} {least}a checkpoint to read it and {_tasks(known, tokens)}"
        estimate = ResourceEstimate(self._shared(resources), seconds, why=why_time, at_least=at_least)
        return self._checked(f"evaluation of {run.run_id}", self.limited(estimate, asked.minutes))

    def single(self, kind: str, asked: ResourceRequest, text_bytes: int | None = None) -> Resources:
        """Corpus and finish: one process, without a GPU. text_bytes: of the corpus; None: unknown."""
        longest = int(self.profile.max_hours * 60)
        why = {"minutes": "the partition's limit: how much text there is, is not known", "nodes": "one process"}
        if kind == "finish":
            longest, why["minutes"] = min(60, longest), "fits and report take minutes"
        elif text_bytes is not None:
            seconds = text_bytes / CORPUS_BYTES_PER_S
            why["minutes"] = f"{text_bytes / 1e6:,.0f} MB of text at {CORPUS_BYTES_PER_S / 1e6:g} MB/s"
            needed = math.ceil((START_S + seconds * self.profile.time_factor) / 60)
            longest = next((limit for limit in LIMITS if needed <= limit < longest), longest)
        if asked.minutes:
            why["minutes"] = ASKED
        memory = _asked_mib(asked)
        why["memory_mb"] = "the partition's default: jobs.resources names none" if memory is None else ASKED
        cpus = asked.cpus_per_task or min(2, self.profile.cpus_per_node)
        why["cpus_per_task"] = ASKED if asked.cpus_per_task else "at most two: it reads text and draws figures"
        resources = Resources(1, 1, 0, cpus, memory, asked.minutes or longest, 0, why)
        return self._checked(kind, ResourceEstimate(resources, 0.0)).resources

    def limited(self, estimate: ResourceEstimate, minutes: int | None = None) -> ResourceEstimate:
        """With the time limit of its expected seconds, one of LIMITS under the partition's, or the partition's where
        they are the least; or with the one given."""
        profile, needed_s = self.profile, START_S + estimate.seconds * self.profile.time_factor
        longest = int(profile.max_hours * 60)
        if minutes is None and estimate.at_least:
            limit = longest
        elif minutes is None:
            classes = [*(limit for limit in LIMITS if limit < longest), longest]
            limit = next((limit for limit in classes if limit * 60 >= needed_s), longest)
        else:
            limit = minutes
        usable = max(60.0, limit * 60 - START_S - profile.signal_s)
        again = max(0, math.ceil(estimate.seconds * profile.time_factor / usable) - 1) if needed_s > limit * 60 else 0
        reasons = dict(estimate.resources.reasons) | {"minutes": estimate.why if minutes is None else ASKED}
        if again:
            what = "requeue" if profile.requeue else "more submission"
            reasons["minutes"] += f"; about {counted(again, what)}, each from the last saved state"
        resources = replace(estimate.resources, minutes=limit, expected_requeues=again, reasons=reasons)
        return replace(estimate, resources=resources, fixed=minutes is not None)

    def _seconds(self, run: RunSpec, world: int, speed: Speed) -> float:
        return run.trained_steps * expected(run, world, self.profile).step_seconds * speed.factor

    def _most_tasks(self, run: RunSpec) -> int:
        return self.profile.gpus_per_node or max(1, self.profile.cpus_per_node // run.training.threads)

    def _of_size(self, run: RunSpec, world_size: int) -> tuple[int, int, dict[str, str]] | None:
        """(nodes, tasks per node, why) of so many processes; None where the cluster's nodes do not make them."""
        split = worlds(run, self.profile.nodes, self._most_tasks(run))
        made = next((pair for pair in split if pair[0] * pair[1] == world_size), None)
        return made and (*made, {"nodes": "its trunk's, so that it goes on to the same bits"})

    def _world(self, run: RunSpec, asked: ResourceRequest, speed: Speed) -> tuple[int, int, dict[str, str]]:
        """(nodes, tasks per node, reasons: of `nodes`, and what a smaller micro-batch would spare)."""
        most, rows = self._most_tasks(run), run.training.batch_tokens // run.context_length
        tasks = asked.gpus_per_node or asked.tasks_per_node
        if asked.gpus_per_node and not self.profile.gpus_per_node:
            raise InputError(f"jobs.resources of {run.arch}/{run.size}: gpus_per_node, but the cluster has no GPUs")
        if asked.nodes or tasks:
            nodes = asked.nodes or 1
            tasks = tasks or (self.profile.gpus_per_node if nodes > 1 and self.profile.gpus_per_node else 1)
            if not run.batch_split(nodes * tasks).is_even:
                whole = [str(n) for n in range(1, rows * run.sequence_processes + 1) if run.batch_split(n).is_even]
                raise InputError(
                    f"jobs.resources of {run.arch}/{run.size}: a batch of {counted(rows, 'sequence')} does not "
                    f"split over {nodes} x {counted(tasks, 'process', 'processes')}; these numbers do: "
                    f"{', '.join(whole)}"
                )
            return nodes, tasks, {"nodes": ASKED}
        fewest, too_little, too_slow = self._fewest(run, speed)
        if fewest is None:
            self._refuse_memory(run, most)
        assert fewest is not None
        unit, hours = device_of(self.profile).unit, f"{self.profile.target_hours:g} h"
        world = fewest[0] * fewest[1]
        if world in too_slow:
            why = f"no number of {unit}s finishes in {hours}: the most that split the batch and hold it"
        else:
            why = f"the fewest {unit}s that {'hold it and finish' if too_little else 'finish'} in {hours}"
        refused = [f"{n}: {text}" for n, text in sorted((too_little | too_slow).items()) if n != world]
        why += f"; not {', '.join(refused)}" if refused else ""
        reasons = {"nodes": why}
        if too_little and (smaller := _half_micro_batch(run)):
            fits = self._fewest(smaller, speed)[0]
            if fits and (fewer := fits[0] * fits[1]) < world:
                reasons["micro_batch_tokens"] = (
                    f"with half of training.micro_batch_tokens it needs {counted(fewer, unit)}, not {world}"
                )
        return *fewest, reasons

    def _fewest(self, run: RunSpec, speed: Speed) -> tuple[tuple[int, int] | None, dict[int, str], dict[int, str]]:
        """(nodes, tasks per node) of the fewest processes that hold the run and finish in time, else of the most that
        hold it; None where none do. And the numbers of processes that were tried: with too little memory, and too
        slow."""
        best: tuple[int, int] | None = None
        too_little, too_slow = dict[int, str](), dict[int, str]()
        for nodes, tasks in worlds(run, self.profile.nodes, self._most_tasks(run)):
            world = nodes * tasks
            needed = self._needed(run, world)
            room = self._most_bytes(tasks)
            if needed is not None and room is not None and needed > room:
                too_little[world] = f"{needed / 1e9:.1f} of {room / 1e9:.1f} GB"
                continue
            seconds = self._seconds(run, world, speed)
            if seconds <= self.profile.target_hours * 3600:
                return (nodes, tasks), too_little, too_slow
            too_slow[world] = duration(seconds)
            if best is None or world > best[0] * best[1]:
                best = nodes, tasks
        return best, too_little, too_slow

    def _needed(self, run: RunSpec, world: int) -> float | None:
        """Bytes of each of `world` processes; GPUs, all of which the flops package knows, take the Triton kernels."""
        return memory_bytes(run, world, kernels=self.profile.gpus_per_node > 0)

    def _most_bytes(self, tasks: int) -> float | None:
        """Bytes that each of the processes may take, one on each GPU or `tasks` on a node; None: unknown."""
        if self.profile.gpus_per_node:
            held = device_of(self.profile).memory_bytes
            return None if held is None else FILLED * held
        node = self.profile.memory_gb_per_node
        return None if node is None else node * 1e9 / tasks - PROCESS_BYTES

    def _refuse_memory(self, run: RunSpec, most: int) -> None:
        device = device_of(self.profile)
        world, tasks = max(((n * tasks, tasks) for n, tasks in worlds(run, self.profile.nodes, most)), default=(1, 1))
        needed, node = (self._needed(run, world) or 0.0) / 1e9, self.profile.memory_gb_per_node or 0.0
        if self.profile.gpus_per_node:
            limit = f"{FILLED:.0%} of a {device.unit}'s {(device.memory_bytes or 0.0) / 1e9:,.0f} GB may be filled"
        else:
            limit = f"a node of the cluster has {node:,g} GB"
        advice = what_fits(run, world, self.profile.gpus_per_node > 0, self._most_bytes(tasks) or 0.0)
        raise InputError(
            f"{run.run_id} does not fit: {needed:,.3g} GB for each of {counted(world, 'process', 'processes')}, "
            f"and {limit}: {advice}"
        )

    def _cpus(self, run: RunSpec, asked: ResourceRequest) -> tuple[int, str]:
        """(cores of a process, why)."""
        if asked.cpus_per_task:
            return asked.cpus_per_task, ASKED
        share = self.profile.cpus_per_node // self.profile.gpus_per_node if self.profile.gpus_per_node else 1
        if share <= run.training.threads:
            return run.training.threads, "training.threads"
        return share, "its GPU's share of the node's cores"

    def _gpu_share(self, gpus: int) -> int:
        assert self.profile.memory_gb_per_node is not None
        return int(self.profile.memory_gb_per_node * 1e9 / MIB * gpus / self.profile.gpus_per_node)

    def _memory(self, run: RunSpec, nodes: int, tasks: int, asked: ResourceRequest) -> tuple[int | None, str]:
        """(MiB of a node, why)."""
        if asked.memory_gb is not None:
            return _asked_mib(asked), ASKED
        if self.profile.memory_gb_per_node is None:
            return None, DEFAULT_MEMORY
        if self.profile.gpus_per_node:
            # rank 0 writes the checkpoint from a copy and reads it again
            needed = tasks * PROCESS_BYTES + 8.0 * count_params(run.config).total
            share = self._gpu_share(tasks)
            if share >= needed / MIB:
                return share, "its GPUs' share of the node's memory"
            return _gib(needed), "its processes and a checkpoint on its way to disk"
        needed = self._needed(run, nodes * tasks) or 0.0
        return (
            _gib(tasks * (needed + PROCESS_BYTES)),
            f"{counted(tasks, 'process', 'processes')} of {needed / 1e9:.3g} GB by the memory model and "
            f"{PROCESS_BYTES / 1e9:g} GB each",
        )

    def _shared(self, resources: Resources) -> Resources:
        """Of whole nodes, where the site gives these: what fits on one side by side, and all of its GPUs."""
        profile, wanted = self.profile, resources
        if not profile.whole_nodes:
            return resources
        at_once = profile.cpus_per_node // (wanted.tasks_per_node * wanted.cpus_per_task)
        if profile.gpus_per_node:
            at_once = min(at_once, profile.gpus_per_node // wanted.tasks_per_node)
        if profile.memory_gb_per_node is not None and wanted.memory_mb:
            at_once = min(at_once, int(profile.memory_gb_per_node * 1e9 / MIB) // wanted.memory_mb)
        at_once = 1 if wanted.nodes > 1 else max(1, at_once)
        memory, why = at_once * (wanted.memory_mb or 0), dict(wanted.reasons)
        if profile.memory_gb_per_node is None:
            memory, why["memory_mb"] = 0, "the whole node's: the profile names no memory_gb_per_node"
        if at_once > 1:
            why["nodes"] += f"; {at_once} fit side by side on a whole node"
        gpus = profile.gpus_per_node
        return replace(wanted, gpus_per_node=gpus, memory_mb=memory or None, at_once=at_once, reasons=why)

    def _checked(self, name: str, estimate: ResourceEstimate) -> ResourceEstimate:
        """Raises InputError where no node of the cluster can give it."""
        profile, resources = self.profile, estimate.resources
        memory = None if profile.memory_gb_per_node is None else int(profile.memory_gb_per_node * 1e9 / MIB)
        cores = resources.at_once * resources.tasks_per_node * resources.cpus_per_task
        for what, wanted, available, key in (
            ("nodes", resources.nodes, profile.nodes, "nodes"),
            ("GPUs a node", resources.gpus_per_node, profile.gpus_per_node, "gpus_per_node"),
            ("cores a node", cores, profile.cpus_per_node, "cpus_per_node"),
            ("MiB of memory a node", resources.memory_mb or 0, memory, "memory_gb_per_node"),
            ("minutes", resources.minutes, int(profile.max_hours * 60), "max_hours"),
        ):
            if available is not None and wanted > available:
                raise InputError(
                    f"{name} needs {wanted:,} {what}, and the cluster has {available:,} (profile: {key}): "
                    f"change jobs.resources or the profile"
                )
        return estimate


def worlds(run: RunSpec, most_nodes: int, most_tasks: int) -> Iterator[tuple[int, int]]:
    """(nodes, tasks per node) that split the batch, the fewest first; of several nodes each is at least half used."""
    for tasks in range(1, most_tasks + 1):
        if run.batch_split(tasks).is_even:
            yield 1, tasks
    for nodes in range(2, most_nodes + 1):
        for tasks in range(most_tasks, most_tasks // 2, -1):
            if run.batch_split(nodes * tasks).is_even:
                yield nodes, tasks
                break


def _half_micro_batch(run: RunSpec) -> RunSpec | None:
    """The run with passes of half as many sequences; None where a pass has one."""
    rows = (run.training.micro_batch_tokens or 0) // run.context_length // 2
    changes = {"micro_batch_tokens": rows * run.context_length}
    return run.model_copy(update={"training": run.training.model_copy(update=changes)}) if rows else None


def _tasks(known: Mapping[str, float], tokens: Mapping[str, float | None]) -> str:
    """ "1.31 M tokens of niah, 65,536 of validation", the most first, then those of unknown length."""
    ordered = sorted(known, key=lambda task: -known[task])
    named = [f"{short(known[task])} tokens of {task}" for task in ordered[:NAMED_TASKS]]
    if rest := ordered[NAMED_TASKS:]:
        named.append(f"{short(sum(known[task] for task in rest))} of {len(rest)} more tasks")
    named += [f"{task}, of unknown length" for task in tokens if task not in known]
    return ", ".join(named)


def _asked_mib(asked: ResourceRequest) -> int | None:
    return None if asked.memory_gb is None else int(asked.memory_gb * 1e9 / MIB)


def _gib(needed: float) -> int:
    """MiB, whole GiB."""
    return math.ceil(needed / (1 << 30)) * 1024
