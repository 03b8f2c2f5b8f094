"""How precisely fits of a proposal's points determine a world, without simulation: by linearised least squares.

The Jacobian says how the fitted surface moves with noise; points are weighed as the fits weigh them. Imports no
scipy: a plan stays quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.design.layout import Layout, weighed
from analysis.design.worlds import Noise, World
from analysis.fits.cost import Cost
from analysis.fits.surface import Surface

STEP = 1e-4  # of the differences that give gradients
MEMORY = 2.0  # of a curve's noise, in log D


@dataclass(frozen=True)
class Precision:
    """Standard deviations for each world: of a, of log N_opt and of log L_opt at C."""

    a: np.ndarray
    log_n: np.ndarray
    log_l: np.ndarray


def precision(layout: Layout, worlds: Sequence[World], noise: Noise, cost: Cost, flops: float) -> Precision:
    """The precision of a fit of the layout's points, at C = `flops`; a is between the ends of the layout's compute."""
    loss, jac = linear(layout, worlds)
    turned = np.swapaxes(jac, 1, 2)
    grad = _gradients(layout, worlds, cost, flops)  # [w, 3, 5]
    weight = grad @ np.linalg.pinv(turned @ jac, hermitian=True) @ turned * loss[:, None]  # [w, 3, n]: of log losses
    sd = np.sqrt(spread(layout, noise, weight, loss))
    return Precision(sd[:, 0], sd[:, 1], sd[:, 2])


def linear(layout: Layout, worlds: Sequence[World]) -> tuple[np.ndarray, np.ndarray]:
    """Losses [w, n] of the worlds' surfaces, and their Jacobian [w, n, 5] over E, log A, log B at the centre of the
    points, alpha and beta."""
    e, a, b, alpha, beta = (column[:, None] for column in _theta(worlds).T)
    log_n, log_d = np.log(layout.n_params), np.log(layout.n_tokens)
    term_n, term_d = a * np.exp(-alpha * log_n), b * np.exp(-beta * log_d)
    loss = e + term_n + term_d
    x, y = log_n - log_n.mean(), log_d - log_d.mean()  # log A and log B there: better conditioned
    return loss, np.stack([np.ones_like(loss), term_n, term_d, -term_n * x, -term_d * y], -1)


def _theta(worlds: Sequence[World]) -> np.ndarray:
    """[w, 5]: E, A, B, alpha, beta."""
    return np.array([list(world.surface.to_dict().values()) for world in worlds])


def _gradients(layout: Layout, worlds: Sequence[World], cost: Cost, flops: float) -> np.ndarray:
    """[w, 3, 5]: of a, log N_opt and log L_opt over E, log A, log B at the centre, alpha, beta. At a knot of the cost
    N_opt has no gradient, so the cost is the power law through the smallest and the largest size."""
    at = ends_of(layout, cost, flops)
    sizes = np.log([layout.n_params.min(), layout.n_params.max()])
    smooth = Cost(sizes, cost.log_per_token(sizes), cost.convention)
    centre = np.log(layout.n_params).mean(), np.log(layout.n_tokens).mean()
    # how E, log A, log B, alpha, beta move along each parameter: those at the centre stay where exponents move
    moves = np.eye(5)
    moves[3, 1], moves[4, 2] = centre
    e, a, b, alpha, beta = _theta(worlds).T
    gradients = np.empty((len(worlds), 3, 5))
    for p, move in enumerate(STEP * moves):
        both = []
        for sign in (1.0, -1.0):
            d = sign * move
            surface = Surface(e + d[0], a * np.exp(d[1]), b * np.exp(d[2]), alpha + d[3], beta + d[4]).column()
            log_n = np.log(surface.n_opt(at, smooth))
            slope = (log_n[:, 1] - log_n[:, 0]) / np.log(at[1] / at[0])
            both.append(np.stack([slope, log_n[:, 2], np.log(surface.l_opt(at, smooth))[:, 2]], 1))
        gradients[:, :, p] = (both[0] - both[1]) / (2 * STEP)
    return gradients


def ends_of(layout: Layout, cost: Cost, flops: float) -> np.ndarray:
    """The least and the most compute of the points, and `flops`."""
    c = cost.per_token(layout.n_params) * layout.n_tokens
    return np.array([c.min(), c.max(), flops])


def along_sizes(layout: Layout) -> np.ndarray:
    """[n, k]: log D of the points of each of the k sizes that it has about their mean, 0 at other sizes."""
    _, size = np.unique(layout.size, return_inverse=True)
    member = (size[:, None] == np.arange(size.max() + 1)).astype(float)
    at = np.log(layout.n_tokens)
    return np.asarray(member * (at - (at @ member / member.sum(0))[size])[:, None])


def spread(layout: Layout, noise: Noise, weight: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """[w, k]: the variance of weight @ (log losses), for weights [w, k, n] and losses [w, n]: that of
    weight @ covariance @ weight (noise of seeds, of a size's slope and of the text)."""
    if layout.curves:
        rows = int((layout.trunk == layout.trunk[0]).sum())  # all curves have as many
        at = np.log(layout.n_tokens).reshape(-1, rows)
        blocks = noise.seed**2 * np.exp(-np.abs(at[:, :, None] - at[:, None]) / MEMORY)
        parts = np.moveaxis(weight.reshape(*weight.shape[:2], -1, rows), 2, 0).reshape(len(at), -1, rows)
        variance = ((parts @ blocks) * parts).sum((0, 2)).reshape(weight.shape[:2])
    else:  # points of a trunk stand together
        first = np.flatnonzero(np.r_[True, layout.trunk[1:] != layout.trunk[:-1]])
        of_trunk = np.add.reduceat(weight, first, -1)
        variance = noise.seed**2 * ((of_trunk**2).sum(-1) + noise.own**2 * (weight**2).sum(-1))
    if noise.bend:
        variance = variance + noise.bend**2 * ((weight @ along_sizes(layout)) ** 2).sum(-1)
    if noise.text and layout.window is not None:
        variance = variance + noise.text**2 * weighed(layout, weight / loss[:, None])
    return np.asarray(variance)
