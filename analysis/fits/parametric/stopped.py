"""Sizes that have stopped learning: smaller ones whose losses lie above what the surface of the larger ones says.

A sum of two power laws has no room for a size that saturates, and with it in the fit N_opt and a are biased, however
many seeds there are. The rule is fixed beforehand (`fit.stopped` of a study file), one-sided and in one direction: the
smallest size is left out where its mean log loss lies above the prediction of the fit without it by more than chance,
and then the next one is looked at, MOST at the most. docs/research/parametric-fits.md has how often the rule is right,
and what intervals cover after it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.forms import PLAIN
from analysis.fits.parametric.curves import LEAST_POINTS, prepare
from analysis.fits.parametric.fit import free_slopes
from analysis.fits.parametric.noise import kinds_of, measure
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES, fit_surfaces

MOST, LEAST_LEFT = 2, 4  # sizes that may go, and that must stay
CHANCE = 0.01  # probability of a loss as far above, were it on the surface


@dataclass(frozen=True)
class Stopped:
    """A size that is left out: its mean log loss lies `above` the prediction, with probability `p` by chance."""

    size: str
    above: float
    p: float


def without_stopped(points: Points) -> tuple[Points, list[Stopped]]:
    """The points of the other sizes, and the sizes that go, smallest first."""
    gone: list[Stopped] = []
    while len(gone) < MOST:
        sizes = np.unique(points.n_params)
        if len(sizes) <= LEAST_LEFT:
            break
        found = _tested(points, points.n_params > sizes[0])
        if found is None or found.p >= CHANCE or found.above <= 0:
            break
        gone.append(found)
        points = points.take(points.n_params > sizes[0])
    return points, gone


def _tested(points: Points, others: np.ndarray) -> Stopped | None:
    """The size that is not among `others` [n]; None where those do not tell their noise, or no surface."""
    prepared = prepare(points.take(others))
    kept, small = prepared.points, prepare(points.take(~others)).points
    log_n, log_d = np.log(kept.n_params), np.log(kept.n_tokens)
    if len(np.unique(np.column_stack([log_n, log_d]), axis=0)) < LEAST_POINTS:
        return None
    solution = fit_surfaces(log_n, log_d, kept.loss, prepared.weights, objective=LEAST_SQUARES)
    if solution.unidentified.any():
        return None
    surface = solution.surface.one()
    every = _joined(kept, small)
    of_small = np.arange(len(every)) >= len(kept)
    off = np.log(every.loss / surface.loss(every.n_params, every.n_tokens))
    jacobian = free_slopes(every, PLAIN, surface, solution.at_bound[0])
    squared = prepared.weights * kept.loss**2
    mine = kinds_of(kept.trunk, kept.run, log_d)
    effects = measure(off[~of_small], jacobian[~of_small], squared, mine)
    if effects is None or not effects.s.any():
        return None
    rows = 1 / np.unique(small.run.astype(str), return_inverse=True, return_counts=True)[2]
    weight = rows[np.unique(small.run.astype(str), return_inverse=True)[1]]
    root = np.sqrt(squared)
    functional = np.zeros(len(every))
    functional[of_small] = weight / weight.sum()
    functional[~of_small] = (
        -functional[of_small] @ jacobian[of_small] @ (np.linalg.pinv(jacobian[~of_small] * root[:, None]) * root)
    )
    s = dict(zip((kind.name for kind in mine), effects.s, strict=True))
    kinds = kinds_of(every.trunk, every.run, np.log(every.n_tokens))
    variance = sum(s.get(kind.name, 0.0) ** 2 * float(((functional @ kind.matrix()) ** 2).sum()) for kind in kinds)
    above = float(functional @ off)
    if not variance > 0:
        return None
    return Stopped(str(small.size[0]), above, float(stats.t.sf(above / np.sqrt(variance), effects.df[0])))


def _joined(one: Points, other: Points) -> Points:
    """Both, in this order."""
    both: dict[str, Any] = {
        name: np.concatenate([getattr(one, name), getattr(other, name)])
        for name in (f.name for f in fields(one))
        if isinstance(getattr(one, name), np.ndarray)
    }
    return replace(one, **both)
