"""Small sizes that have stopped learning.

A sum of two power laws has no room for a size that saturates, and with it in the fit N_opt and a are biased,
however many seeds there are. The rule is fixed beforehand (`fit.stopped` of a study file), one-sided and in one
direction: the smallest size is left out where its mean log loss lies above the prediction of the fit without it by
more than chance, and then the next one is looked at. docs/research/parametric-fits.md has how often it is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.fits.forms import FORMS, PLAIN
from analysis.fits.noise import effects_of, kinds_of
from analysis.fits.parametric import fit_form, free_slopes, rows_of
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES

LEAST_LEFT, MOST_STOPPED = 4, 2  # sizes that must stay, and that may go as they have stopped learning
CHANCE = 0.01  # probability of losses as far above the surface, were the size on it


@dataclass(frozen=True)
class Stopped:
    """A size that is left out: its mean log loss lies `above` the prediction, with probability `p` by chance."""

    size: str
    above: float
    p: float


def without_stopped(points: Points) -> tuple[Points, list[Stopped]]:
    """The points of sizes that still learn, and the sizes that go, smallest first."""
    gone: list[Stopped] = []
    while len(gone) < MOST_STOPPED and len(np.unique(points.n_params)) > LEAST_LEFT:
        smallest = _above_the_others(points)
        if smallest is None or smallest.p >= CHANCE or smallest.above <= 0:
            break
        gone.append(smallest)
        points = points.take(points.n_params > points.n_params.min())
    return points, gone


def _above_the_others(points: Points) -> Stopped | None:
    """The smallest size beside the surface of the others; None where those do not tell their noise, or no surface."""
    rows = rows_of(points)
    kept = rows.points
    log_n, log_d = np.log(kept.n_params), np.log(kept.n_tokens)
    small = kept.n_params == kept.n_params.min()
    if len(np.unique(np.column_stack([log_n, log_d])[~small], axis=0)) <= FORMS[PLAIN].k:
        return None
    solution = fit_form(kept, kept.loss, np.where(small, 0.0, rows.weights), LEAST_SQUARES)
    if solution.unidentified.any():
        return None
    surface = solution.surface.item()
    off = np.log(kept.loss / surface.loss(kept.n_params, kept.n_tokens))
    jacobian = free_slopes(kept, PLAIN, surface, solution.at_bound[0])
    squared = (rows.weights * kept.loss**2)[~small]
    own = kinds_of(kept.trunk[~small], kept.run[~small], log_d[~small])
    effects = effects_of(off[~small], jacobian[~small], squared, own)
    if effects is None or not effects.s.any():
        return None
    root, mean = np.sqrt(squared), rows.weights[small] / rows.weights[small].sum()
    functional = np.zeros(len(kept))  # of log losses: what the size lies above the fit
    functional[small] = mean
    functional[~small] = -mean @ jacobian[small] @ (np.linalg.pinv(jacobian[~small] * root[:, None]) * root)
    s = dict(zip((kind.name for kind in own), effects.s, strict=True))
    kinds = kinds_of(kept.trunk, kept.run, log_d)
    variance = sum(s.get(kind.name, 0.0) ** 2 * float(((functional @ kind.matrix()) ** 2).sum()) for kind in kinds)
    if not variance > 0:
        return None
    above = float(functional @ off)
    return Stopped(str(kept.size[small][0]), above, float(stats.t.sf(above / np.sqrt(variance), effects.df[0])))


def stopped_text(group: str, gone: Sequence[Stopped]) -> str:
    sizes = ", ".join(f"{size.size} ({math.expm1(size.above):.1%}, p = {size.p:.1g})" for size in gone)
    return f"{group}: left out, as their losses lie above what the larger sizes' surface says: {sizes}"
