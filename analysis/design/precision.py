"""How precisely the fits can tell a world from a proposal, without simulating: linearised least squares.

The fitted surface moves with noise as its Jacobian says. `estimated`: of least squares, as the fits weigh their points;
`bound`: of generalised least squares, which knows which points share noise and no unbiased fit can beat (Cramer-Rao).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.design.proposal import Layout
from analysis.design.worlds import Noise, World
from analysis.fits.cost import Cost
from analysis.fits.parametric.surface import Surface

STEP = 1e-4  # of the differences that give gradients
MEMORY = 2.0  # of a curve's noise, in log D


@dataclass(frozen=True)
class Precision:
    """Standard deviations, one a world: of a, of log N_opt and of log L_opt at C; `bound_a`: the least there can be."""

    a: np.ndarray
    log_n: np.ndarray
    log_l: np.ndarray
    bound_a: np.ndarray


def covariance(layout: Layout, noise: Noise) -> np.ndarray:
    """[n, n]: of log losses."""
    same = (layout.trunk[:, None] == layout.trunk[None]).astype(float)
    if layout.curves:
        at = np.log(layout.n_tokens)
        found = same * noise.seed**2 * np.exp(-np.abs(at[:, None] - at[None]) / MEMORY)
    else:
        found = noise.seed**2 * (same + noise.own**2 * np.eye(len(same)))
    return np.asarray(found)


def precision(
    layout: Layout,
    worlds: Sequence[World],
    noise: Noise,
    cost: Cost,
    flops: float,
    bound: bool = False,
) -> Precision:
    """At C = `flops`; a is between the ends of the layout's compute. bound: that too, which takes longer."""
    theta = np.array([list(world.surface.to_dict().values()) for world in worlds])  # [w, 5]
    log_n, log_d = np.log(layout.n_params), np.log(layout.n_tokens)
    alpha, beta = theta[:, 3:4], theta[:, 4:5]
    term_n, term_d = theta[:, 1:2] * np.exp(-alpha * log_n), theta[:, 2:3] * np.exp(-beta * log_d)
    loss = theta[:, :1] + term_n + term_d
    x, y = log_n - log_n.mean(), log_d - log_d.mean()  # log A and log B at the centre: better conditioned
    jac = np.stack([np.ones_like(loss), term_n, term_d, -term_n * x, -term_d * y], -1)  # [w, n, 5]
    turned = np.swapaxes(jac, 1, 2)
    grad = _gradients(theta, (log_n.mean(), log_d.mean()), layout, cost, flops)  # [w, 3, 5]
    weight = grad @ np.linalg.pinv(turned @ jac, hermitian=True) @ turned * loss[:, None]  # [w, 3, n]: of log losses
    if layout.curves:
        rows = int((layout.trunk == layout.trunk[0]).sum())  # all curves have the same steps of log D
        block = covariance(take(layout, np.arange(rows)), noise)
        parts = weight.reshape(*weight.shape[:2], -1, rows)
        variance = ((parts @ block) * parts).sum((-1, -2))
    else:  # points of a trunk stand together
        first = np.flatnonzero(np.r_[True, layout.trunk[1:] != layout.trunk[:-1]])
        of_trunk = np.add.reduceat(weight, first, -1)
        variance = noise.seed**2 * ((of_trunk**2).sum(-1) + noise.own**2 * (weight**2).sum(-1))
    sd, least = np.sqrt(variance), np.full(len(theta), np.nan)
    if bound:
        scaled = jac / loss[:, :, None]
        inside = np.swapaxes(scaled, 1, 2) @ np.linalg.solve(covariance(layout, noise), scaled)
        least = np.sqrt(np.einsum("wp,wpq,wq->w", grad[:, 0], np.linalg.pinv(inside), grad[:, 0]))
    return Precision(sd[:, 0], sd[:, 1], sd[:, 2], least)


def _gradients(theta: np.ndarray, centre: tuple[float, float], layout: Layout, cost: Cost, flops: float) -> np.ndarray:
    """[w, 3, 5]: of a, log N_opt and log L_opt over E, log A, log B at the centre, alpha, beta."""
    c = cost.per_token(layout.n_params) * layout.n_tokens
    at = np.array([c.min(), c.max(), flops])
    cost = _smooth(layout, cost)
    found = np.empty((len(theta), 3, 5))
    for p in range(5):
        both = []
        for sign in (1.0, -1.0):
            e, a, b, alpha, beta = (one.copy() for one in theta.T)
            move = sign * STEP
            if p == 0:
                e = e + move
            elif p == 1:
                a = a * np.exp(move)
            elif p == 2:
                b = b * np.exp(move)
            elif p == 3:
                alpha, a = alpha + move, a * np.exp(move * centre[0])
            else:
                beta, b = beta + move, b * np.exp(move * centre[1])
            surface = Surface(e, a, b, alpha, beta).column()
            log_n = np.log(surface.n_opt(at, cost))
            slope = (log_n[:, 1] - log_n[:, 0]) / np.log(at[1] / at[0])
            both.append(np.stack([slope, log_n[:, 2], np.log(surface.l_opt(at, cost))[:, 2]], 1))
        found[:, :, p] = (both[0] - both[1]) / (2 * STEP)
    return found


def take(layout: Layout, rows: np.ndarray) -> Layout:
    """Some of its points."""
    named = ("n_params", "n_tokens", "size", "trunk", "run")
    return Layout(**{name: getattr(layout, name)[rows] for name in named}, curves=layout.curves, swept=layout.swept)


def _smooth(layout: Layout, cost: Cost) -> Cost:
    """The power law through the smallest and the largest size: at a knot N_opt stands still, and has no gradient."""
    ends = np.log([layout.n_params.min(), layout.n_params.max()])
    return Cost(ends, cost.log_per_token(ends), cost.convention)
