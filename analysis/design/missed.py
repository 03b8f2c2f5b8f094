"""What a fit without noise misses in worlds that are not of its form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.design.precision import take
from analysis.design.proposal import Layout
from analysis.design.worlds import World
from analysis.fits.cost import Cost
from analysis.fits.parametric.many import LEAST_SQUARES, fit_many


@dataclass(frozen=True)
class Missed:
    """What a fit without noise is off by, one a world: of a, of log N_opt and of log L_opt at C; nan where it does not
    identify them."""

    a: np.ndarray
    log_n: np.ndarray
    log_l: np.ndarray


def missed(layout: Layout, worlds: Sequence[World], cost: Cost, flops: float) -> Missed:
    """0 in worlds of the fitted form; in others what the form costs."""
    sizes = int(layout.size.max()) + 1
    labels, which = np.unique(layout.trunk.astype(str), return_inverse=True)
    first = np.char.endswith(labels, "-0")  # other seeds of a size weigh, and tell nothing more without noise
    seeds = np.bincount(layout.size) / np.bincount(layout.size[first[which]])
    layout = take(layout, np.flatnonzero(first[which]))
    n, d = layout.n_params, layout.n_tokens
    losses = np.stack([world.loss(n, d) * np.exp(world.off(sizes)[layout.size]) for world in worlds])
    fits = fit_many(np.log(n), np.log(d), losses, seeds[layout.size], objective=LEAST_SQUARES)
    c = cost.per_token(n) * d
    at = np.array([c.min(), c.max(), flops])
    surface = fits.surface.column()
    with np.errstate(all="ignore"):
        log_n, log_l = np.log(surface.n_opt(at, cost)), np.log(surface.l_opt(at, cost))[:, 2]
    true_n = np.stack([world.log_n_opt(np.log(at), cost) for world in worlds])
    true_l = np.array([float(world.log_l_opt(np.log(flops), cost)) for world in worlds])
    off = log_n - true_n
    lost = np.where(fits.at_bound.any(1), np.nan, 0.0)
    return Missed((off[:, 1] - off[:, 0]) / np.log(at[1] / at[0]) + lost, off[:, 2] + lost, log_l - true_l + lost)
