"""The parametric approach on one table: fit, replicates, optima and intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.cost import Cost, cost_of
from analysis.fits.parametric import draws as drawn
from analysis.fits.parametric.curves import FIRST_SHARE, Prepared, check_design, prepare
from analysis.fits.parametric.draws import LEAST_TRUNKS, Draws
from analysis.fits.parametric.forms import (
    DATA_CONSTRAINED,
    FORMS,
    OVER_TRAINING,
    PLAIN,
    effective,
    fit_repeated,
)
from analysis.fits.parametric.many import HUBER, LEAST_SQUARES, OBJECTIVES, Fits, Searched, fit_from_starts, fit_many
from analysis.fits.parametric.noise import Effects, Replicates, kinds_of, measure, replicates
from analysis.fits.parametric.surface import Surface
from analysis.fits.parametric.tied import LEAST_REPLICATES, p_of_tie
from analysis.fits.points import Points
from arch.errors import InputError

ROUGH = 0.02  # of log R* in replicates
FINE = 1e-6  # of log R* in the fit itself


@dataclass(frozen=True)
class ParametricFit:
    """A fitted surface, its replicates (None: no interval is to be had) and how both were come by. p_tied: of the
    over-training form, how probable alpha and beta this far apart are where they are one (module tied)."""

    prepared: Prepared
    objective: str
    form: str
    cost: Cost
    surface: Surface
    r_star: float | None
    searched: Searched
    draws: Draws | None
    why_no_draws: str
    effects: Effects | None
    replicates: Replicates | None
    p_tied: float | None = None

    @property
    def identified(self) -> bool:
        """Whether both exponents ended inside their range."""
        return not self.searched.best.at_bound.any()

    @property
    def points(self) -> Points:
        return self.prepared.points

    def loss(self, n_params: Any, n_tokens: Any, unique_tokens: Any = None) -> np.ndarray:
        """L at N and D [...] of which `unique_tokens` are new (all, if left out)."""
        return np.asarray(self.surface.loss(n_params, self._worth(n_tokens, unique_tokens, self.r_star)))

    def loss_interval(self, n_params: Any, n_tokens: Any, unique_tokens: Any = None, level: float = 0.95) -> np.ndarray:
        """[2, k] for the expected loss at N and D [k], without the noise of a new run."""
        found = self._draws()
        r_star = None if found.r_star is None else found.r_star[:, None]
        worth = self._worth(np.atleast_1d(n_tokens), unique_tokens, r_star)
        return found.interval(found.surface.column().loss(np.atleast_1d(n_params), worth), level)

    def optimum(self, flops: Any, level: float = 0.95) -> dict[str, np.ndarray]:
        """N_opt, D_opt and L_opt at C [k], and where there are replicates `<name>_interval` [2, k]."""
        c = np.atleast_1d(np.asarray(flops, dtype=float))
        found: dict[str, np.ndarray] = {}
        for name in ("n_opt", "d_opt", "l_opt"):
            found[name] = np.asarray(getattr(self.surface, name)(c, self.cost))
            if self.draws is not None:
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    values = getattr(self.draws.surface.column(), name)(c, self.cost)
                found[f"{name}_interval"] = self.draws.interval(values, level)
        return found

    def exponents(self, surface: Surface) -> dict[str, Any]:
        """a and b: of N_opt and D_opt over C. In closed form where a token's cost is a power N^g (g = 1: 6 N D): there
        alpha A / N^alpha = g beta B / D^beta with C = cost D; else between the ends of the points' C."""
        if len(self.cost.log_n) == 2:
            growth = float(self.cost.growth(self.cost.log_n[:1])[0])
            both = surface.alpha + growth * surface.beta
            return {"a": surface.beta / both, "b": surface.alpha / both}
        ends = np.array([self.points.flops.min(), self.points.flops.max()])
        many = surface.column() if np.ndim(surface.E) else surface
        with np.errstate(divide="ignore", invalid="ignore"):
            n_opt = np.log(many.n_opt(ends, self.cost))
            d_opt = np.log(ends) - self.cost.log_per_token(n_opt)
        width = np.log(ends[1] / ends[0])
        return {"a": (n_opt[..., 1] - n_opt[..., 0]) / width, "b": (d_opt[..., 1] - d_opt[..., 0]) / width}

    def _draws(self) -> Draws:
        if self.draws is None:
            raise InputError(f"no interval: {self.why_no_draws}")
        return self.draws

    @staticmethod
    def _worth(n_tokens: Any, unique_tokens: Any, r_star: Any) -> np.ndarray:
        tokens = np.asarray(n_tokens, dtype=float)
        return (
            tokens if r_star is None or unique_tokens is None else effective(tokens, np.asarray(unique_tokens), r_star)
        )


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
    told: Callable[[float], None] | None = None,
) -> ParametricFit:
    """Fit L(N, D) to points of one group, end points or whole curves.

    cost: of a token over N, for optima; that of the points if left out. noise: standard deviation of log L between
    seeds and its degrees of freedom, where it was measured on other runs; it enters below 20 trunks. warmup_tokens and
    first_share: which rows of curves are transients (`prepare`). told: called with the share of the replicates that is
    done, but for the data-constrained form. n_replicates 0: no intervals, and no test of the over-training form.
    Raises InputError for points that cannot identify five parameters, with how many are needed.
    """
    for value, names, what in ((objective, OBJECTIVES, "objective"), (form, FORMS, "form")):
        if value not in names:
            raise InputError(f"{what} {value}: one of {', '.join(names)}")
    prepared = prepare(points, warmup_tokens, first_share)
    kept, weights = prepared.points, prepared.weights
    log_n, log_d = np.log(kept.n_params), np.log(kept.n_tokens)
    check_design(log_n, log_d)

    r_star: float | None = None
    if form == DATA_CONSTRAINED:
        _, found = fit_form(kept, kept.loss, weights, objective, form, tolerance=FINE)
        r_star = None if found is None else float(found[0])
    worth = kept.n_tokens if r_star is None else effective(kept.n_tokens, kept.unique_tokens, r_star)
    searched = fit_from_starts(log_n, np.log(worth), kept.loss, weights, **_options(objective, form))
    surface = Surface(**searched.best.surface.take(0).to_dict())
    residual = np.log(kept.loss / surface.loss(kept.n_params, worth))
    jacobian = _jacobian(surface, kept, r_star)
    squared = weights * kept.loss**2 if objective == LEAST_SQUARES else weights
    kinds = kinds_of(kept.trunk, kept.run, log_d)
    alone = measure(residual, jacobian, squared, kinds)
    effects = alone if noise is None else measure(residual, jacobian, squared, kinds, noise)

    rng = np.random.default_rng(seed)
    n_trunks = len(set(kept.trunk.tolist()))
    what = "runs" if n_trunks == kept.n_runs else "trunks"
    losses, drawn_weights, method, df = kept.loss, weights, "", None
    if n_replicates <= 0:
        pass
    elif n_trunks >= LEAST_TRUNKS:
        drawn_weights = drawn.resampled(kept.trunk, weights, rng, n_replicates)
        df = drawn.widening(n_trunks, objective)
        method = (drawn.OVER_TRUNKS if df is None else drawn.WIDENED).format(n=n_trunks, what=what)
    elif effects is not None:
        losses = surface.loss(kept.n_params, worth) * np.exp(effects.draw(rng, n_replicates))
        method = drawn.SIMULATED.format(r=n_replicates, what=what)
    law = cost or cost_of(kept)
    same = replicates(residual, log_n, log_d, kept.trunk, alone)
    why = "" if method else drawn.NOT_ASKED if n_replicates <= 0 else drawn.NONE
    fit = ParametricFit(prepared, objective, form, law, surface, r_star, searched, None, why, effects, same)
    if not method:
        return fit
    fits, stars = refit(fit, losses, drawn_weights, told)
    alpha, beta = fits.at_bound.mean(0).tolist()
    fit = replace(fit, draws=Draws(fits.surface, method, f"{n_trunks} {what}", (alpha, beta), stars, df))
    if form != OVER_TRAINING:
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
    fit: ParametricFit, losses: np.ndarray, weights: np.ndarray, told: Callable[[float], None] | None = None
) -> tuple[Fits, np.ndarray | None]:
    """The same form and objective on other losses or weights [r, n] of the same points: the fits, and R* where the form
    has one."""
    return fit_form(fit.points, losses, weights, fit.objective, fit.form, told=told)


def fit_form(
    points: Points,
    losses: np.ndarray,
    weights: np.ndarray,
    objective: str = HUBER,
    form: str = PLAIN,
    *,
    tolerance: float = ROUGH,
    told: Callable[[float], None] | None = None,
) -> tuple[Fits, np.ndarray | None]:
    """A form fitted to losses or weights [r, n] (or [n]) of `points`: the fits, and R* [r] where the form has one, to
    `tolerance` of its logarithm."""
    log_n, options = np.log(points.n_params), _options(objective, form)
    if form != DATA_CONSTRAINED:
        return fit_many(log_n, np.log(points.n_tokens), losses, weights, told=told, **options), None
    return fit_repeated(log_n, points.n_tokens, points.unique_tokens, losses, weights, tolerance=tolerance, **options)


def _options(objective: str, form: str) -> dict[str, Any]:
    return {"objective": objective, "tied": form == OVER_TRAINING}


def _jacobian(surface: Surface, kept: Points, r_star: float | None) -> np.ndarray:
    """[n, p]: of log L over E, log A, log B, alpha, beta, and log R* where there is one."""
    worth = kept.n_tokens if r_star is None else effective(kept.n_tokens, kept.unique_tokens, r_star)
    log_n, log_d = np.log(kept.n_params), np.log(worth)
    p, q = surface.A * np.exp(-surface.alpha * log_n), surface.B * np.exp(-surface.beta * log_d)
    columns = [np.ones_like(p), p, q, -log_n * p, -log_d * q]
    if r_star is not None and np.isfinite(r_star):
        more, less = (np.log(effective(kept.n_tokens, kept.unique_tokens, r_star * np.exp(h))) for h in (1e-4, -1e-4))
        columns.append(-surface.beta * q * (more - less) / 2e-4)
    return np.stack(columns, 1) / (surface.E + p + q)[:, None]
