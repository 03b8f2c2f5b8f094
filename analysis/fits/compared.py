"""Architectures compared by their surfaces: those of a study under every way of counting compute and size that its runs
tell, and groups of points of any source, counted as they are.

Each run gives a few points along its settled curve. The noise that moves a run as a whole is a draw of the run's, and
what the runs of one cell share (size, seed and batches) is taken out of differences: analysis.fits.comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.approaches import Options
from analysis.fits.comparison.views import across
from analysis.fits.grouping import grouped
from analysis.fits.parametric import FIRST_SHARE
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import no_formula, prepare, under
from analysis.labels import families
from analysis.run_table import RunTable
from arch.amounts import counted_of
from arch.errors import InputError
from scaling.study.schedule import DECAYED, MERGED

POINTS_A_RUN = 5
N_REPLICATES = 299
Views = Mapping[str, Sequence[Points] | str]  # by the name of a way of counting, the groups, or why there are none


def compare_groups(
    views: Views, families: Sequence[tuple[str, Sequence[str]]], options: Options, seed_noise: float = 0.0
) -> list[dict[str, Any]]:
    """A comparison as plain data for each family of groups whose losses can be compared (`at`: its name, "" where there
    is one): `views`, `pairs`, and `reason` where there is none to be had. seed_noise: between seeds, in log loss (0:
    not measured)."""
    found = []
    for name, mine in families:
        own = {
            view: groups if isinstance(groups, str) else [one for one in groups if one.group in mine]
            for view, groups in views.items()
        }
        if max((len(groups) for groups in own.values() if not isinstance(groups, str)), default=0) < 2:
            found.append(_none("a comparison needs two architectures", name))
        else:
            found.append(
                {"at": name, "reason": None} | across(own, N_REPLICATES, options.level, options.seed, seed_noise)
            )
    return found


def _none(reason: str, at: str = "") -> dict[str, Any]:
    return {"at": at, "reason": reason, "views": {}, "pairs": []}


def compare_study(
    study: RunTable, options: Options, seed_noise: float = 0.0, points: str = CURVES
) -> list[dict[str, Any]]:
    """`compare_groups` of a study, for each family of its groups (analysis.labels); points: of each run its curve, or
    its end alone."""
    if study.settings.points == MERGED:  # its draws know no error that points have in common
        study = study.under(None, points=DECAYED)
    try:
        views = views_of(study, points)
    except InputError as error:
        return [_none(str(error))]
    groups = list(dict.fromkeys(one.group for found in views.values() if not isinstance(found, str) for one in found))
    return compare_groups(views, families(groups, contexts(grouped(study).runs)), options, seed_noise)


def compare_points(groups: Sequence[Points], options: Options) -> list[dict[str, Any]]:
    """`compare_groups` of points of any source, counted as they are; of curves a few points a run. Groups whose losses
    are of another text, tokenizer, ... (Points.loss_of) are compared with their like alone, and `reason` names them
    all."""
    several = any(len(one) > one.n_runs for one in groups)
    views = {f"C {groups[0].convention}": [thinned(one, POINTS_A_RUN) if several else one for one in groups]}
    kinds: dict[str, list[str]] = {}
    for one in groups:
        kinds.setdefault(one.loss_of, []).append(one.group)
    if len(kinds) == 1:
        return compare_groups(views, [("", [one.group for one in groups])], options)
    found = compare_groups(views, [(kind, mine) for kind, mine in kinds.items() if len(mine) > 1], options)
    named = "; ".join(f"{', '.join(mine)} ({kind or 'unstated'})" for kind, mine in kinds.items())
    return [*found, _none(f"losses of {len(kinds)} kinds, which are not compared with each other: {named}")]


def contexts(runs: pd.DataFrame) -> dict[str, str]:
    """By group, what its runs' tokens are read after, the context length and whether documents are read apart: losses
    that differ in it are not compared within an architecture."""
    read = runs["context_length"].astype(str) + runs["reset_at_documents"].map({True: ", apart"}).fillna("")
    known = read[runs["context_length"].notna() & (runs["left_out"] == "")].groupby(runs["group"])
    used = runs.loc[runs["left_out"] == "", "group"].unique()
    return {str(group): str([]) for group in used} | {str(group): str(sorted(one.unique())) for group, one in known}


def views_of(study: RunTable, points: str = CURVES) -> dict[str, list[Points] | str]:
    """By name, the points of every architecture with C and N counted in one way, or why there are none; `points`: of
    curves, or ends alone. Raises InputError where no run can be fitted."""
    runs, own = grouped(study).runs, study.settings.flops
    read = [thinned(one, POINTS_A_RUN) for one in prepare(study, points=points).groups.values()]
    found: dict[str, list[Points] | str] = {f"C {own}, N without embeddings": read}
    found[f"C {own}, N with embeddings"] = [_all_params(one, runs.set_index("run_id")) for one in read]
    found["C measured seconds, N without embeddings"] = _seconds(read, runs.set_index("run_id"))
    for convention in ("exact", "6nd"):
        if convention != own:
            found[f"C {convention}, N without embeddings"] = _under(read, runs, convention)
    return found


def _under(groups: Sequence[Points], runs: pd.DataFrame, convention: str) -> list[Points] | str:
    """The groups counted by another convention, or which has no formula."""
    counted = [(one, under(one, runs, convention)) for one in groups]
    lacks = [no_formula(one.group, convention) for one, other in counted if other is None]
    return lacks[0] if lacks else [other for _, other in counted if other is not None]


def thinned(points: Points, count: int) -> Points:
    """At most `count` points of every run, evenly along log D from a tenth of its tokens to the end; runs of one cell
    are those of one size that read the same batches."""
    taken = points.thinned(count, FIRST_SHARE)
    return replace(taken, cell=np.array([f"{cell}, {size}" for cell, size in zip(taken.cell, taken.size, strict=True)]))


def _all_params(points: Points, runs: pd.DataFrame) -> Points:
    return replace(points, n_params=runs.loc[points.run, "n_params"].to_numpy(dtype=float))


def _seconds(groups: list[Points], runs: pd.DataFrame) -> list[Points] | str:
    """C as measured training time: seconds a token, the median of a size's runs. Only where all runs trained on the
    same hardware; else the reason."""
    ids = [run for points in groups for run in points.run]
    hardware, speed = runs.loc[ids, "hardware"], runs.loc[ids, "tokens_per_s"].astype(float)
    if missing := int((hardware.isna() | ~(speed > 0)).sum()):
        return f"hardware or speed is not recorded for {counted_of(missing, len(ids), 'point')}"
    if len(set(hardware)) > 1:
        return f"runs trained on different hardware ({', '.join(sorted(set(hardware)))})"
    found = []
    for points in groups:
        pace = runs.loc[points.run, "tokens_per_s"].to_numpy(dtype=float)
        a_token = np.array([1 / np.median(pace[points.size == size]) for size in points.size])
        found.append(replace(points, flops=points.n_tokens * a_token, convention="seconds"))
    return found
