"""The parametric approach on one table: fit, replicates, optima and intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.cost import Cost, cost_of
from analysis.fits.parametric import draws as drawn
from analysis.fits.parametric import optima
from analysis.fits.parametric.curves import FIRST_SHARE, Prepared, check_design, check_repeats, prepare
from analysis.fits.parametric.draws import LEAST_TRUNKS, Draws
from analysis.fits.parametric.forms import BOTH, DATA_CONSTRAINED, FORMS, OVER_TRAINING, PLAIN, REPEATED, fit_repeated
from analysis.fits.parametric.many import HUBER, LEAST_SQUARES, OBJECTIVES, Fits, Searched, fit_from_starts, fit_many
from analysis.fits.parametric.noise import Effects, Replicates, kinds_of, measure, replicates
from analysis.fits.parametric.repeats import Repeats
from analysis.fits.parametric.slopes import slopes
from analysis.fits.parametric.surface import Surface
from analysis.fits.parametric.tied import LEAST_REPLICATES, p_of_tie
from analysis.fits.points import Points
from arch.errors import InputError

MORE = {DATA_CONSTRAINED: 1, BOTH: 2}  # unknowns beside those of the plain form


@dataclass(frozen=True)
class ParametricFit:
    """A fitted surface, its replicates (None: no interval is to be had) and how both were come by. p_tied: of the
    over-training form, how probable alpha and beta this far apart are where they are one (module tied). n_free: how
    many unknowns the points decide."""

    prepared: Prepared
    objective: str
    form: str
    cost: Cost
    surface: Surface
    repeats: Repeats | None
    searched: Searched
    draws: Draws | None
    why_no_draws: str
    effects: Effects | None
    replicates: Replicates | None
    n_free: int
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
        return np.asarray(_loss(self.surface, self.repeats, n_params, n_tokens, unique_tokens))

    def loss_interval(self, n_params: Any, n_tokens: Any, unique_tokens: Any = None, level: float = 0.95) -> np.ndarray:
        """[2, k] for the expected loss at N and D [k], without the noise of a new run."""
        found = self._draws()
        repeats = None if found.repeats is None else found.repeats.column()
        n_params, n_tokens = np.atleast_1d(n_params), np.atleast_1d(n_tokens)
        return found.interval(_loss(found.surface.column(), repeats, n_params, n_tokens, unique_tokens), level)

    def optimum(self, flops: Any, level: float = 0.95) -> dict[str, np.ndarray]:
        """N_opt, D_opt and L_opt at C [k], and where there are replicates `<name>_interval` [2, k]."""
        c = np.atleast_1d(np.asarray(flops, dtype=float))
        found = optima.optimum(self.surface, self.repeats, c, self.cost)
        if self.draws is not None:
            repeats = None if self.draws.repeats is None else self.draws.repeats.column()
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                many = optima.optimum(self.draws.surface.column(), repeats, c, self.cost)
            found |= {f"{name}_interval": self.draws.interval(values, level) for name, values in many.items()}
        return found

    def exponents(self, surface: Surface, repeats: Repeats | None) -> dict[str, Any]:
        """a and b: of N_opt and D_opt over C. In closed form where a token's cost is a power N^g (g = 1: 6 N D): there
        alpha A / N^alpha is g beta B / D^beta, or another multiple of it (module optima), with C = cost D; else between
        the ends of the points' C."""
        if len(self.cost.log_n) == 2:
            growth = float(self.cost.growth(self.cost.log_n[:1])[0])
            both = surface.alpha + growth * surface.beta
            return {"a": surface.beta / both, "b": surface.alpha / both}
        ends = np.array([self.points.flops.min(), self.points.flops.max()])
        if np.ndim(surface.E):
            surface, repeats = surface.column(), None if repeats is None else repeats.column()
        with np.errstate(divide="ignore", invalid="ignore"):
            n_opt = np.log(optima.n_opt(surface, repeats, ends, self.cost))
            d_opt = np.log(ends) - self.cost.log_per_token(n_opt)
        width = np.log(ends[1] / ends[0])
        return {"a": (n_opt[..., 1] - n_opt[..., 0]) / width, "b": (d_opt[..., 1] - d_opt[..., 0]) / width}

    def _draws(self) -> Draws:
        if self.draws is None:
            raise InputError(f"no interval: {self.why_no_draws}")
        return self.draws


def _loss(surface: Surface, repeats: Repeats | None, n_params: Any, n_tokens: Any, unique_tokens: Any) -> Any:
    if repeats is None:
        return surface.loss(n_params, n_tokens)
    with np.errstate(over="ignore"):
        return repeats.loss(surface, n_params, n_tokens, unique_tokens)


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
    done. n_replicates 0: no intervals, and no test of the over-training form.
    Raises InputError for points that cannot identify the form's parameters, with how many are needed.
    """
    for value, names, what in ((objective, OBJECTIVES, "objective"), (form, FORMS, "form")):
        if value not in names:
            raise InputError(f"{what} {value}: one of {', '.join(names)}")
    prepared = prepare(points, warmup_tokens, first_share)
    kept, weights = prepared.points, prepared.weights
    log_n, log_d = np.log(kept.n_params), np.log(kept.n_tokens)
    check_design(log_n, log_d, MORE.get(form, 0))

    repeats: Repeats | None = None
    if form in REPEATED:
        check_repeats(kept.n_tokens / np.minimum(kept.unique_tokens, kept.n_tokens))
        args = (log_n, kept.n_tokens, kept.unique_tokens, kept.loss, weights)
        searched, all_repeats = fit_repeated(*args, excess=form == BOTH, objective=objective, every_start=True)
        searched = replace(searched, objectives=searched.objectives[:, 0], ended_well=searched.ended_well[:, 0])
        repeats = all_repeats.take(0)
    else:
        searched = fit_from_starts(log_n, log_d, kept.loss, weights, **_options(objective, form))
    surface = Surface(**searched.best.surface.take(0).to_dict())
    fitted = np.asarray(_loss(surface, repeats, kept.n_params, kept.n_tokens, kept.unique_tokens))
    residual = np.log(kept.loss / fitted)
    jacobian = slopes(surface, repeats, kept, form == OVER_TRAINING)
    n_free = jacobian.shape[1]
    squared = weights * kept.loss**2 if objective == LEAST_SQUARES else weights
    kinds = kinds_of(kept.trunk, kept.run, log_d)
    alone = measure(residual, jacobian, squared, kinds)
    effects = alone if noise is None else measure(residual, jacobian, squared, kinds, noise)

    rng = np.random.default_rng(seed)
    n_trunks = len(set(kept.trunk.tolist()))
    what = "runs" if n_trunks == kept.n_runs else "trunks"
    losses, drawn_weights, method, df, moved = kept.loss, weights, "", None, None
    if n_replicates <= 0:
        pass
    elif n_trunks >= LEAST_TRUNKS and form not in REPEATED:
        drawn_weights = drawn.resampled(kept.trunk, weights, rng, n_replicates)
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
    fit = ParametricFit(prepared, objective, form, law, surface, repeats, searched, None, why, effects, same, n_free)
    if not method:
        return fit
    fits, stars = refit(fit, losses, drawn_weights, told)
    alpha, beta = fits.at_bound.mean(0).tolist()
    fit = replace(fit, draws=Draws(fits.surface, method, f"{n_trunks} {what}", (alpha, beta), stars, df, moved))
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
) -> tuple[Fits, Repeats | None]:
    """The same form and objective on other losses or weights [r, n] of the same points: the fits, and R* where the form
    has one."""
    return fit_form(fit.points, losses, weights, fit.objective, fit.form, near=fit.repeats, told=told)


def fit_form(
    points: Points,
    losses: np.ndarray,
    weights: np.ndarray,
    objective: str = HUBER,
    form: str = PLAIN,
    *,
    near: Repeats | None = None,
    told: Callable[[float], None] | None = None,
) -> tuple[Fits, Repeats | None]:
    """A form fitted to losses or weights [r, n] (or [n]) of `points`: the fits, and R* [r] where the form has one;
    `near`: where a search for it starts."""
    log_n = np.log(points.n_params)
    if form not in REPEATED:
        return fit_many(log_n, np.log(points.n_tokens), losses, weights, told=told, **_options(objective, form)), None
    tokens = points.n_tokens, points.unique_tokens
    found, repeats = fit_repeated(
        log_n, *tokens, losses, weights, excess=form == BOTH, objective=objective, near=near, told=told
    )
    return found.best, repeats


def _options(objective: str, form: str) -> dict[str, Any]:
    return {"objective": objective, "tied": form == OVER_TRAINING}
