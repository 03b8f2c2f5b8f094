"""What a fit without noise misses in worlds that are not of its form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.design.layout import Layout, take
from analysis.design.precision import linear, spread
from analysis.design.sweep import lost
from analysis.design.worlds import Noise, World
from analysis.fits.cost import Cost
from analysis.fits.parametric import CHANCE, LEAST_LEFT, MOST_STOPPED
from analysis.fits.solver import LEAST_SQUARES, Solution, fit_surfaces


@dataclass(frozen=True)
class Missed:
    """The errors of a fit without noise, for each world: of a, of log N_opt and of log L_opt at C; nan where the fit
    does not identify them. layout: the points that are fitted; share: how probable it is that these are fitted."""

    a: np.ndarray
    log_n: np.ndarray
    log_l: np.ndarray
    layout: Layout
    share: np.ndarray


def missed(
    layout: Layout, worlds: Sequence[World], noise: Noise, cost: Cost, flops: float, leaves_out: bool = False
) -> list[Missed]:
    """The errors: 0 in worlds of the fitted form, in others the cost of the form. noise: also of a sweep's runs, where
    the layout has a sweep; each world has one draw of the rates' errors. leaves_out: also fits of fewer sizes, where
    small sizes may have stopped learning (`without_stopped` of analysis.fits.parametric); the noise decides how
    probable it is that they are left out."""
    _, begins = np.unique(layout.size, return_index=True)
    first = layout.trunk == layout.trunk[begins][layout.size]  # other seeds add weight, and without noise nothing else
    seeds = np.bincount(layout.size) / np.bincount(layout.size[first])
    trunks = take(layout, np.flatnonzero(first))
    off = [lost(trunks, world, noise, np.random.default_rng(world.seed)) for world in worlds]
    at = trunks.n_params, trunks.n_tokens
    losses = np.stack([world.loss(*at) * np.exp(lost_[trunks.size]) for world, lost_ in zip(worlds, off, strict=True)])
    n, d = map(np.log, at)
    most = min(MOST_STOPPED, len(begins) - LEAST_LEFT) if leaves_out else 0
    p_kept = np.ones(len(worlds))
    results = []
    fits = fit_surfaces(n, d, losses, seeds[trunks.size], objective=LEAST_SQUARES)
    for k, p_out in enumerate([*(_above(trunks, losses, layout, worlds, noise, k, seeds) for k in range(most)), None]):
        kept = layout if k == 0 else take(layout, np.flatnonzero(layout.size >= k))
        share = p_kept if p_out is None else p_kept * (1 - p_out[0])
        results.append(_off(fits, kept, worlds, cost, flops, share))
        if p_out is not None:
            p_kept, fits = p_kept * p_out[0], p_out[1]
    return results


def _above(
    trunks: Layout, losses: np.ndarray, layout: Layout, worlds: Sequence[World], noise: Noise, k: int, seeds: np.ndarray
) -> tuple[np.ndarray, Solution]:
    """[w]: how probable it is that size k, the smallest, is left out; and the fits without it."""
    n, d = np.log(trunks.n_params), np.log(trunks.n_tokens)
    weights = np.where(trunks.size > k, seeds[trunks.size], 0.0)
    fits = fit_surfaces(n, d, losses, weights, objective=LEAST_SQUARES)
    smallest = trunks.size == k
    expected = fits.surface.column().loss(trunks.n_params[smallest], trunks.n_tokens[smallest])
    above = np.log(losses[:, smallest] / expected).mean(1)
    rows = np.flatnonzero(layout.size >= k)
    part = take(layout, rows)
    loss, jac = linear(part, worlds)
    small = part.size == k
    slope = (jac / loss[:, :, None])[:, small].mean(1)  # of the mean log loss there
    rest = jac[:, ~small]
    weight = np.empty(loss.shape)
    weight[:, small] = 1 / small.sum()
    weight[:, ~small] = -(slope[:, None] @ np.linalg.pinv(rest))[:, 0] * loss[:, ~small]
    sd = np.sqrt(spread(part, noise, weight[:, None], loss)[:, 0])
    p_out = stats.norm.sf(stats.norm.isf(CHANCE) - above / sd)
    return np.where(fits.unidentified, 0.0, p_out), fits


def _off(
    fits: Solution, layout: Layout, worlds: Sequence[World], cost: Cost, flops: float, share: np.ndarray
) -> Missed:
    c = cost.per_token(layout.n_params) * layout.n_tokens
    at = np.array([c.min(), c.max(), flops])
    surface = fits.surface.column()
    with np.errstate(all="ignore"):
        log_n, log_l = np.log(surface.n_opt(at, cost)), np.log(surface.l_opt(at, cost))[:, 2]
    true_n = np.stack([world.log_n_opt(np.log(at), cost) for world in worlds])
    optima = zip(worlds, true_n[:, 2], strict=True)
    true_l = np.array([float(world.log_l_at(log_n_opt, np.log(flops), cost)) for world, log_n_opt in optima])
    away = log_n - true_n
    none = np.where(fits.unidentified, np.nan, 0.0)
    a = (away[:, 1] - away[:, 0]) / np.log(at[1] / at[0])
    return Missed(a + none, away[:, 2] + none, log_l - true_l + none, layout, share)


def likely(results: Sequence[Missed]) -> Iterator[Missed]:
    """The results that are fitted in some world."""
    return (result for result in results if float(result.share.max()) > 1e-3)
