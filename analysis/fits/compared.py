"""Architectures compared by their surfaces: those of a study under every way of counting compute and size that its runs
tell, and groups of points of any source, counted as they are.

Each run gives a few points along its settled curve. The noise that moves a run as a whole is a draw of the run's, and
what the runs of one cell share (size, seed and batches) is taken out of differences: analysis.fits.comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.fits.approaches import Options
from analysis.fits.comparison.frontiers import BEYOND, fit_frontiers, view_of
from analysis.fits.fit import PARAMETRIC, Claim, Fit
from analysis.fits.pairwise import Compared, View
from analysis.fits.parametric import FIRST_SHARE, rows_of
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import grouped, no_formula, prepare, under
from analysis.fits.rehearsal import Forecast, forecast
from analysis.fits.verdicts import judge_ranking
from analysis.labels import families
from analysis.run_table import RunTable
from arch.amounts import counted_of
from arch.errors import InputError

POINTS_A_RUN = 5
N_REPLICATES = 299
Views = Mapping[str, Sequence[Points] | str]  # by the name of a way of counting, the groups, or why there are none


def compare_study(
    study: RunTable, options: Options, seed_noise: float = 0.0, points: str = CURVES, fits: Sequence[Fit] = ()
) -> list[Compared]:
    """The groups of a study, family by family (analysis.labels). points: of each run its curve, or its end alone;
    seed_noise: between seeds, in log loss (0: not measured); fits: of the groups."""
    try:
        views = views_of(study, points)
    except InputError as error:
        return [Compared(reason=str(error))]
    groups = list(dict.fromkeys(group.group for read in views.values() if not isinstance(read, str) for group in read))
    compared_names = families(groups, contexts(grouped(study).runs))
    return [_compared(name, names, views, options, seed_noise, fits) for name, names in compared_names]


def compare_points(groups: Sequence[Points], options: Options, fits: Sequence[Fit] = ()) -> list[Compared]:
    """Groups of points of any source, with their fits, counted as they are; of curves a few points a run. Groups whose
    losses are of another text, tokenizer, ... (Points.loss_of) are compared with their like alone, and `reason` names
    them all."""
    several = any(len(points) > points.n_runs for points in groups)
    views = {f"C {groups[0].convention}": [thinned(group, POINTS_A_RUN) if several else group for group in groups]}
    kinds: dict[str, list[str]] = {}
    for points in groups:
        kinds.setdefault(points.loss_of, []).append(points.group)
    if len(kinds) == 1:
        return [_compared("", [points.group for points in groups], views, options, 0.0, fits)]
    compared = [_compared(kind, names, views, options, 0.0, fits) for kind, names in kinds.items() if len(names) > 1]
    named = "; ".join(f"{', '.join(names)} ({kind or 'unstated'})" for kind, names in kinds.items())
    return [
        *compared,
        Compared(reason=f"losses of {len(kinds)} kinds, which are not compared with each other: {named}"),
    ]


def _compared(
    at: str, names: Sequence[str], views: Views, options: Options, seed_noise: float, fits: Sequence[Fit]
) -> Compared:
    own = {
        view: groups if isinstance(groups, str) else [group for group in groups if group.group in names]
        for view, groups in views.items()
    }
    if max((len(groups) for groups in own.values() if not isinstance(groups, str)), default=0) < 2:
        return Compared(at, reason="a comparison needs two architectures")
    described = dict[str, View]()
    for name, groups in own.items():
        try:
            if isinstance(groups, str):
                raise InputError(groups)
            frontiers = fit_frontiers(groups, N_REPLICATES, options.level, options.seed, seed_noise)
            described[name] = view_of(frontiers)
        except InputError as error:
            described[name] = View(reason=str(error))
    compared = Compared(at, described)
    if compared.main is None:
        return compared
    surfaces = {fit.group: fit for fit in fits if fit.approach == PARAMETRIC}
    groups = next(iter(own.values()))
    assert not isinstance(groups, str)
    return replace(compared, rankings=tuple(_rankings(compared.main, groups, options.objective, surfaces)))


def _rankings(view: View, groups: Sequence[Points], objective: str, fits: Mapping[str, Fit]) -> Iterator[Claim]:
    """Which of each pair has the lower loss at the end of the range and at ten times it, where laws tell."""
    known = dict[str, Forecast]()
    for points in groups:
        with suppress(InputError):
            rows = rows_of(points)
            known[points.group] = forecast(rows.points, rows.weights, objective=objective)
    for pair in view.pairs:
        for c in (view.range[1], BEYOND * view.range[1]):
            if set(pair) <= known.keys():
                with suppress(InputError):
                    yield judge_ranking({name: known[name] for name in pair}, c, fits)


def contexts(runs: pd.DataFrame) -> dict[str, str]:
    """By group, what its runs' tokens are read after, the context length and whether documents are read apart: losses
    that differ in it are not compared within an architecture."""
    read = runs["context_length"].astype(str) + runs["reset_at_documents"].map({True: ", apart"}).fillna("")
    known = read[runs["context_length"].notna() & (runs["left_out"] == "")].groupby(runs["group"])
    used = runs.loc[runs["left_out"] == "", "group"].unique()
    return {str(group): str([]) for group in used} | {str(group): str(sorted(texts.unique())) for group, texts in known}


def views_of(study: RunTable, points: str = CURVES) -> dict[str, list[Points] | str]:
    """By name, the points of every architecture with C and N counted in one way, or why there are none; `points`: of
    curves, or ends alone. Raises InputError where no run can be fitted."""
    runs, own = grouped(study).runs, study.settings.flops
    read, by_id = (
        [thinned(group, POINTS_A_RUN) for group in prepare(study, points=points).groups.values()],
        runs.set_index("run_id"),
    )
    views: dict[str, list[Points] | str] = {f"C {own}, N without embeddings": read}
    views[f"C {own}, N with embeddings"] = [
        replace(group, n_params=by_id.loc[group.run, "n_params"].to_numpy(dtype=float)) for group in read
    ]
    views["C measured seconds, N without embeddings"] = _seconds(read, by_id)
    for convention in ("exact", "6nd"):
        if convention != own:
            views[f"C {convention}, N without embeddings"] = _under(read, runs, convention)
    return views


def _under(groups: Sequence[Points], runs: pd.DataFrame, convention: str) -> list[Points] | str:
    """The groups counted by another convention, or which has no formula."""
    counted = [(group, under(group, runs, convention)) for group in groups]
    lacks = [no_formula(group.group, convention) for group, other in counted if other is None]
    return lacks[0] if lacks else [other for _, other in counted if other is not None]


def thinned(points: Points, count: int) -> Points:
    """At most `count` points of every run, evenly along log D from a tenth of its tokens to the end; runs of one cell
    are those of one size that read the same batches."""
    taken = points.thinned(count, FIRST_SHARE)
    return replace(taken, cell=np.array([f"{cell}, {size}" for cell, size in zip(taken.cell, taken.size, strict=True)]))


def _seconds(groups: list[Points], runs: pd.DataFrame) -> list[Points] | str:
    """C as measured training time: seconds a token, the median of a size's runs. Only where all runs trained on the
    same hardware; else the reason."""
    ids = [run for points in groups for run in points.run]
    hardware, speed = runs.loc[ids, "hardware"], runs.loc[ids, "tokens_per_s"].astype(float)
    if missing := int((hardware.isna() | ~(speed > 0)).sum()):
        return f"hardware or speed is not recorded for {counted_of(missing, len(ids), 'point')}"
    if len(set(hardware)) > 1:
        return f"runs trained on different hardware ({', '.join(sorted(set(hardware)))})"
    timed = []
    for points in groups:
        pace = runs.loc[points.run, "tokens_per_s"].to_numpy(dtype=float)
        a_token = np.array([1 / np.median(pace[points.size == size]) for size in points.size])
        timed.append(replace(points, flops=points.n_tokens * a_token, convention="seconds"))
    return timed
