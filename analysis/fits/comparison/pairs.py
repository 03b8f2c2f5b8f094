"""A comparison as plain data: every pair of architectures, at budgets inside the range that all reached and beyond it.

Intervals of gains hold for one pair at one budget. Where several pairs are looked at, the best is picked after looking:
`joint` intervals hold for all pairs at all budgets at once (the largest of their standardised deviations in each draw).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from analysis.fits.comparison.compare import Compared, interval, log_gain, share_where, token_savings
from arch.errors import InputError

N_PLACES = 4  # budgets inside the common range at which architectures are compared
BEYOND = 10.0  # times the end of the common range: one more budget
NO_E = 0.01  # of the lowest loss: an E below it is at its bound of 0
NO_E_REASON = (
    "the fit wants no irreducible loss (E = 0): these losses are too far from their floor to tell where it is, so "
    "beyond the range of compute nothing is said"
)
N_CURVE = 17  # budgets of a drawn curve
AROUND, N_GRID = 100.0, 41  # crossings are looked for from a hundredth of the range to a hundred times it


def describe_pairs(found: Compared) -> dict[str, Any]:
    """All of it as plain data; every pair's `reference` is the better one at the end of the range. Budgets in the unit
    of the points' compute (FLOP), losses in theirs. Raises InputError where no range of compute is common to all."""
    if not found.fine[0]:
        raise InputError("the exponents of a fitted surface ended at the end of their range: nothing is identified")
    low, high = found.common
    floored = e_at_bound(found)
    budgets = [low, *np.geomspace(low, high, N_PLACES)[1:-1].tolist(), high, *([] if floored else [BEYOND * high])]
    fitted = found.fitted
    names = sorted(found.points.names, key=lambda name: float(found.l_opt(name, high)[0]))  # the best is the reference
    pairs = list(combinations(names, 2))
    gains = {pair: [_gain(found, *pair, c) for c in budgets] for pair in pairs}
    critical = _critical([one["drawn"] for rows in gains.values() for one in rows], found)
    grid = np.geomspace(low, high, N_GRID) if floored else np.geomspace(low / AROUND, high * AROUND, N_GRID)
    along = {name: found.l_opt(name, grid) for name in names}
    return {
        "archs": names,
        "n_points": len(found.points),
        "n_cells": found.points.n_cells,
        "level": found.level,
        "shared_e": fitted.shared,
        "p_one_e": found.p_one_e,
        "beyond": None if floored else BEYOND * high,
        "beyond_reason": NO_E_REASON if floored else None,
        "noise": {**vars(fitted.noise), "df": fitted.df},
        "share_of_draws": float(found.fine[1:].mean()),
        "range": [low, high],
        "params": {name: _params(found, name) for name in names},
        "pairs": [
            {
                "reference": one,
                "other": other,
                "gains": [_row(row, critical, found) for row in gains[one, other]],
                "exponents": _exponents(found, one, other),
                "savings": _savings(found, one, other),
                "crossing": _crossing(found, grid, along[one] - along[other]),
                "curve": _curve(found, one, other, np.geomspace(low, budgets[-1], N_CURVE)),
            }
            for one, other in pairs
        ],
    }


def e_at_bound(found: Compared) -> bool:
    """Whether the E of an architecture ended at its bound of 0."""
    least = float(found.points.data.loss.min() * found.points.data.unit)
    return any(float(surface.E[0]) < NO_E * least for surface in found.surfaces.values())


def _gain(found: Compared, one: str, other: str, c: float) -> dict[str, Any]:
    """Of `other` over `one` where the frontier of `one` is at the budget."""
    loss = float(found.l_opt(one, c)[0])
    drawn = log_gain(found, one, other, loss)
    ahead = found.l_opt(other, c) < found.l_opt(one, c)
    return {"c": float(c), "loss": loss, "drawn": drawn, "p_other_ahead": share_where(ahead, found)}


def _row(one: dict[str, Any], critical: float | None, found: Compared) -> dict[str, Any]:
    drawn = one["drawn"]
    value = float(drawn[0])
    joint = None
    if critical is not None and math.isfinite(value):
        half = critical * _spread(drawn, found)
        joint = [math.exp(value - half), math.exp(value + half)]
    ends = interval(drawn, found)
    kept = {key: one[key] for key in ("c", "loss", "p_other_ahead")}
    return kept | {"gain": _exp(value), "interval": ends and [_exp(end) for end in ends], "joint": joint}


def _curve(found: Compared, one: str, other: str, budgets: np.ndarray) -> dict[str, Any]:
    """The gain of `other` along the frontier of `one`, with its interval at each budget; null where there is none."""
    told = [log_gain(found, one, other, float(loss)) for loss in found.l_opt(one, budgets)[0]]
    ends = [interval(drawn, found) or [None, None] for drawn in told]
    return {
        "c": budgets.tolist(),
        "gain": [_exp(float(drawn[0])) for drawn in told],
        "low": [_exp(low) for low, _ in ends],
        "high": [_exp(high) for _, high in ends],
    }


def _critical(gains: Sequence[np.ndarray], found: Compared) -> float | None:
    """How many standard deviations to either side hold for all gains at once; None where one has draws that never reach
    its loss."""
    table = np.stack(gains)[:, 1:][:, found.fine[1:]]
    if not np.isfinite(table).all() or not table.shape[1]:
        return None
    centre = np.array([one[0] for one in gains])[:, None]
    spread = np.array([_spread(one, found) for one in gains])[:, None]
    return float(np.quantile((np.abs(table - centre) / spread).max(0), found.level))


def _spread(drawn: np.ndarray, found: Compared) -> float:
    return max(float(np.std(drawn[1:][found.fine[1:]])), 1e-300)


def _params(found: Compared, name: str) -> dict[str, Any]:
    surface = found.surfaces[name]
    values = {key: getattr(surface, key) for key in ("E", "A", "B", "alpha", "beta")} | {"a": _a(found, name)}
    told = {key: {"value": float(drawn[0]), "interval": interval(drawn, found)} for key, drawn in values.items()}
    return told | ({"E": {"value": 0.0, "interval": None}} if e_at_bound(found) else {})


def _a(found: Compared, name: str) -> np.ndarray:
    """The exponent of N_opt over C between the ends of the common range, under this architecture's cost."""
    low, high = found.common
    surface, cost = found.surfaces[name], found.costs[name]
    return np.asarray(np.log(surface.n_opt(high, cost) / surface.n_opt(low, cost)) / math.log(high / low))


def _exponents(found: Compared, one: str, other: str) -> dict[str, Any]:
    first, second = found.surfaces[one], found.surfaces[other]
    drawn = {
        "alpha": second.alpha - first.alpha,
        "beta": second.beta - first.beta,
        "a": _a(found, other) - _a(found, one),
    }
    return {key: {"value": float(values[0]), "interval": interval(values, found)} for key, values in drawn.items()}


def _savings(found: Compared, one: str, other: str) -> dict[str, Any]:
    """Of tokens, at the size and the loss that are the optimum of `one` at the end of the common range."""
    _, high = found.common
    n_params = float(found.surfaces[one].n_opt(high, found.costs[one])[0])
    loss = float(found.l_opt(one, high)[0])
    return {"n_params": n_params, "loss": loss} | token_savings(found, one, other, loss, n_params)


def _crossing(found: Compared, grid: np.ndarray, away: np.ndarray) -> dict[str, Any]:
    """The compute at which two laws of L_opt(C) cross, the largest where they cross twice, from their difference away
    [1 + r, k] at k budgets; `share`: of the draws that cross there. An interval only where nearly all do."""
    at = np.log(grid)
    turns = np.sign(away[:, 1:]) != np.sign(away[:, :-1])
    last = len(at) - 2 - turns[:, ::-1].argmax(1)
    rank = np.arange(len(away))
    before, after = away[rank, last], away[rank, last + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        where = np.where(turns.any(1), at[last] + (at[1] - at[0]) * before / (before - after), np.nan)
    share = share_where(np.isfinite(where), found)
    ends = interval(where, found) if share >= found.level and np.isfinite(where[0]) else None
    return {
        "c": _exp(float(where[0])),
        "interval": ends and [_exp(end) for end in ends],
        "share": share,
        "searched": [float(grid[0]), float(grid[-1])],
    }


def _exp(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else math.exp(value)
