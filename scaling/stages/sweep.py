"""The sweep of a study: short runs over learning rates, more of them where a cell's best rate is its first or last, the
laws fitted to them, and the law file that the study's runs follow.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.amounts import count, counted, flop
from arch.errors import InputError
from flops import count_params

from ..rundir.directory import RunDir
from ..rundir.lock import study_lock
from ..rundir.prepare import OtherRun, check_run
from ..rundir.worklist import is_trained
from ..study.plan import plan
from ..study.sweep import SweepSpec, Where, not_swept, recipe_of, sweep_identity, sweep_of
from .corpus import data_stage
from .planning import timed_plan
from .request import Request
from .training import train_stage

if TYPE_CHECKING:
    from analysis.rates.cell import RatePoint
    from analysis.rates.law import RatesFit
    from data.corpus import Corpus

MAX_EXTRA = 2  # rates that a cell may get beyond those of the study file, on each side; between them twice as many
NARROW = 1.25  # times that the rates of a gap must differ by to get another between them


def plan_sweep(request: Request) -> dict[str, Any]:
    """The plan of the sweep's first rates, as timed_plan, with "cells" and "share", its FLOP `exact` over those of the
    grid's runs, and "refused", why it would be refused: that is more than sweep.share allows, or directories of other
    runs are in the way."""
    spec = sweep_of(request.study)
    table = timed_plan(Request(spec, None, request.stream))
    main = plan(request.study, request.whole_grid)["totals"]["flops_exact"]
    share, most = table["totals"]["flops_exact"] / main, request.study.sweep and request.study.sweep.share
    refused = None
    if most is not None and share > most:
        refused = (
            f"{request.study.path}: the sweep would cost {share:.0%} of the grid's {flop(main)} FLOP exact, and "
            f"sweep.share allows {most:.0%}: raise it, or take fewer rates, seeds or tokens"
        )
    refused = _twice(spec) or _other_runs(spec) or _trained_at_other_rates(request, spec) or refused
    table["notes"] += [line] if (line := not_swept(request.study)) else []
    return table | {"cells": len(spec.tried), "share": share, "refused": refused}


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


def _other_runs(spec: SweepSpec, corpus: Corpus | None = None) -> str | None:
    """Why what was swept earlier is in the way."""
    for run in spec.runs():
        rundir = RunDir(spec.run_directory(run))
        try:
            check_run(rundir, run, corpus.fingerprint if corpus else None)
        except OtherRun as error:
            return f"{error.difference}: remove {spec.directory} to sweep again"
    return None


def _is_left(spec: SweepSpec) -> bool:
    """Whether the sweep has a run to train."""
    swept = [(run, RunDir(spec.run_directory(run))) for run in spec.runs()]
    return not all(is_trained(run, rundir) or rundir.status()["state"] == "failed" for run, rundir in swept)


def _trained_at_other_rates(request: Request, spec: SweepSpec) -> str | None:
    """Why the study's runs would be refused after the sweep; None where the sweep has nothing left to train."""
    if not _is_left(spec):
        return None
    for run in request.whole_grid:
        rundir = request.rundir(run)
        if run.is_pending and rundir.run_json.exists():
            return (
                f"{rundir.path}: holds a run at learning rate {rundir.spec().training.lr:g}, and the sweep is to give "
                f"another: rename the study, or remove this directory"
            )
    return None


def pending(request: Request) -> bool:
    """Whether chosen runs wait for the study's sweep, which has not been made or has not left them without a rate."""
    return any(run.is_pending and not run.rate["swept"] for run in request.runs)


def sweep_line(request: Request) -> str:
    """What the sweep that runs wait for costs, in one line, and a second one for axes that it does not sweep."""
    table = plan_sweep(request)
    totals = table["totals"]
    return (
        f"learning rates by a sweep first: {counted(table['cells'], 'cell')}, {counted(totals['n_runs'], 'run')}, "
        f"{count(totals['n_tokens'])} tokens, {flop(totals['flops_exact'])} FLOP exact "
        f"({table['share']:.1%} of the grid's runs); {table['refused'] or table['expected']['text']}"
        + (f"\n{line}" if (line := not_swept(request.study)) else "")
    )


def sweep_stage(request: Request) -> dict[str, Any]:
    """Train and evaluate what is missing, fit, write <study>/rates.json and sweep/report/index.html.

    Returns {"trained", "failed", "extended": {cell: rates added}, "law": path, "report": path, "fit": RatesFit}. Raises
    InputError where no architecture has a law; the page is there then.
    """
    from analysis.rates.law import fit_rates, law_file, without_doubtful
    from analysis.rates.page import write_page
    from data.files import write_json

    if refused := plan_sweep(request)["refused"]:
        raise InputError(refused)
    study, spec = request.study, sweep_of(request.study)
    first = {where: tuple(rates) for where, rates in spec.tried.items()}
    with study_lock(study.directory):
        corpus = data_stage(request, _is_left(spec))
    spec.directory.mkdir(parents=True, exist_ok=True)
    if not (link := spec.directory / "corpus").exists():
        link.symlink_to(Path("..") / "corpus")
    if refused := _other_runs(spec, corpus):
        raise InputError(refused)
    recipe = recipe_of(spec, corpus.fingerprint)
    trained: list[str] = []
    if _is_left(spec) and (
        follow := [run for run in request.whole_grid if run.rate and request.rundir(run).run_json.exists()]
    ):
        request.say(
            f"warning: {counted(len(follow), 'run that is there follows', 'runs that are there follow')} a law "
            f"({follow[0].run_id}, ...): a law fitted to more runs may move their rates, and they would have to be "
            f"trained again"
        )
    while True:
        sweep_request = Request(spec, None, request.stream, repair=request.repair)
        with sweep_request.writing():
            now, failed = train_stage(sweep_request, corpus)
            trained += now
            _evaluate(sweep_request)
        points = points_of_sweep(sweep_request)
        fit = fit_rates(points, without=_without(spec))
        more = _more(spec, first, fit)
        if not more:
            break
        request.say(f"sweep: {counted(len(more), 'cell needs', 'cells need')} one more rate each beside their best one")
        spec = spec.with_rates(more)
    if spec.sweep is not None and spec.sweep.doubts == "stop":
        fit = without_doubtful(fit)
    page = write_page(fit, study.name, spec.directory / "report")
    law = law_file(fit, recipe).model_copy(update={"sweep": sweep_identity(study)})
    write_json(request.lock.path, law.model_dump(mode="json", by_alias=True), kind="results")
    extended = {
        f"{where.arch}/{where.size} {where.tokens}": [rate for rate in rates if rate not in first[where]]
        for where, rates in spec.tried.items()
        if len(rates) > len(first[where])
    }
    result = {"trained": trained, "failed": failed, "extended": extended, "report": str(page), "fit": fit}
    return result | {"law": str(request.lock.path)}


def _without(spec: SweepSpec) -> list[Any]:
    """Terms that the study file does not ask for: it has one length."""
    assert spec.sweep is not None
    return ["n_tokens"] if len(spec.sweep.tokens) == 1 else []


def _evaluate(request: Request) -> None:
    """The held-out losses of the last checkpoints, in this process: workers would look for a study file."""
    from .evaluation import eval_worker
    from .evaluation_matrix import steps_to_evaluate
    from .evaluation_tasks import EvalOptions

    if any(steps_to_evaluate(request).values()) and eval_worker(request, EvalOptions(), None):
        raise InputError(f"{request.study.directory}: an evaluation failed: run the sweep again")


def points_of_sweep(request: Request) -> list[RatePoint]:
    """A point for each run that has ended; loss nan where it diverged. Raises InputError for runs that have not."""
    from analysis.rates.cell import RatePoint
    from analysis.runs import load_tables

    evals = load_tables(request.study.directory, [run.run_id for run in request.runs], "none").evals
    losses = {(row["run_id"], int(row["step"])): float(row["loss"]) for row in evals.to_dict("records")}
    points, missing = [], []
    for run in request.runs:
        loss = losses.get((run.run_id, run.n_steps), math.nan)
        state = request.rundir(run).status()["state"]
        if state not in ("failed", "done"):
            missing.append(run.run_id)
            continue
        points.append(
            RatePoint(
                arch=run.arch,
                size=run.size,
                n_params=count_params(run.config).non_embedding,
                n_tokens=run.n_tokens,
                batch_tokens=run.training.batch_tokens,
                seed=run.seed,
                lr=run.training.peak_lr,
                loss=loss if state == "done" else math.nan,
            )
        )
    if missing:
        have = "has" if len(missing) == 1 else "have"
        raise InputError(
            f"{request.study.directory}: {len(missing)} of {counted(len(request.runs), 'run')} of the sweep {have} "
            f"not ended ({missing[0]}, ...): run the sweep again"
        )
    return points


def _more(spec: SweepSpec, first: dict[Where, tuple[float, ...]], fit: RatesFit) -> dict[Where, float]:
    """One more rate for each cell whose best rate is its first or last, on that side, or beside one that diverged,
    between the two; MAX_EXTRA at most on a side."""
    cells = {(cell.arch, cell.size, cell.n_tokens, cell.batch_tokens): cell for cell in fit.cells}
    more = {}
    for where, rates in spec.tried.items():
        run = next(spec.runs_of(where))
        cell = cells[(run.arch, run.size, run.n_tokens, run.training.batch_tokens)]
        side, gap, n_more = cell.extend, cell.gap, len(rates) - len(first[where])
        if side == "lower" and sum(rate < first[where][0] for rate in rates) < MAX_EXTRA:
            more[where] = float(f"{rates[0] ** 2 / rates[1]:.6g}")
        elif side == "higher" and sum(rate > first[where][-1] for rate in rates) < MAX_EXTRA:
            more[where] = float(f"{rates[-1] ** 2 / rates[-2]:.6g}")
        elif side == "between" and gap and gap[1] >= NARROW * gap[0] and n_more < 2 * MAX_EXTRA:
            more[where] = float(f"{math.sqrt(gap[0] * gap[1]):.6g}")
    return more
