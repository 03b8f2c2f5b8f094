"""`scaling design --judge`: whether a study file's own runs hold the optima that it is to find, what they will tell of
the exponent of N_opt, and how many leases of a machine all of it takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from arch.amounts import count, counted, flop
from arch.errors import InputError
from arch.tables import text_table, wrapped
from flops.tables import duration

from ..study.spec import load_study
from .design_leases import Lease, Stage, stages_of
from .design_pilot import read_pilot
from .planning import runs_by_arch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.design.optimum import Budget
    from analysis.design.worlds import Noise, Prior

    from ..study.run import RunSpec

WORLDS = 200


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


def judge(name: str, pilot: str | None, noise: Noise, lease: Lease) -> JudgedStudy:
    """Raises InputError where the study's file is wrong, or a run of it takes longer than a lease."""
    import numpy as np

    from analysis.design.check import expect, middle_of
    from analysis.design.optimum import budgets_of
    from analysis.design.worlds import literature, pooled

    study = load_study(name, own=True)
    runs = study.runs()
    if any(run.point for run in runs):
        raise InputError(f"{study.path}: its axes make it several studies: judge a file of each point")
    runs_of, vocabulary = runs_by_arch(runs, study.fit), {run.arch: run.config.vocab_size for run in runs}
    priors = dict[str, "Prior"]()
    if pilot:
        priors = read_pilot(pilot, list(runs_of), study.corpus.tokenizer, others=True).priors
    if pilot and not priors:
        raise InputError(f"--pilot {pilot}: has no runs of {', '.join(runs_of)}: leave it out")
    others = pooled(list(priors.values()))
    budgets, half_a = dict[str, list["Budget"]](), dict[str, float]()
    for arch, of_arch in runs_of.items():
        if arch not in priors:
            priors[arch] = others or literature(vocabulary[arch], middle_of(of_arch))
        prior = priors[arch]
        random = np.random.default_rng(0)
        budgets[arch] = budgets_of(of_arch, [prior.draw(random) for _ in range(WORLDS)])
        half_a[arch] = expect(of_arch, vocabulary[arch], noise, prior=prior).half_a
    stages, notes = stages_of(study, lease)
    notes += decay_lines(runs)
    archs_of: dict[str, list[str]] = {}
    for arch, prior in priors.items():
        archs_of.setdefault(prior.source, []).append(arch)
    notes = [*(f"worlds of {', '.join(archs)}: {source}" for source, archs in archs_of.items()), *notes]
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
