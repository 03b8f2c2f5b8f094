"""L = E + A / N^alpha + B / D^beta fitted to r data sets at once, by either objective: bootstraps, simulations, starts.

The result does not depend on the units of N, D and L, nor on the scale of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.parametric import huber, newton, squares
from analysis.fits.parametric.descent import BOUNDS, Problem
from analysis.fits.parametric.squares import GRID
from analysis.fits.parametric.surface import Surface

HUBER, LEAST_SQUARES = "huber", "least_squares"
OBJECTIVES = {
    HUBER: "sum of Huber losses (delta 1e-3) of log L - log(E + A / N^alpha + B / D^beta)",
    LEAST_SQUARES: "sum of squares of L - (E + A / N^alpha + B / D^beta)",
}
BLOCK = 150_000  # points of all data sets that are worked on together, for the cache's sake
PRESENT = 1e-2  # of the mean loss: where a term that least squares set to zero starts, since log 0 goes nowhere


@dataclass(frozen=True)
class Fits:
    """r fits. `objective` [r]: weighted sum as `OBJECTIVES` says; `ended_well` [r]: the search ended where nothing goes
    down; `at_bound` [r, 2]: alpha, beta ended at the end of their range; such a fit does not identify its exponents."""

    surface: Surface
    objective: np.ndarray
    ended_well: np.ndarray
    at_bound: np.ndarray

    def take(self, which: Any) -> Fits:
        at = np.atleast_1d(which)
        return Fits(self.surface.take(at), self.objective[at], self.ended_well[at], self.at_bound[at])


def fit_many(
    log_n: np.ndarray,
    log_d: np.ndarray,
    losses: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    objective: str = HUBER,
    tied: bool = False,
    irreducible: np.ndarray | float | None = None,
    starts: np.ndarray | None = None,
    delta: float = huber.DELTA,
    told: Callable[[float], None] | None = None,
) -> Fits:
    """Fit each of r data sets of n points; every array is [n], shared by all, or [r, n].

    log_n, log_d: natural logarithms of N and D. losses: positive. weights: not negative; a bootstrap's multiplicities,
    or 1 over the rows of a point's run. objective: `huber` or `least_squares`. tied: alpha = beta, the over-training
    form. irreducible: E where it is given, a number or [r]. starts: exponents [r, 2] to start from, else the best node
    of a grid. With [r, n] weights of zero a data set can have fewer points than the others. told: called with the share
    that is done, now and then.
    """
    w = np.ones(np.shape(losses)[-1]) if weights is None else weights
    table = [np.atleast_2d(np.asarray(value, dtype=float)) for value in (log_n, log_d, losses, w)]
    fixed = None if irreducible is None else np.atleast_1d(np.asarray(irreducible, dtype=float))
    begin = None if starts is None else np.atleast_2d(np.asarray(starts, dtype=float))
    r, n = max(len(value) for value in (*table, fixed, begin) if value is not None), table[2].shape[-1]
    block = max(1, BLOCK // n)
    parts = []
    for first in range(0, r, block):
        rows = slice(first, min(first + block, r))
        problem = scaled_problem(
            [rows_of(value, rows) for value in table], rows_of(fixed, rows), tied, rows.stop - first
        )
        parts.append(_fit_block(problem, rows_of(begin, rows), objective, delta))
        if told is not None:
            told(rows.stop / r)
    surface = Surface(*(np.concatenate([getattr(p.surface, name) for p in parts]) for name in Surface.__annotations__))
    rest = (np.concatenate([getattr(p, name) for p in parts]) for name in ("objective", "ended_well", "at_bound"))
    return Fits(surface, *rest)


def rows_of(value: np.ndarray | None, rows: slice) -> np.ndarray | None:
    """Of an array [r, ...]; [1, ...] is shared by all."""
    return value if value is None or len(value) == 1 else value[rows]


@dataclass(frozen=True)
class Scaled:
    """A problem in centred, unit-free numbers, and what undoes that, [r] or [1] each."""

    problem: Problem
    centre_n: np.ndarray
    centre_d: np.ndarray
    unit: np.ndarray
    total: np.ndarray

    def fits(self, exponents: np.ndarray, linear: np.ndarray, value: np.ndarray, well: np.ndarray) -> Fits:
        """In the units of the points, from exponents [r, 2] and E, A, B [r, 3] at the centre."""
        fixed_e = self.problem.fixed_e
        e = linear[:, 0] if fixed_e is None else fixed_e
        (alpha, beta), unit = exponents.T, self.unit
        a, b = linear[:, 1] * np.exp(alpha * self.centre_n), linear[:, 2] * np.exp(beta * self.centre_d)
        edge = (exponents <= BOUNDS[0] * (1 + 1e-9)) | (exponents >= BOUNDS[1] * (1 - 1e-9))
        return Fits(Surface(e * unit, a * unit, b * unit, alpha, beta), value, well, edge | (linear[:, 1:] <= 0))

    def fits_of_theta(self, theta: np.ndarray, value: np.ndarray, well: np.ndarray) -> Fits:
        """The same from E, log A, log B at the centre, alpha and beta [r, 5]."""
        terms = theta[:, 1:3]
        terms = np.where(terms > newton.FLOOR, np.exp(terms), 0.0)
        return self.fits(theta[:, 3:5], np.concatenate([theta[:, :1], terms], 1), value, well)


def scaled_problem(table: Sequence[Any], irreducible: np.ndarray | None, tied: bool, r: int) -> Scaled:
    log_n, log_d, loss, weights = table
    total = weights.sum(-1, keepdims=True)
    w = weights / total
    centre_n, centre_d = (value.mean(-1, keepdims=True) for value in (log_n, log_d))
    unit = (w * loss).sum(-1, keepdims=True)
    fixed = None if irreducible is None else np.broadcast_to(irreducible / unit[:, 0], (r,))
    scaled = np.broadcast_to(loss / unit, (r, loss.shape[-1]))  # one row a data set even where all share everything
    problem = Problem(log_n - centre_n, log_d - centre_d, scaled, w, fixed, tied)
    return Scaled(problem, centre_n[:, 0], centre_d[:, 0], unit[:, 0], total[:, 0])


def theta_of(problem: Problem, exponents: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """[r, 5]: where a search over theta starts from exponents [r, 2] and E, A, B [r, 3] at the centre."""
    e = linear[:, :1] if problem.fixed_e is None else problem.fixed_e[:, None]
    return np.concatenate([e, np.log(np.maximum(linear[:, 1:], PRESENT)), exponents], 1)


def _fit_block(scaled: Scaled, starts: np.ndarray | None, objective: str, delta: float) -> Fits:
    problem = scaled.problem
    begin = None if starts is None else np.clip(np.broadcast_to(starts, (len(problem.loss), 2)), *BOUNDS)
    if objective == LEAST_SQUARES or begin is None:
        least = squares.solve_squares(problem, begin)
        exponents, linear = least.unknowns, least.linear
        if objective == LEAST_SQUARES:
            value = 2 * least.value * scaled.total * scaled.unit**2
            return scaled.fits(exponents, linear, value, least.ended_well)
    else:
        exponents, linear = begin, squares.linear_at(problem, begin)
    logs = replace(problem, loss=np.log(problem.loss))
    robust = huber.solve_huber(logs, theta_of(problem, exponents, linear), delta)
    return scaled.fits_of_theta(robust.unknowns, robust.value * scaled.total, robust.ended_well)


@dataclass(frozen=True)
class Searched:
    """One data set fitted from many starts: the best fit, and the objective and the end of every start."""

    best: Fits
    objectives: np.ndarray
    ended_well: np.ndarray


def fit_from_starts(
    log_n: np.ndarray,
    log_d: np.ndarray,
    loss: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    starts: np.ndarray | None = None,
    **options: Any,
) -> Searched:
    """Fit one data set [n] from exponents `starts` [s, 2] (every other node of the grid) and from least squares."""
    if starts is None:
        starts = np.stack(np.meshgrid(GRID[::2], GRID[::2]), -1).reshape(-1, 2)
    warm = fit_many(log_n, log_d, loss, weights, **options)
    many = fit_many(log_n, log_d, loss, weights, starts=starts, **options)
    objectives = np.concatenate([warm.objective, many.objective])
    well = np.concatenate([warm.ended_well, many.ended_well])
    lower = many.objective < warm.objective * (1 - 1e-9)  # equal ones: least squares' own, whatever the starts
    best = many.take(int(np.where(lower, many.objective, np.inf).argmin())) if lower.any() else warm
    return Searched(best, objectives, well)
