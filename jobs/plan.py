"""A study as array jobs: one array for each shape of resources, short runs packed, evaluations after their runs.

corpus -> train (afterok) -> eval (aftercorr: element k after element k) -> finish (afterany, and checks itself what is
complete). The branches of element k's trunk are element k of arrays of their own (aftercorr), with as many processes.
Only what is missing is planned. Pure: knows neither SLURM nor what is on disk.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from arch.amounts import counted
from arch.errors import InputError
from flops.pace import START_S
from flops.tables import duration
from scaling.study.run import RunSpec
from scaling.study.spec import StudySpec

from .model import ArrayJob, JobPlan, Resources
from .resources import ResourceEstimate, ResourceEstimator
from .speed import device_of

MAX_ARRAY_SIZE = 1001  # SLURM's default
Tokens = Callable[[RunSpec], Mapping[str, float | None]]  # of one checkpoint's evaluation, by task; None: unknown


Evaluation = Callable[[tuple[str, ...]], ResourceEstimate]  # of one checkpoint of a RunSpec.kind


@dataclass(frozen=True)
class Need:
    """What is missing of one run: its training (and so its evaluations), or the evaluations of some checkpoints.
    world_size: of a branch whose trunk is trained, the processes that saved the trunk's state."""

    run: RunSpec
    train: bool
    steps: tuple[int, ...] = ()
    world_size: int | None = None


@dataclass(frozen=True)
class Piece:
    """Work that one array element may hold: its name in the element, and the estimate of its resources."""

    name: str
    estimate: ResourceEstimate
    start_s: float = 0.0  # of a process of its own

    @property
    def seconds(self) -> float:
        return self.start_s + self.estimate.seconds


def make_plan(
    study: StudySpec,
    needs: Sequence[Need],
    estimator: ResourceEstimator,
    *,
    corpus: bool,
    finish: bool,
    text_bytes: int | None = None,
    max_array_size: int = MAX_ARRAY_SIZE,
    tokens: Tokens | None = None,
) -> JobPlan:
    """The jobs of `needs`; with `corpus` a job that prepares them first, of `text_bytes` of text (None: unknown), with
    `finish` fits and report at the end. `tokens`: of evaluations; held-out loss alone without it.

    Raises InputError where no node of the cluster can do it.
    """
    jobs: list[ArrayJob] = []
    profile, request = estimator.profile, study.jobs.of_kind
    evaluator = estimator.of_kind("eval")
    if corpus:
        single = estimator.of_kind("corpus").single("corpus", request("corpus"), text_bytes)
        jobs.append(ArrayJob("corpus", "corpus", single, ((),)))
    trains = _trainings([need for need in needs if need.train], study, estimator.of_kind("train"), max_array_size)
    if corpus:
        trains = [job if job.after else replace(job, after=(("corpus", "afterok"),)) for job in trains]
    jobs += trains
    runs = {need.run.run_id: need.run for need in needs}
    example_of = {run.kind: run for run in runs.values()}
    eval_request = request("eval")

    @cache
    def evaluation(kind: tuple[str, ...]) -> ResourceEstimate:
        """Of one checkpoint of the runs of a kind."""
        run = example_of[kind]
        n_tokens = tokens(run) if tokens else {"validation": study.evaluation.validation_tokens}
        return evaluator.evaluate(run, n_tokens, study.evaluation.batch_rows, eval_request)

    for index, job in enumerate(trains):
        jobs.append(_evaluations_of(job, f"eval-{index}", runs, evaluation, eval_request.minutes, evaluator))
    later = tuple(("corpus", "afterok") for _ in range(corpus))
    for job in eval_arrays([need for need in needs if not need.train], evaluation, evaluator, max_array_size):
        jobs.append(replace(job, name=f"eval-{sum(earlier.kind == 'eval' for earlier in jobs)}", after=later))
    if finish:
        before = tuple((job.name, "afterany") for job in jobs)
        single = estimator.of_kind("finish").single("finish", request("finish"))
        jobs.append(ArrayJob("finish", "finish", single, ((),), None, before))
    return JobPlan(study.name, str(study.directory.absolute()), tuple(_throttled(jobs, profile.max_running)))


def _trainings(
    needs: Sequence[Need], study: StudySpec, estimator: ResourceEstimator, max_array_size: int
) -> list[ArrayJob]:
    """All arrays of training: runs alike in the number of their branches share arrays, so that element k of an array
    of branches is of element k of the trunks'."""
    here = {need.run.run_id for need in needs}
    branches: dict[str, list[RunSpec]] = {}
    alone: dict[int, list[Need]] = {}
    for need in needs:
        if need.run.trunk in here:
            branches.setdefault(str(need.run.trunk), []).append(need.run)
    for need in needs:
        if need.run.trunk not in here:
            alone.setdefault(len(branches.get(need.run.run_id, ())), []).append(need)
    jobs: list[ArrayJob] = []
    for number, group in sorted(alone.items()):
        sizes = {need.run.run_id: need.world_size for need in group if need.world_size}
        # A failed trunk ends its element: alone in it, it takes no other trunk's branches and evaluations with it.
        together_s = 0.0 if number else estimator.profile.pack_minutes * 60.0
        arrays = train_arrays([need.run for need in group], study, estimator, max_array_size, sizes, together_s)
        trunks = [replace(job, name=f"train-{i}") for i, job in enumerate(arrays, sum(not job.after for job in jobs))]
        jobs += trunks
        for trunk in trunks if number else ():
            first = sum(bool(job.after) for job in jobs)
            for i, job in enumerate(_branch_arrays(trunk, branches, study, estimator), first):
                jobs.append(replace(job, name=f"branch-{i}", after=((trunk.name, "aftercorr"),)))
    return jobs


def _branch_arrays(
    trunks: ArrayJob, branches: Mapping[str, Sequence[RunSpec]], study: StudySpec, estimator: ResourceEstimator
) -> Iterator[ArrayJob]:
    """One array of all branches where those of an element take minutes, else one for each branch of a trunk: these
    run at once."""
    world, start = trunks.resources.world_size, START_S[device_of(estimator.profile).unit]

    def pieces(element: Sequence[RunSpec]) -> list[Piece]:
        estimates = [estimator.train(run, study.jobs.resources_of(run.arch, run.size), world) for run in element]
        return [Piece(run.run_id, estimate, start) for run, estimate in zip(element, estimates, strict=True)]

    number = len(branches[trunks.elements[0][0]])  # of every trunk of the array
    ranks = [[[branches[trunk][k] for trunk in element] for element in trunks.elements] for k in range(number)]
    packed = [[run for rank in ranks for run in rank[i]] for i in range(len(trunks.elements))]
    elements = [pieces(element) for element in packed]
    if max(map(seconds_of, elements)) > estimator.profile.pack_minutes * 60.0:
        arrays = [[pieces(element) for element in rank] for rank in ranks]
    else:
        arrays = [elements]
    for held in arrays:
        yield _array("", "train", _resources(max(held, key=seconds_of), estimator), held)


def train_arrays(
    runs: Sequence[RunSpec],
    study: StudySpec,
    estimator: ResourceEstimator,
    max_array_size: int,
    world_sizes: Mapping[str, int],
    together_s: float,
) -> list[ArrayJob]:
    """Arrays of training elements, the longest first; runs of expected minutes share an element. world_sizes: the
    processes of runs that continue states of so many. together_s: the expected seconds of a shared element."""
    shapes: dict[object, list[Piece]] = {}
    estimates: dict[object, ResourceEstimate] = {}  # the same of every seed
    start = START_S[device_of(estimator.profile).unit]
    for run in runs:
        world = world_sizes.get(run.run_id)
        kind = run.kind, run.trained_steps, world
        if kind not in estimates:
            estimates[kind] = estimator.train(run, study.jobs.resources_of(run.arch, run.size), world)
        estimate = estimates[kind]
        shapes.setdefault(_shape(estimate), []).append(Piece(run.run_id, estimate, start))
    elements: list[list[Piece]] = []
    for pieces in shapes.values():
        elements += pack(pieces, together_s)
    arrays: dict[Resources, list[list[Piece]]] = {}
    for element in sorted(elements, key=seconds_of, reverse=True):
        arrays.setdefault(_resources(element, estimator), []).append(element)
    jobs: list[ArrayJob] = []
    for resources, held in arrays.items():
        for chunk in _chunks(held, max_array_size):
            jobs.append(_array(f"train-{len(jobs)}", "train", resources, chunk))
    return jobs


def _array(name: str, kind: str, resources: Resources, elements: Sequence[Sequence[Piece]]) -> ArrayJob:
    seconds = [seconds_of(element) for element in elements]
    names = tuple(tuple(piece.name for piece in element) for element in elements)
    work_s = sum(piece.seconds for element in elements for piece in element)
    used = replace(resources, at_once=min(resources.at_once, max(map(len, elements))))
    at_least = any(piece.estimate.at_least for element in elements for piece in element)
    longest, total = max(seconds), sum(seconds)
    return ArrayJob(name, kind, used, names, longest_s=longest, total_s=total, work_s=work_s, at_least=at_least)


def eval_arrays(
    needs: Sequence[Need], evaluation: Evaluation, estimator: ResourceEstimator, max_array_size: int
) -> Iterator[ArrayJob]:
    """Arrays of evaluations of finished runs, checkpoint by checkpoint, in at most profile.eval_elements elements."""
    shapes: dict[object, list[Piece]] = {}
    for need in needs:
        estimate = evaluation(need.run.kind)
        pieces = [Piece(f"{need.run.run_id}/{step}", estimate) for step in need.steps]
        shapes.setdefault(_shape(estimate), []).extend(pieces)
    shapes = {shape: pieces for shape, pieces in shapes.items() if pieces}
    total = sum(piece.seconds for pieces in shapes.values() for piece in pieces)
    spare = max(0, estimator.profile.eval_elements - len(shapes))
    target = estimator.profile.pack_minutes * 60.0
    for pieces in shapes.values():
        seconds, at_once = sum(piece.seconds for piece in pieces), pieces[0].estimate.resources.at_once
        most = min(math.ceil(len(pieces) / at_once), 1 + math.floor(spare * seconds / total) if total else 1)
        n_elements = min(most, math.ceil(seconds / at_once / target)) if target else most
        elements = spread(pieces, max(1, n_elements))
        longest = max(elements, key=seconds_of)
        for chunk in _chunks(elements, max_array_size):
            yield _array("", "eval", _resources(longest, estimator), chunk)


def seconds_of(element: Sequence[Piece]) -> float:
    """Until an element's last piece ends: each begins, in their order, where as many as run at once leave room."""
    ends = [0.0] * element[0].estimate.resources.at_once
    for piece in element:
        heapq.heapreplace(ends, ends[0] + piece.seconds)
    return max(ends)


def pack(pieces: Sequence[Piece], target_s: float) -> list[list[Piece]]:
    """Bins of pieces of one `_shape`, first fit, longest first. A bin ends within `target_s` expected seconds,
    or with the piece that it began with, if that takes longer. Pieces whose limit the study fixed come after no other.
    """
    bins: list[tuple[float, list[float], list[Piece]]] = []  # when it must end, when its places are free, what it holds
    for piece in sorted(pieces, key=lambda other: -other.seconds):
        for limit, ends, held in bins:
            if len(held) < len(ends) if piece.estimate.fixed else ends[0] + piece.seconds <= limit:
                heapq.heapreplace(ends, ends[0] + piece.seconds)
                held.append(piece)
                break
        else:
            ends = [0.0] * (piece.estimate.resources.at_once - 1)
            bins.append((max(target_s, piece.seconds), [*ends, piece.seconds], [piece]))
    return [held for _, _, held in bins]


def spread(pieces: Sequence[Piece], count: int) -> list[list[Piece]]:
    """`count` bins of about the same expected seconds: the longest first, each to the emptiest bin."""
    bins: list[list[Piece]] = [[] for _ in range(count)]
    loads = [(0.0, 0, index) for index in range(count)]
    for piece in sorted(pieces, key=lambda other: -other.seconds):
        load, held, index = heapq.heappop(loads)
        bins[index].append(piece)
        heapq.heappush(loads, (load + piece.seconds, held + 1, index))
    return [other for other in bins if other]


def _shape(estimate: ResourceEstimate) -> object:
    """What makes two pieces fit for one element: everything but the time, which is the element's."""
    return replace(estimate.resources, minutes=estimate.resources.minutes if estimate.fixed else 0, expected_requeues=0)


def _resources(element: Sequence[Piece], estimator: ResourceEstimator) -> Resources:
    """Of an element that works through its pieces."""
    first = element[0].estimate
    if first.fixed or len(element) == 1:
        return first.resources
    return estimator.limited(_together(first, seconds_of(element), len(element))).resources


def _together(largest: ResourceEstimate, seconds: float, number: int) -> ResourceEstimate:
    """Of `number` pieces, of which this is the largest: one after another, or as many at once as fit."""
    at_once = largest.resources.at_once
    how = " one after another" if at_once == 1 else f", {min(number, at_once)} at once"
    why = f"{duration(seconds)} expected of {number}{how}, the first of them: {largest.why}"
    return replace(largest, seconds=seconds, why=why if number > 1 else largest.why)


def _evaluations_of(
    job: ArrayJob,
    name: str,
    runs: dict[str, RunSpec],
    evaluation: Evaluation,
    minutes: int | None,
    estimator: ResourceEstimator,
) -> ArrayJob:
    """The array whose element k evaluates all checkpoints of the runs of element k of `job`."""
    elements = [
        [Piece(run, evaluation(runs[run].kind)) for run in element for _ in runs[run].checkpoint_steps]
        for element in job.elements
    ]
    largest = max(
        (piece.estimate for element in elements for piece in element),
        key=lambda estimate: (estimate.resources.memory_mb or 0, estimate.resources.cpus_per_task, estimate.seconds),
    )
    longest = max(elements, key=seconds_of)
    resources = estimator.limited(_together(largest, seconds_of(longest), len(longest)), minutes).resources
    made = _array(name, "eval", resources, elements)  # of each run a checkpoint takes at most as long
    return replace(made, elements=job.elements, after=((job.name, "aftercorr"),))


def _chunks(elements: Sequence[list[Piece]], size: int) -> Iterator[Sequence[list[Piece]]]:
    for first in range(0, len(elements), size):
        yield elements[first : first + size]


def _throttled(jobs: Sequence[ArrayJob], most: int | None) -> Iterator[ArrayJob]:
    """The jobs, of whose array elements at most `most` run at once: each array one, the rest by expected time."""
    arrays = [job for job in jobs if job.kind in ("train", "eval")]
    total, spare = sum(job.total_s for job in arrays) or 1.0, max(0, (most or 0) - len(arrays))
    for job in jobs:
        share = 1 + int(spare * job.total_s / total)
        yield replace(job, throttle=share) if most and share < len(job.elements) else job


def elements_text(job: ArrayJob) -> str:
    """The file that an array's scripts read: element k is line k + 1, its items separated by tabs.

    Raises InputError for an item that such a file cannot hold.
    """
    for item in (item for element in job.elements for item in element):
        if not item or any(character in item for character in "\t\n\r\0"):
            raise InputError(f"run {item!r}: a tab or a line break in a run's name: rename it")
    return "".join("\t".join(element) + "\n" for element in job.elements)


def explain(plan: JobPlan) -> Iterable[str]:
    """Why each request is what it is: lines for --explain."""
    for job in plan.jobs:
        resources = job.resources
        yield f"{job.name}: {counted(len(job.elements), 'element')}, {counted(sum(map(len, job.elements)), 'item')}"
        for name in ("nodes", "cpus_per_task", "memory_mb", "minutes"):
            if name in resources.reasons:
                value = getattr(resources, name)
                yield f"  {name} = {'not requested' if value is None else value}: {resources.reasons[name]}"
