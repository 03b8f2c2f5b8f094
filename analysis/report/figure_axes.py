"""The axes of figure 1: the same in every row, so that rows compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.figures.axes import log_axis
from analysis.fits.fit import D_OPT, L_OPT, N_OPT, Law
from analysis.fits.study_fits import StudyFits
from analysis.report.believed import drawn_law
from analysis.report.frontier import values_of
from analysis.run_table import RunTable

ABOVE_BIGRAM, MOST_LOSSES = 1.1, 90  # where losses end: times the bigram's; percentile of the envelope's
BEYOND = 3.0  # times the largest C of the runs that are shown where laws go on


def axes_of(fits: StudyFits, tables: RunTable, baseline: dict[str, Any] | None) -> dict[str, Any]:
    """By panel ("c": of compute), from the fitted ranges, what the runs reached and the laws that are drawn."""
    convention = fits.conventions["C"]
    fitted = [one for group in fits.groups if (one := fits.envelope(group.name)) is not None]
    curves = tables.curves
    if curves.empty:
        return {
            "c": log_axis(1e9, 1e12, f"training compute C (FLOP, {convention})", "flop"),
            L_OPT: log_axis(1, 6, f"loss L ({fits.unit})"),
            N_OPT: log_axis(1e4, 1e6, "parameters N", "count"),
            D_OPT: log_axis(1e5, 1e7, "tokens D", "count"),
        }
    compute = curves[f"flops_{convention}"]
    start = min((one.range[0] for one in fitted), default=float(compute.min()))
    end = max([float(compute.max()), *(one.range[1] for one in fitted)])
    points = [one.envelope.points for one in fitted if one.envelope and one.envelope.points.c]
    seen = [value for one in points for value in one.loss] or [curves["loss"].min(), curves["loss"].max()]
    led = [law for group in fits.groups if (law := drawn_law(fits, group.name))]
    lowest = min([*seen, *values_of(led, L_OPT), *([baseline["loss"]] if baseline else [])])
    bigram = baseline["loss"] * ABOVE_BIGRAM if baseline else 0.0
    highest = max(min(max(seen) * 1.12, float(np.percentile(seen, MOST_LOSSES))), bigram)
    n_params = tables.runs["n_params_non_embedding"].dropna()
    tokens = [value for one in points for value in one.n_tokens]
    bands = [v for one in fitted for v in _band_values(one.law(D_OPT))]
    low_d, high_d = min(tokens, default=1e5), max(tokens, default=1e7)
    low_d, high_d = max(low_d / 3, min([low_d, *bands])), min(high_d * 3, max([high_d, *bands]))
    high_d = max([high_d, *values_of(led, D_OPT)])
    return {
        "c": log_axis(start / 2, end * (BEYOND if led else 1.3), f"training compute C (FLOP, {convention})", "flop"),
        L_OPT: log_axis(lowest / 1.06, highest, f"loss L ({fits.unit})"),
        N_OPT: log_axis(n_params.min() / 1.6, n_params.max() * 1.6, "non-embedding parameters N", "count"),
        D_OPT: log_axis(low_d / 1.8, high_d * 1.4, "training tokens D", "count"),
    }


def _band_values(law: Law) -> list[float]:
    return [end for end in (*law.band.low, *law.band.high) if end is not None] if law.band else []
