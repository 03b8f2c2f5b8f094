"""How precisely fits of a proposal's points determine a world, without simulation: by linearised least squares; what
they miss in worlds that are not of the fitted form; and what wrong learning rates cost.

A sweep tries SWEPT_RATES rates, FACTOR apart, in cells of some sizes and two lengths; a law fitted to their best
rates (analysis/rates) gives every size its rate, and a wrong rate costs CURVATURE (ln rate - ln best)^2 of log loss.
Without a sweep guessed rates cost what the world says. Imports no scipy: a plan stays quick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.design.worlds import Noise, World
from analysis.fits.cost import Cost
from analysis.fits.solver import LEAST_SQUARES, fit_surfaces
from analysis.fits.surface import Surface

STEP = 1e-4  # of the differences that give gradients
MEMORY = 2.0  # of the noise along a run, in log D
CURVE_ROWS, CURVE_FROM = 32, 0.1  # of a curve, as the fits read it (FitSettings.curve_rows)
SMOOTHED = 0.1  # of the tokens seen, over which a point of a training curve is a mean
SWEPT_RATES, FACTOR = 5, 2.0  # rates of a cell of a sweep, and the factor between two of them
# A rate twice too high costs 1.3 to 2.0% of the loss: 0.027 to 0.042 (ln 2)^2 (docs/research/learning-rates.md, the
# search of the quickstart, with a trial at other lengths: 1.3%).
CURVATURE = 0.03
# Standard deviation of ln of a size's best rate around its law, beyond the errors of the sweep: more than that search
# shows (its misfits have chances of 0.06 to 0.95 without any).
SCATTER = 0.08


@dataclass(frozen=True)
class Layout:
    """The n points of one architecture, along the runs of one after another: N, D, the rank of the size and of the run
    (or of the trunk that several runs share) of each. swept [2, cells]: N and D of the cells of its sweep of learning
    rates, None without a sweep; window [n]: the tokens over which a training loss is a mean, None for other losses."""

    n_params: np.ndarray
    n_tokens: np.ndarray
    size: np.ndarray
    run: np.ndarray
    swept: np.ndarray | None = None
    window: np.ndarray | None = None

    def first_runs(self) -> tuple[Layout, np.ndarray]:
        """The points of each size's first run, and how many times as many the size has [points]."""
        _, begins = np.unique(self.size, return_index=True)
        first = self.run == self.run[begins][self.size]
        size, times = self.size[first], np.bincount(self.size) / np.bincount(self.size[first])
        layout = Layout(self.n_params[first], self.n_tokens[first], size, self.run[first], self.swept)
        return layout, times[size]

    def ends(self, cost: Cost, flops: float) -> np.ndarray:
        """The least and the most compute of the points, and `flops`."""
        c = cost.per_token(self.n_params) * self.n_tokens
        return np.array([c.min(), c.max(), flops])

    def along_sizes(self) -> np.ndarray:
        """[n, k]: log D of the points of each of the k sizes about their mean, 0 at other sizes."""
        member = (self.size[:, None] == np.unique(self.size)).astype(float)
        at = np.log(self.n_tokens)
        return np.asarray(member * (at[:, None] - at @ member / member.sum(0)))


def along(tokens: float, window: float = 0.0, share: float = SMOOTHED) -> np.ndarray:
    """[CURVE_ROWS]: the tokens of the points of a curve, each the mean over `share` of the tokens seen, or over
    `window` where that is more: the last window ends with the run."""
    last = min(tokens / (1 + share / 2), max(tokens - window / 2, tokens / 2))
    return np.geomspace(min(CURVE_FROM * tokens, last / 2), last, CURVE_ROWS)


@dataclass(frozen=True)
class Errors:
    """For each world: of a, of log N_opt and of log L_opt at C."""

    a: np.ndarray
    log_n: np.ndarray
    log_l: np.ndarray


def precision(layout: Layout, worlds: Sequence[World], noise: Noise, cost: Cost, flops: float) -> Errors:
    """Standard deviations of a fit of the layout's points, at C = `flops`; a is between the ends of the layout's
    compute."""
    e, a, b, alpha, beta = (column[:, None] for column in _theta(worlds).T)
    log_n, log_d = np.log(layout.n_params), np.log(layout.n_tokens)
    term_n, term_d = a * np.exp(-alpha * log_n), b * np.exp(-beta * log_d)
    loss = e + term_n + term_d
    x, y = log_n - log_n.mean(), log_d - log_d.mean()  # log A and log B there: better conditioned
    jac = np.stack([np.ones_like(loss), term_n, term_d, -term_n * x, -term_d * y], -1)  # [w, n, 5]
    turned = np.swapaxes(jac, 1, 2)
    grad = _gradients(layout, worlds, cost, flops)  # [w, 3, 5]
    weight = grad @ np.linalg.pinv(turned @ jac, hermitian=True) @ turned * loss[:, None]  # [w, 3, n]: of log losses
    return Errors(*np.sqrt(variance_of(layout, noise, weight, loss)).T)


def _theta(worlds: Sequence[World]) -> np.ndarray:
    """[w, 5]: E, A, B, alpha, beta."""
    return np.array([list(world.surface.to_dict().values()) for world in worlds])


def _gradients(layout: Layout, worlds: Sequence[World], cost: Cost, flops: float) -> np.ndarray:
    """[w, 3, 5]: of a, log N_opt and log L_opt over E, log A, log B at the centre, alpha, beta. At a knot of the cost
    N_opt has no gradient, so the cost is the power law through the smallest and the largest size."""
    at = layout.ends(cost, flops)
    sizes = np.log([layout.n_params.min(), layout.n_params.max()])
    smooth = Cost(sizes, cost.log_per_token(sizes), cost.convention)
    # how E, log A, log B, alpha, beta move along each parameter: those at the centre stay where exponents move
    moves = np.eye(5)
    moves[3, 1], moves[4, 2] = np.log(layout.n_params).mean(), np.log(layout.n_tokens).mean()
    e, a, b, alpha, beta = _theta(worlds).T
    gradients = np.empty((len(worlds), 3, 5))
    for p, move in enumerate(STEP * moves):
        both = []
        for d in (move, -move):
            surface = Surface(e + d[0], a * np.exp(d[1]), b * np.exp(d[2]), alpha + d[3], beta + d[4]).column()
            log_n = np.log(surface.n_opt(at, smooth))
            slope = (log_n[:, 1] - log_n[:, 0]) / np.log(at[1] / at[0])
            both.append(np.stack([slope, log_n[:, 2], np.log(surface.l_opt(at, smooth))[:, 2]], 1))
        gradients[:, :, p] = (both[0] - both[1]) / (2 * STEP)
    return gradients


def of_text(layout: Layout, noise: Noise, loss: np.ndarray) -> np.ndarray:
    """[..., n]: standard deviations of the log of losses [..., n] by the text that they are means over."""
    return np.zeros_like(loss) if layout.window is None else noise.text / (loss * np.sqrt(layout.window))


def variance_of(layout: Layout, noise: Noise, weight: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """[w, k]: of weight @ (log losses), for weights [w, k, n] and losses [w, n]: noise of runs, whose correlation along
    log D falls as exp(-distance / MEMORY), of a size's slope, and of the text, as if no two points shared any."""
    at = np.log(layout.n_tokens)
    begins = np.flatnonzero(np.r_[True, layout.run[1:] != layout.run[:-1]])
    place = np.repeat(begins, np.diff(np.r_[begins, len(at)]))
    rise = np.exp((at - at[place]) / MEMORY)
    before = np.cumsum(weight * rise, -1)  # of one run, what lies at or before a point
    before -= np.where(place > 0, before[..., place - 1], 0.0)
    variance = noise.seed**2 * (2 * weight / rise * before - weight**2).sum(-1)
    variance += noise.bend**2 * ((weight @ layout.along_sizes()) ** 2).sum(-1)
    return np.asarray(variance + ((weight * of_text(layout, noise, loss)[:, None]) ** 2).sum(-1))


def missed(layout: Layout, worlds: Sequence[World], noise: Noise, cost: Cost, flops: float) -> Errors:
    """The errors of a fit without noise: 0 in worlds of the fitted form, in others the cost of the form; nan where the
    fit does not identify them. noise: also of a sweep's runs, where the layout has a sweep; each world has one draw of
    the rates' errors."""
    first, seeds = layout.first_runs()  # other seeds add weight, and without noise nothing else
    losses = np.stack(
        [
            world.loss(first.n_params, first.n_tokens)
            * np.exp(lost(first, world, noise, np.random.default_rng(world.seed))[first.size])
            for world in worlds
        ]
    )
    n, d = np.log(first.n_params), np.log(first.n_tokens)
    fits = fit_surfaces(n, d, losses, seeds, objective=LEAST_SQUARES)
    at, surface = layout.ends(cost, flops), fits.surface.column()
    with np.errstate(all="ignore"):
        log_n, log_l = np.log(surface.n_opt(at, cost)), np.log(surface.l_opt(at, cost))[:, 2]
    true_n = np.stack([world.log_n_opt(np.log(at), cost) for world in worlds])
    optima = zip(worlds, true_n[:, 2], strict=True)
    true_l = np.array([float(world.log_l_at(optimum, np.log(flops), cost)) for world, optimum in optima])
    away = log_n - true_n
    none = np.where(fits.unidentified, np.nan, 0.0)
    return Errors((away[:, 1] - away[:, 0]) / np.log(at[1] / at[0]) + none, away[:, 2] + none, log_l - true_l + none)


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


def _log_sizes(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """[k] of each size: log N, and log D at the end of its runs, for which its rate is chosen."""
    rows = [np.flatnonzero(layout.size == i) for i in range(int(layout.size.max()) + 1)]
    ends = np.array([(layout.n_params[of_size[0]], layout.n_tokens[of_size].max()) for of_size in rows])
    return np.log(ends[:, 0]), np.log(ends[:, 1])


def errors_by_sweep(layout: Layout, noise: Noise) -> np.ndarray:
    """[k, k]: covariance of the errors of ln rate at the k sizes, of a law fitted to the layout's sweep. A cell's rates
    are centred at its best rate."""
    assert layout.swept is not None
    n, d = np.log(layout.swept)
    steps = (np.arange(SWEPT_RATES) - (SWEPT_RATES - 1) / 2) * math.log(FACTOR)
    of_cell = noise.seed / (2 * CURVATURE * math.sqrt(float((steps**2).sum())))
    design = np.column_stack([np.ones(len(n)), n - n.mean(), d - d.mean()])
    law = np.linalg.inv(design.T @ design) * (of_cell**2 + SCATTER**2)
    at_n, at_d = _log_sizes(layout)
    at = np.column_stack([np.ones(len(at_n)), at_n - n.mean(), at_d - d.mean()])
    return np.asarray(at @ law @ at.T + SCATTER**2 * np.eye(len(at_n)))


def errors_by_laws(layout: Layout, noise: Noise) -> np.ndarray:
    """[k, k]: the same for known laws, their mean; a term in the batch is taken at its centre."""
    at = dict(zip(("n_params", "n_tokens"), _log_sizes(layout), strict=True))
    k = len(at["n_params"])
    total = np.zeros((k, k))
    for law in noise.laws:
        columns = [at[term] - math.log(law.centre[term]) if term in at else np.zeros(k) for term in law.terms]
        design = np.column_stack([np.ones(k), *columns])
        total += design @ np.array(law.covariance) @ design.T + law.scatter**2 * np.eye(k)
    return total / len(noise.laws)
