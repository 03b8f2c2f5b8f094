"""`scaling sweep`: short runs over learning rates, more of them where a cell's best rate is its first or last, the laws
fitted to them, and the law file that the study's runs follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.amounts import count, counted, counted_of, flop
from arch.errors import InputError
from flops import count_params

from ..rundir.directory import RunDir
from ..rundir.lock import study_lock
from ..rundir.prepare import OtherRun, check_run
from ..rundir.worklist import is_trained
from ..study.plan import plan, show_plan
from ..study.rate_law import TERMS
from ..study.recipe import BATCH
from ..study.run import RunSpec
from ..study.sweep import SweepSpec, Where, not_swept, recipe_of, sweep_identity, sweep_of
from .corpus import data_stage
from .evaluation import eval_worker, steps_to_evaluate
from .options import ChangedStudyOptions, DryRun, Repair, close, print_json
from .planning import TimedPlan, timed_plan
from .request import Request
from .training import train_stage

if TYPE_CHECKING:
    from analysis.rates.cell import RatePoint
    from analysis.rates.law import RatesFit
    from data.corpus import Corpus

    from ..study.rate_law import Recipe, Term

MAX_EXTRA = 2  # rates that a cell may get beyond those of the study file, on each side; between them twice as many
NARROW = 1.25  # times that the rates of a gap must differ by to get another between them


def sweep(study: ChangedStudyOptions, repair: Repair = False, dry_run: DryRun = False) -> None:
    """Find learning rates by short runs. The study's section `sweep` describes them; its runs follow their law."""
    request = study.request(repair)
    if dry_run:
        planned, spec = plan_sweep(request), sweep_of(request.study)
        grown = spec if planned.refused else _grown(spec, spec)
        left, added = len(_left(grown)), _added(grown, spec)
        if study.as_json:
            return print_json(planned.to_dict() | {"todo": left, "extended": added})
        print(show_plan(planned.timed.plan))
        print(f"{counted(planned.n_cells, 'cell')}, {planned.share:.1%} of the FLOP of the study's runs")
        if planned.refused:
            return print(f"would be refused: {planned.refused}")
        for line in _rates_lines(added):
            print(line)
        return print(f"would train {counted_of(left, len(grown.runs()), 'run')} (dry run: nothing was written)")
    result = sweep_stage(request)
    if study.as_json:
        print_json(result.to_dict())
    else:
        from .show import show_sweep

        print(f"\n{show_sweep(result.fit)}\n\nlaw: {result.law}\nreport: {result.report}")
    close(request, {})
    study.say_next("run")


@dataclass(frozen=True)
class SweepPlan:
    """The plan of the sweep's first rates. share: its FLOP `exact` over those of the grid's runs; refused: why it would
    be refused, None where it would not."""

    timed: TimedPlan
    n_cells: int
    share: float
    refused: str | None

    def to_dict(self) -> dict[str, Any]:
        return self.timed.to_dict() | {"cells": self.n_cells, "share": self.share, "refused": self.refused}


@dataclass(frozen=True)
class Swept:
    """Runs that were trained now and that failed, {cell: rates added}, where law and report are, and the fit."""

    trained: list[str]
    failed: dict[str, str]
    extended: dict[str, list[float]]
    law: Path
    report: Path
    fit: RatesFit

    def to_dict(self) -> dict[str, Any]:
        paths = {"law": str(self.law), "report": str(self.report)}
        return {
            **{"trained": self.trained, "failed": self.failed, "extended": self.extended, **paths},
            "without_law": self.fit.without_law,
        }


def plan_sweep(request: Request) -> SweepPlan:
    """Refused where it costs more than sweep.share allows, two cells are the same, or other runs are in the way."""
    study, spec = request.study, sweep_of(request.study)
    timed = timed_plan(Request(spec, None, request.stream))
    main = plan(study, request.whole_grid).flops_exact
    share, most = timed.plan.flops_exact / main, study.sweep.share if study.sweep else None
    costly = None
    if most is not None and share > most:
        costly = (
            f"{study.path}: the sweep would cost {share:.0%} of the grid's {flop(main)} FLOP exact, and sweep.share "
            f"allows {most:.0%}: raise it, or take fewer rates, seeds or tokens"
        )
    refused = _twice(spec) or _lawless(spec) or _other_runs(spec) or _trained_at_other_rates(request, spec) or costly
    timed.plan.notes += [line] if (line := not_swept(study)) else []
    return SweepPlan(timed, len(spec.tried), share, refused)


def _twice(spec: SweepSpec) -> str | None:
    """An error message where two cells are the same, since their runs make the same steps; None otherwise."""
    run_of_cell: dict[tuple[Any, ...], str] = {}
    for run in spec.runs():
        cell = (run.arch, run.size, run.n_tokens, run.training.batch_tokens, run.seed, run.training.lr)
        if (first := run_of_cell.setdefault(cell, run.run_id)) != run.run_id:
            return (
                f"{spec.path}: sweep.tokens: {first} and {run.run_id} have the same {run.n_steps:,} steps: take "
                f"lengths that are further apart, or a smaller batch"
            )
    return None


def _lawless(spec: SweepSpec) -> str | None:
    """Why no law could come of the sweep, however its runs end."""
    from analysis.rates.law import lacking

    points = [point_of(run, math.nan) for run in spec.runs()]
    why = lacking(points, _not_in_law(spec, recipe_of(spec, None)))
    return f"{spec.path}: sweep: {why}" if why else None


def _not_in_law(spec: SweepSpec, recipe: Recipe) -> list[Term]:
    """The terms that the law shall not have: a study with one length has none in the tokens, one whose batch follows
    them none in the batch."""
    one_length = spec.sweep is not None and len(spec.sweep.tokens) == 1
    absent = {"n_tokens": one_length, BATCH: BATCH in recipe.rules}
    return [term for term in TERMS if absent.get(term)]


def _other_runs(spec: SweepSpec, corpus: Corpus | None = None) -> str | None:
    """Why what was swept earlier is in the way."""
    for run in spec.runs():
        try:
            check_run(RunDir(spec.run_directory(run)), run, corpus.fingerprint if corpus else None)
        except OtherRun as error:
            return f"{error.difference}: remove {spec.directory} to sweep again"
    return None


def _left(spec: SweepSpec) -> list[RunSpec]:
    """The sweep's runs that are to be trained."""
    swept = [(run, RunDir(spec.run_directory(run))) for run in spec.runs()]
    return [run for run, at in swept if not is_trained(run, at) and at.status()["state"] != "failed"]


def _trained_at_other_rates(request: Request, spec: SweepSpec) -> str | None:
    """Why the study's runs would be refused after the sweep; None where the sweep has nothing left to train."""
    for run in request.whole_grid if _left(spec) else ():
        rundir = request.rundir(run)
        if run.is_pending and rundir.run_json.exists():
            return (
                f"{rundir.path}: holds a run at learning rate {rundir.spec().training.lr:g}, and the sweep is to give "
                f"another: rename the study, or remove this directory"
            )
    return None


def is_pending(request: Request) -> bool:
    """Whether chosen runs wait for the study's sweep, which has not been made or has not left them without a rate."""
    return any(run.is_pending and run.rate is not None and not run.rate.swept for run in request.runs)


def sweep_line(request: Request) -> str:
    """What the sweep that runs wait for costs, in one line, and a second one for axes that it does not sweep."""
    planned = plan_sweep(request)
    made = planned.timed.plan
    return (
        f"learning rates by a sweep first: {counted(planned.n_cells, 'cell')}, {counted(len(made.runs), 'run')}, "
        f"{count(made.n_tokens)} tokens, {flop(made.flops_exact)} FLOP exact "
        f"({planned.share:.1%} of the grid's runs); {planned.refused or planned.timed.expected}"
        + (f"\n{line}" if (line := not_swept(request.study)) else "")
    )


def sweep_stage(request: Request) -> Swept:
    """Train and evaluate what is missing, fit, write <study>/rates.json and sweep/report/index.html. Raises InputError
    where no architecture has a law; the page is there then."""
    from analysis.rates.law import fit_rates, law_file
    from analysis.rates.page import write_page
    from data.files import write_json

    if refused := plan_sweep(request).refused:
        raise InputError(refused)
    study, spec = request.study, sweep_of(request.study)
    first, is_left = spec, bool(_left(spec))
    with study_lock(study.directory):
        corpus = data_stage(request, is_left)
    spec.directory.mkdir(parents=True, exist_ok=True)
    if not (link := spec.directory / "corpus").exists():
        link.symlink_to(Path("..") / "corpus")
    if refused := _other_runs(spec, corpus):
        raise InputError(refused)
    recipe = recipe_of(spec, corpus.fingerprint)
    follow = [run for run in request.whole_grid if run.rate and request.rundir(run).run_json.exists()]
    if follow and is_left:
        request.say(
            f"warning: {counted(len(follow), 'run that is there follows', 'runs that are there follow')} a law "
            f"({follow[0].run_id}, ...): a law fitted to more runs may move their rates, and they would have to be "
            f"trained again"
        )
    trained: list[str] = []
    without = _not_in_law(spec, recipe)
    spec = _grown(spec, first)
    while True:
        for line in _rates_lines(_added(spec, first)):
            request.say(line)
        of_sweep = Request(spec, None, request.stream, repair=request.repair)
        with of_sweep.writing():
            now, failed = train_stage(of_sweep, corpus)
            trained += now
            _evaluate(of_sweep)
        points = points_of_sweep(of_sweep)
        if missing := [run.run_id for run in of_sweep.runs if run.run_id not in points]:
            have = "has" if len(missing) == 1 else "have"
            raise InputError(
                f"{spec.directory}: {len(missing)} of {counted(len(of_sweep.runs), 'run')} of the sweep {have} "
                f"not ended ({missing[0]}, ...): run the sweep again"
            )
        before, spec = spec, _grown(spec, first)
        if spec.tried == before.tried:
            break
    fit = fit_rates(list(points.values()), without=without, share=study.recipe is not None)
    page = write_page(fit, study.name, spec.directory / "report")
    law = law_file(fit, recipe).model_copy(update={"sweep": sweep_identity(study)})
    write_json(request.lock.path, law.model_dump(mode="json", by_alias=True), kind="results")
    return Swept(trained, failed, _added(spec, first), request.lock.path, page, fit)


def _evaluate(request: Request) -> None:
    """The held-out losses of the last checkpoints, in this process: workers would look for a study file."""
    if any(steps_to_evaluate(request).values()) and eval_worker(request):
        raise InputError(f"{request.study.directory}: an evaluation failed: run the sweep again")


def points_of_sweep(request: Request) -> dict[str, RatePoint]:
    """{run id: its point} of the runs that have ended and are evaluated; loss nan where it diverged."""
    from analysis.run_evals import held_out_losses

    losses = dict[str, float]()
    for run in request.runs:
        rundir = request.rundir(run)
        state = rundir.status()["state"]
        if state == "failed":
            losses[run.run_id] = math.nan
        elif state == "done" and rundir.evaluation(run.n_steps).exists():
            evaluations, _ = held_out_losses(rundir.path, run.training)
            of_last = [row["loss"] for row in evaluations if row["step"] == run.n_steps]
            losses[run.run_id] = float(of_last[0]) if of_last else math.nan
    return {run.run_id: point_of(run, losses[run.run_id]) for run in request.runs if run.run_id in losses}


def point_of(run: RunSpec, loss: float) -> RatePoint:
    """A run of a sweep, which ended at that loss [nats a token]."""
    from analysis.rates.cell import RatePoint

    return RatePoint(
        arch=run.arch,
        size=run.size,
        n_params=count_params(run.config).non_embedding,
        n_tokens=run.n_tokens,
        batch_tokens=run.training.batch_tokens,
        seed=run.seed,
        lr=run.training.peak_lr,
        loss=loss,
    )


def _grown(spec: SweepSpec, first: SweepSpec) -> SweepSpec:
    """The sweep with the rates that its cells want beside those of `first`, by the runs that have ended."""
    while more := _more(spec, first):
        spec = spec.with_rates(more)
    return spec


def _more(spec: SweepSpec, first: SweepSpec) -> dict[Where, float]:
    """One more rate for each cell whose runs have all ended and whose best rate is its first or last, on that side;
    once there is none and all cells have ended, beside one that diverged, between the two. MAX_EXTRA at most on a side.
    So a sweep that is interrupted tries the same rates."""
    from analysis.rates.cell import fit_cell
    from analysis.rates.law import fit_rates

    points = points_of_sweep(Request(spec))
    more, cells = dict[Where, float](), dict[tuple[str, str, int, int], Where]()
    for where, rates in spec.tried.items():
        names = [run.run_id for run in spec.runs_of(where)]
        if not all(name in points for name in names):
            continue
        cell = fit_cell([points[name] for name in names])
        cells[points[names[0]].cell] = where
        if cell.extend == "lower" and sum(rate < first.tried[where][0] for rate in rates) < MAX_EXTRA:
            more[where] = float(f"{rates[0] ** 2 / rates[1]:.6g}")
        elif cell.extend == "higher" and sum(rate > first.tried[where][-1] for rate in rates) < MAX_EXTRA:
            more[where] = float(f"{rates[-1] ** 2 / rates[-2]:.6g}")
    if more or len(cells) < len(spec.tried):
        return more
    for cell in fit_rates(list(points.values())).cells:
        where = cells[cell.arch, cell.size, cell.n_tokens, cell.batch_tokens]
        few = len(spec.tried[where]) - len(first.tried[where]) < 2 * MAX_EXTRA
        if cell.extend == "between" and few and cell.gap and cell.gap[1] >= NARROW * cell.gap[0]:
            more[where] = float(f"{math.sqrt(cell.gap[0] * cell.gap[1]):.6g}")
    return more


def _added(spec: SweepSpec, first: SweepSpec) -> dict[str, list[float]]:
    """{cell: rates} of `spec` that are not those of `first`."""
    return {
        f"{where.arch}/{where.size} {where.tokens}"
        + (f" in batches of {where.batch_tokens:,}" if where.batch_tokens else ""): [
            rate for rate in rates if rate not in first.tried[where]
        ]
        for where, rates in spec.tried.items()
        if len(rates) > len(first.tried[where])
    }


def _rates_lines(added: dict[str, list[float]]) -> list[str]:
    """A line for each cell of `_added`."""
    return [
        f"sweep: {cell}: its best rate is at the edge of those tried, or beside one that diverged: "
        f"{', '.join(f'{rate:g}' for rate in rates)} too"
        for cell, rates in added.items()
    ]
