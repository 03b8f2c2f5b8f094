"""N_opt, D_opt and L_opt of any form under any cost, for text that is read once (D counts new tokens).

Then D' is D and only N' may differ from N. Write U for U_N(D), v for log N / U, w(v) for N' / U, z for its slope
d log w / dv, and let a token cost N^g. Above U the loss is E + B D^-beta (1 + (beta / alpha) w^-alpha), by the
definition of U, and along a compute it stands still where

    z w^-alpha / (1 + (beta / alpha) w^-alpha (1 - z)) = g.

The left side is 1 at v = 0 and falls to 0, so there is one such v for every g below 1, whatever the compute; from g = 1
up (6 N D: g = 1) the optimum has no excess and is that of the surface. Where excess parameters are as good as others
(R_N* infinite) alpha v is -log g, which is again the surface's optimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.parametric.repeats import Repeats, worth
from analysis.fits.parametric.surface import Surface, best_size

HALVINGS = 60  # of the bracket of v: to the last digits
NOTHING = 800.0  # times R_N* of excess, where exp(-v / R_N*) is 0


def n_opt(surface: Surface, repeats: Repeats | None, flops: Any, cost: Cost) -> Any:
    """N that has the lowest loss at C [FLOP under the convention of `cost`]; broadcasts as `Surface.n_opt`."""
    if repeats is None or repeats.r_n is None:
        return surface.n_opt(flops, cost)
    r_n = repeats.r_n

    def stationary(log_c: Any, growth: float, level: float) -> Any:
        return surface.stationary(log_c, growth, level, excess(surface, r_n, growth))

    def reducible(log_n: Any, log_d: Any) -> Any:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return repeats.loss(surface, np.exp(log_n), np.exp(log_d)) - surface.E

    return best_size(flops, cost, stationary, reducible)


def optimum(surface: Surface, repeats: Repeats | None, flops: Any, cost: Cost) -> dict[str, np.ndarray]:
    """n_opt, d_opt and l_opt at C."""
    n_params = n_opt(surface, repeats, flops, cost)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        n_tokens = np.asarray(flops, dtype=float) / cost.per_token(n_params)
        loss = (
            surface.loss(n_params, n_tokens)
            if repeats is None or repeats.r_n is None
            else repeats.loss(surface, n_params, n_tokens)
        )
    return {"n_opt": np.asarray(n_params), "d_opt": n_tokens, "l_opt": np.asarray(loss)}


def excess(surface: Surface, r_n: Any, growth: float) -> Any:
    """alpha log N / U_N at the optimum where a token costs N^growth: at most 0 from growth = 1 up."""
    alpha, beta, r_n = (np.asarray(one, dtype=float) for one in (surface.alpha, surface.beta, r_n))
    if growth >= 1:
        return -np.log(growth) + 0.0 * alpha
    finite = np.where(np.isfinite(r_n), r_n, 1.0)
    low = np.zeros(np.broadcast(alpha, finite).shape)
    high = np.log1p(NOTHING * finite) + low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = worth(np.exp(middle), np.log(finite))
        power = np.exp(-alpha * found.log)
        above = found.z * power > growth * (1 + beta / alpha * power * (1 - found.z))
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(np.isfinite(r_n), alpha * (low + high) / 2, -np.log(growth))
