"""Would these laws have foretold the study's own largest runs? Fit below a cut of compute, predict what lies above,
over cuts that leave ever more below: the error against the ratio of extrapolation, approach by approach.

A run above the cut has a loss, which the surface predicts from its N and D. A budget of end points above it, or a
crossing of two curves, has an N_opt (crossings.py); a budget has its lowest loss as well, and whole curves theirs at
each compute. Where a curve lies on both sides of the cut, its first part is fitted and its end predicted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis.fits.budgets import CURVE_ROWS
from analysis.fits.cost import Cost, cost_of
from analysis.fits.diagnose.predictors import LEVEL, PREDICTORS, Predictor, Value, fitted, of_new_runs
from analysis.fits.envelope.crossings import find_crossings
from analysis.fits.envelope.of_points import size_curves
from analysis.fits.forms import PLAIN
from analysis.fits.isoflop import isoflop
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric.curves import FIRST_SHARE
from analysis.fits.points import Points
from analysis.fits.solver import HUBER
from arch.errors import InputError

SHARES = (0.4, 0.55, 0.7, 0.85)  # of the range of log C, at which it is cut
N_READ = 4  # computes above a cut at which whole curves tell their lowest loss
BINS = (1.0, 3.0, 10.0, 100.0, math.inf)  # ratios of extrapolation, of C predicted over the cut
RUN, LOWEST, SIZE = "loss of a run", "lowest loss", "N_opt"


@dataclass(frozen=True)
class Row:
    """One prediction. cut and c [FLOP]; ratio: c over cut; error: log of observed over predicted; interval: of what is
    observed, its noise included; held: whether it did. An approach that cannot be fitted below a cut has one row, with
    the reason."""

    approach: str
    cut: float
    n_runs: int
    what: str | None = None
    c: float | None = None
    ratio: float | None = None
    observed: float | None = None
    predicted: float | None = None
    error: float | None = None
    interval: tuple[float, float] | None = None
    held: bool | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Target:
    what: str
    c: float
    observed: float
    n_params: float = 0.0
    n_tokens: float = 0.0
    unique: float = 0.0  # of the tokens


def backtest(
    points: Points,
    approach: str,
    cuts: Sequence[float] | None = None,
    *,
    cost: Cost | None = None,
    noise: SeedNoise | None = None,
    n_replicates: int = 199,
    seed: int = 0,
    objective: str = HUBER,
    form: str = PLAIN,
    first_share: float = FIRST_SHARE,
) -> list[Row]:
    """Rows of one approach over `cuts` [FLOP]; by default at SHARES of the range of log C. noise: between seeds, where
    replicates tell it; objective, form and first_share (left out of each run's tokens below a cut): of the surface.
    Raises InputError for an approach that is not
    there and for points at one compute."""
    if approach not in PREDICTORS:
        raise InputError(f"no approach {approach!r}: {', '.join(PREDICTORS)}")
    low, high = math.log(points.flops.min()), math.log(points.flops.max())
    if not high > low:
        raise InputError("a backtest needs runs at more than one compute")
    cost = cost or cost_of(points)
    targets = _targets(points, cost)
    rows = []
    for cut in cuts if cuts is not None else [math.exp(low + share * (high - low)) for share in SHARES]:
        below = points.take(points.flops <= cut)
        try:
            if not len(below):
                raise InputError("no runs below the cut")
            told = fitted(approach, below, cost, noise, n_replicates, seed, objective, form, first_share)
        except InputError as error:
            rows.append(Row(approach, cut, below.n_runs, reason=str(error)))
            continue
        found = [_row(approach, cut, below.n_runs, told, one, noise) for one in targets if one.c > cut * (1 + 1e-9)]
        kept = [one for one in found if one is not None]
        rows += kept or [Row(approach, cut, below.n_runs, reason="nothing above the cut that this approach predicts")]
    return rows


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """By approach, by what was predicted and by ratio of extrapolation: how many predictions, the median and the
    largest size of their error (of the logarithm), and the share of intervals that held (None: there were none)."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if row.what is not None and row.ratio is not None:
            groups.setdefault((row.approach, row.what, int(np.searchsorted(BINS, row.ratio, "right"))), []).append(row)
    told = []
    for (approach, what, place), mine in sorted(groups.items()):
        size = np.abs([row.error for row in mine if row.error is not None])
        held = [row.held for row in mine if row.held is not None]
        one: dict[str, Any] = {"approach": approach, "what": what}
        one |= {"ratio": [BINS[place - 1], BINS[min(place, len(BINS) - 1)]], "n": len(mine)}
        one |= {"error": float(np.median(size)), "largest": float(size.max())}
        one |= {"n_intervals": len(held), "held": sum(held) / len(held) if held else None}
        told.append(one)
    return told


def to_rows(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """As plain data."""
    return [asdict(row) for row in rows]


def _targets(points: Points, cost: Cost) -> list[Target]:
    """All that can be compared with, at any C."""
    ends = [int(rows[points.flops[rows].argmax()]) for rows in points.rows_of_runs.values()]
    told_of = (points.n_params, points.n_tokens, points.unique_tokens)
    found = [Target(RUN, *(float(values[i]) for values in (points.flops, points.loss, *told_of))) for i in ends]
    more = _of_curves if len(points) >= CURVE_ROWS * points.n_runs else _of_budgets
    try:
        return found + more(points, cost)
    except InputError:  # no budgets, or runs of one row: the runs' own losses are left
        return found


def _of_budgets(points: Points, cost: Cost) -> list[Target]:
    found = []
    for one in isoflop(points, cost, curves=False, n_replicates=2).minima:
        if one.reason is None and one.n_params is not None and one.loss is not None:
            found += [Target(SIZE, one.c, one.n_params), Target(LOWEST, one.c, one.loss)]
    return found


def _of_curves(points: Points, cost: Cost) -> list[Target]:
    """Crossings, and the lowest loss where two or more curves have one and the best of them is no end of the ladder."""
    curves = size_curves(points)
    low, high = math.log(points.flops.min()), math.log(points.flops.max())
    crossings, _ = find_crossings(curves, (low, high))
    found = []
    for one in crossings:
        if one.beyond == 0:
            small, large = curves[one.small], curves[one.small + 1]
            found.append(Target(SIZE, math.exp(one.at), math.sqrt(small.n_params * large.n_params)))
    for x in np.linspace(low, high, len(SHARES) * N_READ + 2)[1:-1]:
        there = [i for i, curve in enumerate(curves) if curve.log_c[0] <= x <= curve.log_c[-1]]
        losses = [float(np.interp(x, curves[i].log_c, curves[i].log_loss)) for i in there]
        best = int(np.argmin(losses)) if losses else 0
        if 0 < best < len(there) - 1:
            found.append(Target(LOWEST, math.exp(x), math.exp(losses[best])))
    return found


def _row(approach: str, cut: float, n_runs: int, told: Predictor, one: Target, noise: SeedNoise | None) -> Row | None:
    value: Value
    if one.what == RUN:
        if told.loss is None:
            return None
        value = told.loss(one.n_params, one.n_tokens, one.unique)
    else:
        predict = told.n_opt if one.what == SIZE else told.l_opt
        if predict is None:
            return None
        value = predict(one.c)
    predicted, ends = value
    if not (math.isfinite(predicted) and predicted > 0):
        return None
    df = noise.df if noise else None
    interval = None if one.what == SIZE else of_new_runs((predicted, ends), told.noise, df, LEVEL)
    held = None if interval is None else interval[0] <= one.observed <= interval[1]
    error = math.log(one.observed / predicted)
    return Row(approach, cut, n_runs, one.what, one.c, one.c / cut, one.observed, predicted, error, interval, held)
