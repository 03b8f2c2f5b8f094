"""What a fit without noise misses in worlds that are not of its form, and what the errors of learning rates cost.

A sweep tries SWEPT_RATES rates, FACTOR apart, in cells of some sizes and two lengths; a law fitted to their best
rates (analysis/rates) gives every size its rate, and a wrong rate costs CURVATURE (ln rate - ln best)^2 of log loss.
Without a sweep guessed rates cost what the world says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.design.layout import Layout, take
from analysis.design.precision import ends_of, linear, spread
from analysis.design.proposal import SWEPT_RATES
from analysis.design.worlds import Noise, World
from analysis.fits.cost import Cost
from analysis.fits.solver import LEAST_SQUARES, Solution, fit_surfaces
from analysis.fits.stopped import CHANCE, LEAST_LEFT, MOST_STOPPED

FACTOR = 2.0  # between the rates of a sweep
# A rate twice too high costs 1.3 to 2.0% of the loss: 0.027 to 0.042 (ln 2)^2 (docs/research/learning-rates.md, the
# search of the quickstart, with a trial at other lengths: 1.3%).
CURVATURE = 0.03
# Standard deviation of ln of a size's best rate around its law, beyond the errors of the sweep: more than that search
# shows (its misfits have chances of 0.06 to 0.95 without any).
SCATTER = 0.08


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
) -> Iterator[Missed]:
    """The errors: 0 in worlds of the fitted form, in others the cost of the form. noise: also of a sweep's runs, where
    the layout has a sweep; each world has one draw of the rates' errors. leaves_out: also fits of fewer sizes, where
    small sizes may have stopped learning (`without_stopped`); the noise decides how probable it is that
    they are left out. What is fitted in no world is left out."""
    _, begins = np.unique(layout.size, return_index=True)
    first = layout.trunk == layout.trunk[begins][layout.size]  # other seeds add weight, and without noise nothing else
    seeds = np.bincount(layout.size) / np.bincount(layout.size[first])
    trunks = take(layout, np.flatnonzero(first))
    losses = np.stack([_loss_of_rates(trunks, world, noise) for world in worlds])
    most = min(MOST_STOPPED, len(begins) - LEAST_LEFT) if leaves_out else 0
    fits, p_kept = _fits(trunks, losses, seeds, 0), np.ones(len(worlds))
    for k in range(most + 1):
        kept = layout if k == 0 else take(layout, np.flatnonzero(layout.size >= k))
        p_out, without = np.zeros(len(worlds)), fits
        if k < most:
            without = _fits(trunks, losses, seeds, k + 1)
            p_out = _p_stopped(without, trunks, losses, kept, worlds, noise, k)
        share = p_kept * (1 - p_out)
        if float(share.max()) > 1e-3:
            yield _errors(fits, kept, worlds, cost, flops, share)
        p_kept, fits = p_kept * p_out, without


def _loss_of_rates(trunks: Layout, world: World, noise: Noise) -> np.ndarray:
    """[n]: the losses of a world with what its rates cost."""
    more = lost(trunks, world, noise, np.random.default_rng(world.seed))
    return np.asarray(world.loss(trunks.n_params, trunks.n_tokens) * np.exp(more[trunks.size]))


def _fits(trunks: Layout, losses: np.ndarray, seeds: np.ndarray, smallest: int) -> Solution:
    """Of the sizes from the rank `smallest` on."""
    weights = np.where(trunks.size >= smallest, seeds[trunks.size], 0.0)
    n, d = np.log(trunks.n_params), np.log(trunks.n_tokens)
    return fit_surfaces(n, d, losses, weights, objective=LEAST_SQUARES)


def _p_stopped(
    without: Solution, trunks: Layout, losses: np.ndarray, kept: Layout, worlds: Sequence[World], noise: Noise, k: int
) -> np.ndarray:
    """[w]: how probable it is that size k, the smallest of `kept`, is left out; without: the fits without it."""
    smallest = trunks.size == k
    expected = without.surface.column().loss(trunks.n_params[smallest], trunks.n_tokens[smallest])
    above = np.log(losses[:, smallest] / expected).mean(1)
    loss, jac = linear(kept, worlds)
    small = kept.size == k
    slope = (jac / loss[:, :, None])[:, small].mean(1)  # of the mean log loss there
    weight = np.empty(loss.shape)
    weight[:, small] = 1 / small.sum()
    weight[:, ~small] = -(slope[:, None] @ np.linalg.pinv(jac[:, ~small]))[:, 0] * loss[:, ~small]
    sd = np.sqrt(spread(kept, noise, weight[:, None], loss)[:, 0])
    return np.where(without.unidentified, 0.0, stats.norm.sf(stats.norm.isf(CHANCE) - above / sd))


def _errors(
    fits: Solution, layout: Layout, worlds: Sequence[World], cost: Cost, flops: float, share: np.ndarray
) -> Missed:
    at = ends_of(layout, cost, flops)
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


def lost(layout: Layout, world: World, noise: Noise, rng: np.random.Generator) -> np.ndarray:
    """[k]: log loss that the sizes lose by their rates: by the errors of a sweep or of known laws, whatever the world;
    else as the world says."""
    if noise.laws:
        errors, curvature = errors_by_laws(layout, noise), float(np.mean([law.curvature.at for law in noise.laws]))
    elif layout.swept is not None:
        errors, curvature = errors_by_sweep(layout, noise), CURVATURE
    else:
        return world.off(int(layout.size.max()) + 1)
    values, vectors = np.linalg.eigh(errors)  # a known law may have no scatter: singular
    rate_error = vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(len(errors)))
    return np.asarray(curvature * rate_error**2)


def _sizes(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """[k] of each size: log N, and ln of the tokens for which its rate is chosen: of branches the geometric mean of the
    shortest and the longest (scaling/study/rate_law.py), of curves their length."""
    rows = [np.flatnonzero(layout.size == i) for i in range(int(layout.size.max()) + 1)]
    log_d = [np.log(layout.n_tokens[of_size]) for of_size in rows]
    horizons = [at.max() if layout.curves else (at.min() + at.max()) / 2 for at in log_d]
    return np.log([layout.n_params[of_size[0]] for of_size in rows]), np.array(horizons)


def errors_by_sweep(layout: Layout, noise: Noise) -> np.ndarray:
    """[k, k]: covariance of the errors of ln rate at the k sizes, of a law fitted to the layout's sweep. A cell's rates
    are centred at its best rate."""
    assert layout.swept is not None
    n, d = np.log(layout.swept)
    steps = (np.arange(SWEPT_RATES) - (SWEPT_RATES - 1) / 2) * math.log(FACTOR)
    of_cell = noise.seed / (2 * CURVATURE * math.sqrt(float((steps**2).sum())))
    design = np.column_stack([np.ones(len(n)), n - n.mean(), d - d.mean()])
    law = np.linalg.inv(design.T @ design) * (of_cell**2 + SCATTER**2)
    at_n, at_d = _sizes(layout)
    at = np.column_stack([np.ones(len(at_n)), at_n - n.mean(), at_d - d.mean()])
    return np.asarray(at @ law @ at.T + SCATTER**2 * np.eye(len(at_n)))


def errors_by_laws(layout: Layout, noise: Noise) -> np.ndarray:
    """[k, k]: the same for known laws, their mean; a term in the batch is taken at its centre."""
    at = dict(zip(("n_params", "n_tokens"), _sizes(layout), strict=True))
    k = len(at["n_params"])
    total = np.zeros((k, k))
    for law in noise.laws:
        columns = [at[term] - math.log(law.centre[term]) if term in at else np.zeros(k) for term in law.terms]
        design = np.column_stack([np.ones(k), *columns])
        total += design @ np.array(law.covariance) @ design.T + law.scatter**2 * np.eye(k)
    return total / len(noise.laws)
