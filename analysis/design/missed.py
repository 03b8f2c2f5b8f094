"""What a fit without noise misses in worlds that are not of its form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.design.precision import take
from analysis.design.proposal import Layout
from analysis.design.sweep import lost
from analysis.design.worlds import Noise, World
from analysis.fits.cost import Cost
from analysis.fits.parametric.many import LEAST_SQUARES, fit_many


@dataclass(frozen=True)
class Missed:
    """What a fit without noise is off by, one a world: of a, of log N_opt and of log L_opt at C; nan where it does not
    identify them."""

    a: np.ndarray
    log_n: np.ndarray
    log_l: np.ndarray


def missed(layout: Layout, worlds: Sequence[World], noise: Noise, cost: Cost, flops: float) -> Missed:
    """0 in worlds of the fitted form; in others what the form costs. noise: of a sweep's runs, where there is one; each
    world has one draw of what it leaves."""
    _, begins = np.unique(layout.size, return_index=True)
    first = layout.trunk == layout.trunk[begins][layout.size]  # other seeds weigh, and tell nothing more without noise
    seeds = np.bincount(layout.size) / np.bincount(layout.size[first])
    layout = take(layout, np.flatnonzero(first))
    n, d = layout.n_params, layout.n_tokens
    off = [lost(layout, world, noise, np.random.default_rng(world.seed)) for world in worlds]
    losses = np.stack([world.loss(n, d) * np.exp(one[layout.size]) for world, one in zip(worlds, off, strict=True)])
    fits = fit_many(np.log(n), np.log(d), losses, seeds[layout.size], objective=LEAST_SQUARES)
    c = cost.per_token(n) * d
    at = np.array([c.min(), c.max(), flops])
    surface = fits.surface.column()
    with np.errstate(all="ignore"):
        log_n, log_l = np.log(surface.n_opt(at, cost)), np.log(surface.l_opt(at, cost))[:, 2]
    true_n = np.stack([world.log_n_opt(np.log(at), cost) for world in worlds])
    true_l = np.array([float(world.log_l_opt(np.log(flops), cost)) for world in worlds])
    away = log_n - true_n
    none = np.where(fits.at_bound.any(1), np.nan, 0.0)
    return Missed((away[:, 1] - away[:, 0]) / np.log(at[1] / at[0]) + none, away[:, 2] + none, log_l - true_l + none)
