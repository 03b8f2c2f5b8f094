"""The architectures of a study compared, under every way of counting compute and size that its runs tell.

Each run gives a few points along its settled curve. The noise that moves a run as a whole is a draw of the run's, and
what the runs of one cell share (size, seed and batches) is taken out of differences: analysis.fits.comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.comparison.views import across
from analysis.fits.grouping import grouped
from analysis.fits.parametric.curves import FIRST_SHARE
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import no_formula, prepare, under
from analysis.fits.study import WholeCurves, contexts
from analysis.labels import families
from analysis.run_table import RunTable
from arch.amounts import counted_of
from arch.errors import InputError
from scaling.study.schedule import DECAYED, MERGED

POINTS_A_RUN = 5
N_REPLICATES = 299


def compare_study(
    study: RunTable, seed: int = 0, level: float = 0.95, seed_noise: float = 0.0, points: str = CURVES
) -> list[dict[str, Any]]:
    """A comparison as plain data for each family of the study's groups (analysis.labels; `at`: its name, "" without
    axes): `views`, `pairs`, and `reason` where there is none to be had. seed_noise: between the study's seeds, in log
    loss (0: not measured)."""
    if study.settings.points == MERGED:  # its draws know no error that points have in common
        study = study.under(None, points=DECAYED)
    try:
        views = views_of(study, points)
    except InputError as error:
        return [{"at": "", "reason": str(error), "views": {}, "pairs": []}]
    groups = list(dict.fromkeys(one.group for found in views.values() if not isinstance(found, str) for one in found))
    found = []
    for name, mine in families(groups, contexts(grouped(study).runs)):
        own = {
            view: told if isinstance(told, str) else [one for one in told if one.group in mine]
            for view, told in views.items()
        }
        found.append({"at": name} | _compared(own, seed, level, seed_noise))
    return found


def seed_noise_of_study(study: RunTable) -> float:
    """The standard deviation of log loss between the study's seeds, of a run's mean where that is known, as its fit
    stage measures it; 0 where it is not measured."""
    noise = WholeCurves.of(study, study.settings).noises().every
    return 0.0 if noise is None else float(noise.of_means or noise.s)


def compare_points(groups: Sequence[Points], seed: int = 0, level: float = 0.95) -> list[dict[str, Any]]:
    """The same for points of any source, counted as they are; of curves a few points a run. Groups whose losses are of
    another text, tokenizer, ... (Points.loss_of) are compared with their like alone, and `reason` names them all."""
    several = any(len(one) > one.n_runs for one in groups)
    kinds: dict[str, list[Points]] = {}
    for one in groups:
        kinds.setdefault(one.loss_of, []).append(thinned(one, POINTS_A_RUN) if several else one)
    found: list[dict[str, Any]] = []
    for kind, mine in kinds.items():
        if len(mine) > 1 or len(kinds) == 1:
            views = {f"C {mine[0].convention}": mine}
            found.append({"at": kind if len(kinds) > 1 else ""} | _compared(views, seed, level))
    if len(kinds) > 1:
        names = {kind: ", ".join(one.group for one in mine) for kind, mine in kinds.items()}
        told = "; ".join(f"{mine} ({kind or 'unstated'})" for kind, mine in names.items())
        why = f"losses of {len(kinds)} kinds, which are not compared with each other: {told}"
        found.append({"at": "", "reason": why, "views": {}, "pairs": []})
    return found


def _compared(
    views: Mapping[str, Sequence[Points] | str], seed: int, level: float, seed_noise: float = 0.0
) -> dict[str, Any]:
    if max((len(groups) for groups in views.values() if not isinstance(groups, str)), default=0) < 2:
        return {"reason": "a comparison needs two architectures", "views": {}, "pairs": []}
    return {"reason": None} | across(views, N_REPLICATES, level, seed, seed_noise)


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
