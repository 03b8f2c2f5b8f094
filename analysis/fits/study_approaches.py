"""What a study's runs say by every approach: laws with their checks and verdicts, beside those of its fit stage; what
the runs wasted; and the architectures compared.

Curves enter as a few points a run: under a constant learning rate each is as good as a run that ends there. The surface
is fitted by least squares: the noise between seeds has no outliers that Huber's loss would hold off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.approaches import ENVELOPE, ISOFLOP, PARAMETRIC, Options, envelope_results, fit_groups
from analysis.fits.envelope.of_points import seed_noise_of
from analysis.fits.parametric import waste
from analysis.fits.parametric.fit import ParametricFit, fit_parametric
from analysis.fits.parametric.many import LEAST_SQUARES
from analysis.fits.parametric.surface import Surface
from analysis.fits.points import Points
from analysis.fits.result import plain
from analysis.fits.study_comparison import compare_study, thinned
from analysis.fits.study_points import StudyRuns, study_points
from analysis.fits.tables.points import CURVES
from arch.errors import InputError

POINTS_A_RUN, CURVE_POINTS = 12, 64  # of the surfaces; of isoFLOP and the envelope's checks, which read curves
N_REPLICATES = 400
HOUR = 3600.0  # seconds


def approaches_of_study(study: StudyRuns, fits: Mapping[str, Any]) -> dict[str, Any]:
    """{"laws": [FitResult as plain data, one a group and approach], "not_fitted": [group, approach, reason],
    "side_by_side": {group: analysis.fits.diagnose.side_by_side}, "waste": {group: rows of `waste_rows`},
    "wrong_choices": {group: `wrong_choices`}, "comparison": of analysis.fits.study_comparison}. fits: what `fit_study`
    found."""
    settings = study.settings
    try:
        groups = study_points(study, CURVES).groups
    except InputError as error:
        none = {"reason": str(error), "views": {}, "pairs": []}
        empty: dict[str, Any] = {"laws": [], "not_fitted": [], "side_by_side": {}, "waste": {}, "wrong_choices": {}}
        return empty | {"comparison": none}
    options = Options(
        objective=LEAST_SQUARES, n_replicates=N_REPLICATES, level=settings.level, seed=settings.seed, at=_ends(groups)
    )
    spread = fits["interval"]["seed_noise"]
    seed_noise = 0.0 if spread is None else float(spread["s"])
    few, many = (
        {arch: thinned(points, count) for arch, points in groups.items()} for count in (POINTS_A_RUN, CURVE_POINTS)
    )
    envelope = envelope_results(fits, groups, options)
    found = fit_groups(few, many, (PARAMETRIC, ISOFLOP), options, given=envelope.results)
    surfaces = identified_surfaces(few, settings.seed)
    return {
        "laws": [one.to_dict() for one in found.results],
        "not_fitted": [dict(one) for one in (*envelope.failed, *found.failed) if one["approach"] != ENVELOPE],
        "side_by_side": plain(found.compared),
        "waste": {
            arch: waste_rows(fit, few[arch], study.tables.runs, settings.level) for arch, fit in surfaces.items()
        },
        "wrong_choices": {arch: wrong_choices(fit, settings.level) for arch, fit in surfaces.items()},
        "comparison": compare_study(study, settings.seed, settings.level, seed_noise),
    }


def identified_surfaces(groups: Mapping[str, Points], seed: int) -> dict[str, ParametricFit]:
    """The surfaces of the architectures whose points identify one."""
    found = {}
    for arch, points in groups.items():
        # its own seeds' noise is in its residuals already
        noise = seed_noise_of([one for other, one in groups.items() if other != arch])
        given = None if noise is None else (noise.s, float(noise.df))
        try:
            fit = fit_parametric(points, objective=LEAST_SQUARES, n_replicates=N_REPLICATES, seed=seed, noise=given)
        except InputError:
            continue  # its reason stands among the laws that were not fitted
        if fit.identified:
            found[arch] = fit
    return found


def wrong_choices(fit: ParametricFit, level: float) -> dict[str, Any]:
    """What a wrong size (`sizes`: factors of N_opt) or too high a loss (`losses`: shares of it, as a wrong
    learning rate makes it) wastes of the largest compute `c` of the points, as shares with intervals."""
    c = float(fit.points.flops.max())

    def priced(price: Callable[[Surface], np.ndarray]) -> dict[str, Any]:
        ends = None
        if fit.draws is not None:
            ends = [float(end) for end in fit.draws.interval(price(fit.draws.surface), level)]
        return {"share": float(price(fit.surface)), "interval": ends}

    def of_size(factor: float) -> Callable[[Surface], np.ndarray]:
        return lambda surface: waste.of_sizes(surface, c, factor, fit.cost)

    def of_loss(share: float) -> Callable[[Surface], np.ndarray]:
        return lambda surface: waste.of_loss(surface, c, share * surface.l_opt(c, fit.cost), fit.cost)

    return {
        "c": c,
        "sizes": [{"factor": factor} | priced(of_size(factor)) for factor in waste.FACTORS],
        "losses": [{"lost": share} | priced(of_loss(share)) for share in waste.LOST],
    }


def waste_rows(fit: ParametricFit, points: Points, runs: pd.DataFrame, level: float) -> list[dict[str, Any]]:
    """For every run: the compute that its size and length cost beyond the optimum of the fitted surface, as a share, in
    FLOP and in hours of its training, with the interval of the share; most wasteful first."""
    known = runs.set_index("run_id")
    rows = []
    for run in dict.fromkeys(points.run.tolist()):
        mine = np.flatnonzero(points.run == run)
        last = mine[int(points.n_tokens[mine].argmax())]
        n, d, c = (float(values[last]) for values in (points.n_params, points.n_tokens, points.flops))
        share = float(waste.of_runs(fit.surface, n, d, fit.cost))
        ends = None
        if fit.draws is not None:
            low, high = fit.draws.interval(waste.of_runs(fit.draws.surface, n, d, fit.cost), level)
            optimum = fit.draws.interval(fit.draws.surface.n_opt(c, fit.cost), level)
            # no draw wastes nothing, but a run whose size may be the optimal one may
            ends = [0.0 if optimum[0] <= n <= optimum[1] else float(low), float(high)]
        seconds = float(known.loc[run, "time_s"]) if "time_s" in known else float("nan")
        hours = share * seconds / HOUR if np.isfinite(seconds) else None
        rows.append({"run_id": run, "c": c, "share": share, "interval": ends, "flops": share * c, "hours": hours})
    return sorted(rows, key=lambda row: -float(row["share"]))


def _ends(groups: Mapping[str, Points]) -> tuple[float, ...]:
    """The computes at which approaches are put side by side: the largest that all architectures reached, and ten times
    that."""
    reached = min(float(points.flops.max()) for points in groups.values())
    return reached, 10 * reached
