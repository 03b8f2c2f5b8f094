"""What a wrong choice costs: compute that a run spent beyond what the optimum needs for the same loss.

Deadweight is C - C*(L(N, D)), C*(L) the least compute that reaches L: 0 on the optimal frontier, and as a share of C
the same whatever the unit. All of it is read off a surface, so it says what the shape of the run costs (its N and D),
not what its luck or its learning rate did; `of_loss` prices those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.fit import Estimate
from analysis.fits.parametric import ParametricFit
from analysis.fits.study_fits import Choice, WrongChoices
from analysis.fits.surface import Surface

FACTORS = (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)  # of N_opt: what a wrong size costs
LOST = (0.002, 0.005, 0.01)  # of the loss: what a wrong learning rate costs


def of_runs(surface: Surface, n_params: Any, n_tokens: Any, cost: Cost) -> np.ndarray:
    """The share of its compute that a run of N parameters and D tokens wasted, in [0, 1)."""
    n_params, n_tokens = np.asarray(n_params, dtype=float), np.asarray(n_tokens, dtype=float)
    spent = cost.per_token(n_params) * n_tokens
    least = surface.flops_to_reach(surface.loss(n_params, n_tokens), cost)
    return np.asarray(np.clip(1 - least / spent, 0.0, 1.0))


def of_sizes(surface: Surface, flops: float, factors: Any, cost: Cost) -> np.ndarray:
    """The share wasted at a budget C where the model is `factors` times N_opt, as a rounded ladder or a guess makes
    it."""
    n_params = surface.n_opt(flops, cost) * np.asarray(factors, dtype=float)
    return of_runs(surface, n_params, flops / cost.per_token(n_params), cost)


def of_loss(surface: Surface, flops: float, lost: Any, cost: Cost) -> np.ndarray:
    """The share wasted where a run on the frontier ends `lost` (in the points' unit of loss) above it, as a wrong
    learning rate makes it."""
    worse = surface.l_opt(flops, cost) + np.asarray(lost, dtype=float)
    return np.asarray(np.clip(1 - surface.flops_to_reach(worse, cost) / flops, 0.0, 1.0))


def wrong_choices(fit: ParametricFit, level: float) -> WrongChoices:
    """What a wrong size or too high a loss wastes of the largest compute of the points."""
    c = float(fit.points.flops.max())

    def priced(amount: float, price: Callable[[Surface], np.ndarray]) -> Choice:
        ends = None if fit.draws is None else fit.draws.interval(price(fit.draws.surface), level).tolist()
        return Choice(amount, Estimate.of(float(price(fit.surface)), ends))

    def of_size(factor: float) -> Callable[[Surface], np.ndarray]:
        return lambda surface: of_sizes(surface, c, factor, fit.cost)

    def of_share(share: float) -> Callable[[Surface], np.ndarray]:
        return lambda surface: of_loss(surface, c, share * surface.l_opt(c, fit.cost), fit.cost)

    return WrongChoices(
        c,
        tuple(priced(factor, of_size(factor)) for factor in FACTORS),
        tuple(priced(share, of_share(share)) for share in LOST),
    )
