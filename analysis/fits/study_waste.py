"""What the runs of a study wasted, and what a wrong size or learning rate would, read off its fitted surfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.parametric import waste
from analysis.fits.parametric.fit import ParametricFit
from analysis.fits.points import Points
from analysis.fits.surface import Surface

HOUR = 3600.0  # seconds


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
    for run, mine in points.rows_of_runs.items():
        if run not in known.index:  # merged losses are no runs
            continue
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
