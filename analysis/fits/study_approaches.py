"""What a study's runs say by every approach, beside the laws of its fit stage: the parametric surface of each
architecture, what its runs wasted, and the architectures compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.envelope.of_points import seed_noise_of
from analysis.fits.parametric import waste
from analysis.fits.parametric.fit import ParametricFit, fit_parametric
from analysis.fits.parametric.many import LEAST_SQUARES
from analysis.fits.parametric.results import result_of
from analysis.fits.points import Points
from analysis.fits.study_comparison import compare_study, thinned
from analysis.fits.study_points import StudyRuns, study_points
from analysis.fits.tables.points import CURVES
from arch.errors import InputError

POINTS_A_RUN = 8
HOUR = 3600.0  # seconds


def approaches_of_study(study: StudyRuns) -> dict[str, Any]:
    """{"parametric": {architecture: a FitResult as plain data, or {"reason"}}, "waste": {architecture: rows},
    "comparison": of analysis.fits.study_comparison}."""
    settings = study.settings
    try:
        groups: Mapping[str, Points] = study_points(study, CURVES).groups
    except InputError as error:
        return {"parametric": {}, "waste": {}, "comparison": {"reason": str(error), "views": {}, "pairs": []}}
    parametric: dict[str, Any] = {}
    wasted: dict[str, Any] = {}
    for arch, points in groups.items():
        # its own seeds' noise is in its residuals already
        noise = seed_noise_of([one for other, one in groups.items() if other != arch])
        try:
            fit = fit_parametric(
                thinned(points, POINTS_A_RUN),
                objective=LEAST_SQUARES,  # the noise between seeds has no outliers that Huber's loss would hold off
                n_replicates=settings.n_replicates,
                seed=settings.seed,
                noise=None if noise is None else (noise.s, float(noise.df)),
            )
        except InputError as error:
            parametric[arch] = {"reason": str(error)}
            continue
        ends = [float(np.exp(np.log(points.flops).max()))]
        parametric[arch] = result_of(fit, at=ends, level=settings.level).to_dict() | {"reason": None}
        wasted[arch] = waste_rows(fit, points, study.tables.runs, settings.level)
    return {
        "parametric": parametric,
        "waste": wasted,
        "comparison": compare_study(study, settings.seed, settings.level),
    }


def waste_rows(fit: ParametricFit, points: Points, runs: pd.DataFrame, level: float) -> list[dict[str, Any]]:
    """For every run: the compute that its size and length cost beyond the optimum of the fitted surface, as a share, in
    FLOP and in hours of its training, with the interval of the share; most wasteful first. Empty where the surface is
    not identified."""
    if not fit.identified:
        return []
    known = runs.set_index("run_id")
    rows = []
    for run in dict.fromkeys(points.run.tolist()):
        mine = np.flatnonzero(points.run == run)
        last = mine[int(points.n_tokens[mine].argmax())]
        n, d, c = (float(values[last]) for values in (points.n_params, points.n_tokens, points.flops))
        share = float(waste.of_runs(fit.surface, n, d, fit.cost))
        ends = None
        if fit.draws is not None:
            ends = [float(end) for end in fit.draws.interval(waste.of_runs(fit.draws.surface, n, d, fit.cost), level)]
        seconds = float(known.loc[run, "time_s"]) if "time_s" in known else float("nan")
        hours = share * seconds / HOUR if np.isfinite(seconds) else None
        rows.append({"run_id": run, "c": c, "share": share, "interval": ends, "flops": share * c, "hours": hours})
    return sorted(rows, key=lambda row: -float(row["share"]))
