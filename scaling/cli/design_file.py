"""`scaling design --judge`: whether a study file's own runs hold the optima that it is to find, what they will tell of
the exponent of N_opt, and how many leases of a machine all of it takes: its sweep, its grid, each round of its
forecast, with evaluations.

A lease is some GPUs for some minutes. What belongs together ends inside one: a trunk with its branches, a run with its
evaluations. Each stage begins in a lease of its own, since what one finds out is registered before the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from analysis.evals.planning import Pace
from arch.amounts import count, counted, flop
from arch.errors import InputError
from arch.tables import text_table, wrapped
from flops import train_flops_per_token
from flops.hardware import Device
from flops.pace import START_S, start_of
from flops.tables import duration

from ..rundir.directory import VALIDATION
from ..study.cost import pace_of
from ..study.run import RunSpec
from ..study.spec import StudySpec, load_study
from ..study.sweep import sweep_of
from .design_pilot import Pilot, read_pilot
from .evaluation import eval_tasks, planned_tokens
from .gpu_sharing import ROOM, SHARE, gains_of, runs_together
from .planning import runs_by_arch
from .request import Request

if TYPE_CHECKING:
    from analysis.design.optimum import Budget
    from analysis.design.worlds import Prior

WORLDS = 200


@dataclass(frozen=True)
class Lease:
    """GPUs of a device, for a time."""

    device: Device
    gpus: int
    seconds: float


@dataclass(frozen=True)
class Stage:
    """name: of what; flops: `exact`; training, evaluation: seconds of one GPU; leases: the seconds that each is used,
    until its last GPU is done."""

    name: str
    n_runs: int
    flops: float
    training: float
    evaluation: float
    leases: list[float]


def stages_of(study: StudySpec, lease: Lease) -> tuple[list[Stage], list[str]]:
    """The stages in the order in which they are trained, and notes on what is not counted. Raises InputError, one line,
    where something that ends inside a lease takes longer."""
    tokens, notes = _tokens_of(study)
    pace = Pace(lease.device, {}, ())
    parts: list[tuple[str, list[RunSpec]]] = [("sweep", sweep_of(study).runs())] if study.sweep else []
    parts.append(("grid", study.runs()))
    rounds = range(len(study.rounds))
    parts += [(f"forecast{f', round {at + 1}' if at else ''}", study.forecast_runs(at)) for at in rounds]
    return [_stage(study, name, runs, lease, pace, tokens) for name, runs in parts], notes


def _tokens_of(study: StudySpec) -> tuple[dict[str, dict[str, int]], list[str]]:
    """{run id: {task: tokens of an evaluation}} of the grid and the forecast, and a note on tasks of which they are not
    known."""
    request = Request(study)
    tokens = planned_tokens(request, data_later=True)
    known = {task for of_run in tokens.values() for task in of_run}
    unknown = [task.name for task in eval_tasks(request) if task.name not in known]
    why = "their data are not here, or they do not say what they read"
    return tokens, [f"evaluations: without {', '.join(unknown)}: {why}"] if unknown else []


def _stage(
    study: StudySpec, name: str, runs: Sequence[RunSpec], lease: Lease, pace: Pace, tokens: dict[str, dict[str, int]]
) -> Stage:
    memory = lease.device.memory_bytes or math.inf
    room = min(ROOM, SHARE * memory)
    apart = study.jobs.processes > 1 or lease.device.unit != "GPU"
    shares = [1.0 if apart else 1 / runs_together(run, study.jobs.runs_per_gpu, room) for run in runs]
    gains = gains_of(runs, shares, lease.gpus)
    units, alone_s, training, evaluation = dict[str, float](), dict[str, float](), 0.0, 0.0
    for run in runs:
        whole = start_of(lease.device) + run.trained_steps * pace_of(run, lease.device).step_seconds
        steps = whole / gains.get(run.run_id, 1.0)
        read = tokens.get(run.run_id, {VALIDATION: study.evaluation.validation_tokens})
        evals = len(run.checkpoint_steps) * math.fsum(pace.seconds(task, run, n) for task, n in read.items())
        training, evaluation = training + steps, evaluation + evals
        family = run.trunk or run.run_id
        units[family] = units.get(family, 0.0) + steps + evals
        alone_s[family] = alone_s.get(family, 0.0) + whole + evals
    longest = max(alone_s, key=lambda family: alone_s[family])
    if (needed := START_S[lease.device.unit] + alone_s[longest]) > lease.seconds:
        raise InputError(
            f"{study.path}: {longest} with its branches and evaluations takes {needed / 60:.3g} min of one "
            f"{lease.device.name}, and a lease has {lease.seconds / 60:g}: plan a shorter run, or longer leases"
        )
    flops = math.fsum(float(train_flops_per_token(run.config, "exact")) * run.trained_tokens for run in runs)
    return Stage(name, len(runs), flops, training, evaluation, _packed(list(units.values()), lease))


def _packed(units: Sequence[float], lease: Lease) -> list[float]:
    """The seconds that each lease is used: the longest unit first, each in the first lease that has a GPU on which it
    ends in time."""
    start, leases = START_S[lease.device.unit], list[list[float]]()
    for seconds in sorted(units, reverse=True):
        for used in leases:
            least = min(range(lease.gpus), key=lambda at: used[at])
            if used[least] + seconds <= lease.seconds:
                used[least] += seconds
                break
        else:
            leases.append([start + seconds, *[start] * (lease.gpus - 1)])
    return [max(used) for used in leases]


@dataclass(frozen=True)
class JudgedStudy:
    """budgets, half_a: by architecture, half of the interval of N_opt's exponent; notes: on what was assumed."""

    study: str
    budgets: dict[str, list[Budget]]
    half_a: dict[str, float]
    stages: list[Stage]
    lease: Lease
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "budgets": {arch: [asdict(budget) for budget in of_arch] for arch, of_arch in self.budgets.items()},
            "half_a": self.half_a,
            "stages": [asdict(stage) for stage in self.stages],
            "device": self.lease.device.name,
            "gpus": self.lease.gpus,
            "lease_seconds": self.lease.seconds,
            "notes": self.notes,
        }

    def check(self) -> None:
        """Raise InputError where an optimum lies outside of the study's own runs."""
        from analysis.design.optimum import outside

        for arch, budgets in self.budgets.items():
            if not budgets:
                raise InputError(
                    f"{self.study}: {arch}: no budget has three sizes, which hold an optimum: give each three or more"
                )
            if away := outside(budgets):
                first = away[0]
                raise InputError(
                    f"{self.study}: the optimum of {arch} at {flop(first.flops)} FLOP, of {count(first.n_opt[1])} "
                    f"parameters [{count(first.n_opt[0])}, {count(first.n_opt[2])}], lies outside of the sizes that "
                    f"are trained there ({count(first.smallest)} to {count(first.largest)}) in {1 - first.inside:.0%} "
                    f"of {WORLDS} worlds: give that budget other sizes, or other tokens"
                )


def judge(
    name: str, pilot: str | None, noise_of: Callable[[Pilot | None], tuple[float, str]], lease: Lease
) -> JudgedStudy:
    """noise_of: the standard deviation of log loss between seeds, with a pilot or without, and where it is from. Raises
    InputError where the study's file is wrong, or a run of it takes longer than a lease."""
    import numpy as np

    from analysis.design.check import expect, middle_of
    from analysis.design.optimum import budgets_of
    from analysis.design.worlds import Noise, literature, pooled

    study = load_study(name, own=True)
    runs = study.runs()
    if any(run.point for run in runs):
        raise InputError(f"{study.path}: its axes make it several studies: judge a file of each point")
    runs_of, vocabulary = runs_by_arch(runs, study.fit), {run.arch: run.config.vocab_size for run in runs}
    known = read_pilot(pilot, list(runs_of), study.corpus.tokenizer, others=True) if pilot else None
    priors = known.priors if known is not None else dict[str, "Prior"]()
    if pilot and not priors:
        raise InputError(f"--pilot {pilot}: has no runs of {', '.join(runs_of)}: leave it out")
    seed_noise, noise_source = noise_of(known)
    others = pooled(list(priors.values()))
    budgets, half_a = dict[str, list["Budget"]](), dict[str, float]()
    for arch, of_arch in runs_of.items():
        if arch not in priors:
            priors[arch] = others or literature(vocabulary[arch], middle_of(of_arch))
        prior = priors[arch]
        random = np.random.default_rng(0)
        budgets[arch] = budgets_of(of_arch, [prior.draw(random) for _ in range(WORLDS)])
        half_a[arch] = expect(of_arch, vocabulary[arch], Noise(seed_noise), prior=prior).half_a
    stages, notes = stages_of(study, lease)
    notes += decay_lines(runs)
    archs_of: dict[str, list[str]] = {}
    for arch, prior in priors.items():
        archs_of.setdefault(prior.source, []).append(arch)
    notes = [
        *(f"worlds of {', '.join(archs)}: {source}" for source, archs in archs_of.items()),
        f"noise between seeds: {seed_noise:.2%} of the loss ({noise_source})",
        *notes,
    ]
    return JudgedStudy(study.path, budgets, half_a, stages, lease, notes)


def decay_lines(runs: Sequence[RunSpec]) -> list[str]:
    """What weight decay by a recipe comes to in these runs, and what its constant decides."""
    taus = [run.rate.timescale for run in runs if run.rate is not None and run.rate.timescale is not None]
    if not taus:
        return []
    return [
        f"weight decay by the recipe: weights average over {min(taus):.2g} to {max(taus):.2g} of a run's tokens (tau); "
        f"half of recipe.timescale makes every weight decay twice as high, twice of it half as high: what either costs "
        f"is not known before runs of one size are trained at all three"
    ]


def show_judged(judged: JudgedStudy) -> str:
    """The budgets of every architecture, and the stages with their leases."""
    heads = ["architecture", "C exact", "sizes", "from", "to", "N_opt", "10% to 90% of worlds", "inside"]
    rows = [
        [
            *(arch, flop(budget.flops), str(budget.n_sizes), count(budget.smallest), count(budget.largest)),
            *(count(budget.n_opt[1]), f"{count(budget.n_opt[0])} to {count(budget.n_opt[2])}", f"{budget.inside:.0%}"),
        ]
        for arch, budgets in judged.budgets.items()
        for budget in budgets
    ]
    lease = judged.lease
    of_stages = [
        [
            *(stage.name, f"{stage.n_runs:,}", flop(stage.flops), duration(stage.training), duration(stage.evaluation)),
            *(str(len(stage.leases)), ", ".join(f"{seconds / 60:.0f}" for seconds in stage.leases)),
        ]
        for stage in judged.stages
    ]
    stage_heads = ["stage", "runs", "FLOP", "training", "evaluation", "leases", "minutes of each"]
    n_leases = sum(len(stage.leases) for stage in judged.stages)
    used = sum(sum(stage.leases) for stage in judged.stages)
    lines = [
        *(f"{arch}: half of the interval of N_opt's exponent: {half:.3f}" for arch, half in judged.half_a.items()),
        f"{counted(n_leases, 'lease')} of {counted(lease.gpus, 'GPU')} ({lease.device.name}), "
        f"{lease.seconds / 60:g} min each, used for {duration(used)} in all; training and evaluation: of one GPU, "
        f"modelled; without the corpus",
        *judged.notes,
    ]
    tables = [text_table(heads, rows)] if rows else []
    return "\n\n".join([*tables, text_table(stage_heads, of_stages), "\n".join(wrapped(lines))])
