"""The parametric approach on one table: fit, replicates, optima and intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from analysis.fits.cost import Cost, cost_of
from analysis.fits.fit import SameRuns
from analysis.fits.forms import BOTH, DATA_CONSTRAINED, OVER_TRAINING, PLAIN, REPEATED, Form
from analysis.fits.parametric import draws as drawn
from analysis.fits.parametric.curves import FIRST_SHARE, Prepared, check_design, check_repeats, has_design, prepare
from analysis.fits.parametric.draws import LEAST_TRUNKS, Draws
from analysis.fits.parametric.noise import Effects, kinds_of, measure, replicates
from analysis.fits.parametric.tied import LEAST_REPLICATES, p_of_tie
from analysis.fits.points import Points
from analysis.fits.solver import HUBER, LEAST_SQUARES, Solution, data_of, fit_surfaces, joined
from analysis.fits.surface import Surface
from arch.errors import InputError

MANY = 1000  # points, from which on replicates start at the fit itself: noise moves it by less than its basin
MORE = {OVER_TRAINING: -1, DATA_CONSTRAINED: 1, BOTH: 2}  # unknowns beside those of the plain form


@dataclass(frozen=True)
class ParametricFit:
    """A fitted surface, its replicates (None: no interval is to be had) and where both come from. p_tied: of the
    over-training form, how probable alpha and beta this far apart are where they are one (module tied). n_free: how
    many unknowns the points decide."""

    prepared: Prepared
    objective: str
    form: str
    cost: Cost
    surface: Surface
    solution: Solution
    draws: Draws | None
    why_no_draws: str
    effects: Effects | None
    replicates: SameRuns | None
    n_free: int
    p_tied: float | None = None

    @property
    def identified(self) -> bool:
        """Whether both exponents ended inside their range."""
        return not self.solution.unidentified.any()

    @property
    def points(self) -> Points:
        return self.prepared.points

    def loss_interval(self, n_params: Any, n_tokens: Any, unique_tokens: Any = None, level: float = 0.95) -> np.ndarray:
        """[2, k] for the expected loss at N and D [k], without the noise of a new run."""
        if self.draws is None:
            raise InputError(f"no interval: {self.why_no_draws}")
        n_params, n_tokens = np.atleast_1d(n_params), np.atleast_1d(n_tokens)
        with np.errstate(over="ignore"):
            return self.draws.interval(self.draws.surface.column().loss(n_params, n_tokens, unique_tokens), level)

    def optimum(self, flops: Any, level: float = 0.95) -> dict[str, np.ndarray]:
        """N_opt, D_opt and L_opt at C [k], and where there are replicates `<name>_interval` [2, k]."""
        c = np.atleast_1d(np.asarray(flops, dtype=float))
        names = ("n_opt", "d_opt", "l_opt")
        found = {name: np.asarray(getattr(self.surface, name)(c, self.cost)) for name in names}
        if self.draws is not None:
            many = self.draws.surface.column()
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                found |= {
                    f"{name}_interval": self.draws.interval(getattr(many, name)(c, self.cost), level) for name in names
                }
        return found

    def exponents(self, surface: Surface) -> dict[str, Any]:
        """a and b of a surface, or of r, under the cost of these points, and over their range of C."""
        return surface.exponents(self.cost, float(self.points.flops.min()), float(self.points.flops.max()))


def fit_parametric(
    points: Points,
    *,
    objective: str = HUBER,
    form: str = PLAIN,
    cost: Cost | None = None,
    n_replicates: int = 1000,
    seed: int = 0,
    noise: tuple[float, float] | None = None,
    warmup_tokens: float = 0.0,
    first_share: float = FIRST_SHARE,
    progress: Callable[[float], None] | None = None,
) -> ParametricFit:
    """Fit L(N, D) to points of one group, end points or whole curves.

    cost: of a token over N, for optima; that of the points if left out. noise: standard deviation of log L between
    seeds and its degrees of freedom, where it was measured on other runs; it enters below 20 trunks. warmup_tokens and
    first_share: which rows of curves are transients (`prepare`). progress: called with the share of the replicates that
    is done. n_replicates 0: no intervals, and no test of the over-training form.
    Raises InputError for points that cannot identify the form's parameters, with how many are needed.
    """
    prepared = prepare(points, warmup_tokens, first_share)
    kept, weights = prepared.points, prepared.weights
    log_n, log_d = np.log(kept.n_params), np.log(kept.n_tokens)
    check_design(log_n, log_d, MORE.get(form, 0))
    if form in REPEATED:
        check_repeats(kept.n_tokens / np.minimum(kept.unique_tokens, kept.n_tokens))
    solution = fit_form(kept, kept.loss, weights, objective, form, every_start=True)
    surface = solution.surface.one()
    fitted = np.asarray(surface.loss(kept.n_params, kept.n_tokens, kept.unique_tokens))
    residual = np.log(kept.loss / fitted)
    jacobian = free_slopes(kept, form, surface, solution.at_bound[0])
    n_free = jacobian.shape[1]
    squared = weights * kept.loss**2 if objective == LEAST_SQUARES else weights
    kinds = kinds_of(kept.trunk, kept.run, log_d)
    alone = measure(residual, jacobian, squared, kinds)
    effects = alone if noise is None else measure(residual, jacobian, squared, kinds, noise)

    rng = np.random.default_rng(seed)
    n_trunks = len(set(kept.trunk.tolist()))
    what = "runs" if n_trunks == kept.n_runs else "trunks"
    losses, method, df, moved = kept.loss, "", None, None
    if n_replicates <= 0:
        pass
    elif n_trunks >= LEAST_TRUNKS and form not in REPEATED:
        df = drawn.widening(n_trunks, objective, n_free)
        method = (drawn.OVER_TRUNKS if df is None else drawn.WIDENED).format(n=n_trunks, what=what)
        losses = kept.loss * np.exp(kept.common(n_replicates, seed))
    elif effects is not None:
        moved = effects.draw(rng, n_replicates) + kept.common(n_replicates, seed)
        losses = fitted * np.exp(moved)
        method = drawn.SIMULATED.format(r=n_replicates, what=what)
    law = cost or cost_of(kept)
    same = replicates(residual, log_n, log_d, kept.trunk, alone, kept.recipe)
    why = "" if method else drawn.NOT_ASKED if n_replicates <= 0 else drawn.NONE
    fit = ParametricFit(prepared, objective, form, law, surface, solution, None, why, effects, same, n_free)
    if not method:
        return fit
    if moved is None:
        again = _resampled(fit, losses, rng, n_replicates, progress)
    else:
        again = refit(fit, losses, weights, progress)
    shares = again.at_bound.mean(0).tolist()
    fit = replace(fit, draws=Draws(again.surface, method, f"{n_trunks} {what}", tuple(shares), df, moved))
    if form != OVER_TRAINING or not has_design(log_n, log_d):
        return fit
    free = fit_parametric(
        points,
        objective=objective,
        cost=law,
        n_replicates=max(n_replicates, LEAST_REPLICATES),
        seed=seed,
        noise=noise,
        warmup_tokens=warmup_tokens,
        first_share=first_share,
    )
    return replace(fit, p_tied=None if free.draws is None else p_of_tie(free.draws))


def refit(
    fit: ParametricFit, losses: np.ndarray, weights: np.ndarray, progress: Callable[[float], None] | None = None
) -> Solution:
    """The same form and objective on other losses or weights [r, n] of the same points."""
    near = fit.surface if fit.form in REPEATED or len(fit.points) >= MANY else None
    return fit_form(fit.points, losses, weights, fit.objective, fit.form, near=near, progress=progress)


def _resampled(
    fit: ParametricFit,
    losses: np.ndarray,
    rng: np.random.Generator,
    r: int,
    progress: Callable[[float], None] | None,
) -> Solution:
    """Refits to r bootstraps over trunks, with `losses` [n] or [r, n]."""
    parts, done = [], 0
    for weights in drawn.resampled(fit.points.trunk, fit.prepared.weights, rng, r):
        some = losses if losses.ndim == 1 else losses[done : done + len(weights)]
        share = None if progress is None else partial(_part, progress, done / r, len(weights) / r)
        parts.append(refit(fit, some, weights, share))
        done += len(weights)
    return joined(parts)


def _part(progress: Callable[[float], None], done: float, of_all: float, share: float) -> None:
    progress(done + of_all * share)


def fit_form(
    points: Points, losses: np.ndarray, weights: np.ndarray, objective: str = HUBER, form: str = PLAIN, **options: Any
) -> Solution:
    """A form fitted to losses or weights [r, n] (or [n]) of `points`; `options` are those of `fit_surfaces`."""
    log_n, log_d, log_unique = (np.log(one) for one in (points.n_params, points.n_tokens, points.unique_tokens))
    return fit_surfaces(log_n, log_d, losses, weights, objective=objective, form=form, log_unique=log_unique, **options)


def free_slopes(points: Points, form: str, surface: Surface, at_bound: np.ndarray) -> np.ndarray:
    """[n, free]: how log L at points moves with the unknowns of a fit that are free: what noise a fit absorbs, and how
    many it has."""
    model = Form(form)
    amounts = points.n_params, points.n_tokens, points.loss, np.ones(len(points)), points.unique_tokens
    n, d, loss, ones, unique = (np.atleast_2d(value) for value in amounts)
    data = data_of([np.log(n), np.log(d), loss, ones], np.log(unique) if model.repeated else None)
    slopes = model.slopes(model.theta(surface, data), data)[1][0].T
    return np.asarray(slopes[:, model.is_free(surface, at_bound)])
