"""The parametric approach: a surface L(N, D) through points, its replicates, and the laws, optima and predictions of
both.

What enters. The surface describes losses late in training: rows before `first_share` of their run's last D go (the
fall from the loss of guessing is not on it), end points stay, and every run weighs the same. A curve of more than 64
rows becomes 64: rows between neighbouring D, evenly spaced in log D, are averaged in logarithms.

Intervals. From 20 independent trunks up: a bootstrap over trunks (a run that was not branched is its own). Below that
resampling repeats too few of them, so replicates are drawn from the fitted surface and the noise that its residuals
show (analysis.fits.noise). So they are for the data-constrained form, of as many runs: those that tell R* are few of
them. Either way each replicate is fitted as the points were, and an interval lies between percentiles of whatever is
computed from the replicates' surfaces. Percentiles of a bootstrap are too narrow for least squares with few trunks:
they take the quantiles of Student's t with n - p degrees of freedom, p the free parameters, in the place of the
normal's (Hesterberg 2015, section 3.2). Those of Huber losses need not. docs/research/parametric-fits.md has how often
they cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.cost import Cost, cost_of
from analysis.fits.draws import quantiles
from analysis.fits.fit import (
    D_OPT,
    L_OPT,
    N_OPT,
    NOTHING,
    PARAMETRIC,
    QUANTITIES,
    Estimate,
    Fit,
    Intervals,
    Law,
    NoiseOf,
    Objective,
    Optimum,
    ParametricPart,
    Prediction,
    SameRuns,
)
from analysis.fits.forms import FORMS, PLAIN, Form, form_of
from analysis.fits.noise import Effects, effects_of, kinds_of, same_runs
from analysis.fits.points import Points
from analysis.fits.solver import BLOCK, DELTA, HUBER, LEAST_SQUARES, OBJECTIVES, Solution, fit_surfaces, joined
from analysis.fits.surface import PARAMS, Surface
from arch.amounts import counted, counted_of
from arch.errors import InputError

MOST_ROWS = 64  # of a run
FIRST_SHARE = 0.1  # of a run's tokens
SAME = 0.01  # of log N, log D: closer ones are one size, one amount of tokens
LEAST_DISTINCT = 3  # of N and of D: a level, a coefficient and an exponent each
MOST_RATIO = 1e6  # of the largest loss to the smallest: beyond it a surface of the others is lost in rounding
LEAST_SPREAD = 0.05  # of log D around a line in log N: where D follows N, nothing tells their terms apart
MANY = 1000  # points, from which on replicates start at the fit itself: noise moves it by less than its basin
LEAST_TRUNKS = 20  # for a bootstrap
LEAST_REPLICATES = 399  # of a test of alpha = beta: its least p is 2 / 400, below the 1% at which a tie is rejected
READINGS = 4  # of a text; up to there they are nearly as good as new text (Muennighoff et al. 2023)
FAR_OFF, LEAST_OFF = 10.0, 0.1  # standard deviations of the others, and a share of the loss: beyond, a likely mistake

OVER_TRUNKS = "bootstrap over {n} {what}, percentile interval"
WIDENED = "bootstrap over {n} {what}, percentile interval with quantiles of Student's t"
SIMULATED = "{r} fits to the fitted surface with noise of whole {what} as its residuals show it, percentile interval"
NO_NOISE = "none: the residuals leave no degree of freedom for the noise, and no seeds were measured"
NOT_ASKED = "none: no replicates were asked for"
ESTIMAND = (
    "the surface that this fit would find on many such runs; re-drawn: {over}; text, learning rates and the form of "
    "the surface fixed"
)
BEST = "the best fit has "  # of `Form.missing`: where the search ends without a term
EXPONENT_OF = {"A": "alpha", "B": "beta"}


@dataclass(frozen=True)
class Rows:
    """Points as fitted, weights [n] of which every run's sum to one, and what was left out and why, by count."""

    points: Points
    weights: np.ndarray
    left_out: dict[str, int]


def rows_of(points: Points, first_share: float = FIRST_SHARE) -> Rows:
    """What of the points enters the fit. Raises InputError for losses that are all equal or further apart than
    MOST_RATIO."""
    late = points.take(points.run_share >= first_share)
    low, high = int(late.loss.argmin()), int(late.loss.argmax())
    if len(late) > 1 and late.loss[low] == late.loss[high]:
        raise InputError(f"all {len(late)} losses are {late.loss[low]:.4g}: is this the column of losses?")
    if late.loss[high] > MOST_RATIO * late.loss[low]:
        raise InputError(
            f"losses run from {late.loss[low]:.4g} (row {late.row[low]}) to {late.loss[high]:.4g} (row "
            f"{late.row[high]}), which no surface describes: leave out what diverged"
        )
    kept = averaged(late)
    left_out = {
        f"rows before {first_share:g} of their run": len(points) - len(late),
        f"rows averaged with their neighbours in log D, {MOST_ROWS} a run": len(late) - len(kept),
    }
    _, run, n_rows = np.unique(kept.run.astype(str), return_inverse=True, return_counts=True)
    return Rows(kept, 1.0 / n_rows[run], {why: count for why, count in left_out.items() if count})


def averaged(points: Points) -> Points:
    """Points with at most MOST_ROWS rows a run: geometric means of D, C, L and unique tokens in even steps of log D."""
    _, run, n_rows = np.unique(points.run.astype(str), return_inverse=True, return_counts=True)
    if n_rows.max() <= MOST_ROWS:
        return points
    log_d = np.log(points.n_tokens)
    low, high = np.full(len(n_rows), np.inf), np.full(len(n_rows), -np.inf)
    np.minimum.at(low, run, log_d)
    np.maximum.at(high, run, log_d)
    share = (log_d - low[run]) / np.maximum(high - low, 1e-300)[run]
    step = np.minimum(share * MOST_ROWS, MOST_ROWS - 1).astype(int)
    cell = np.where(n_rows[run] > MOST_ROWS, step, MOST_ROWS + np.arange(len(log_d)))
    _, first, which = np.unique(np.column_stack([run, cell]), axis=0, return_index=True, return_inverse=True)
    means: dict[str, Any] = {
        name: np.exp(np.bincount(which, np.log(getattr(points, name))) / np.bincount(which))
        for name in ("n_tokens", "flops", "loss", "unique_tokens")
    }
    return replace(points.take(first), **means)


def check_design(log_n: np.ndarray, log_d: np.ndarray, form: Form = FORMS[PLAIN]) -> None:
    """Raises InputError, saying how many are needed, where these N and D [n] cannot identify the form's unknowns."""
    wanted = f"L = E + A / N^alpha + B / D^beta needs {LEAST_DISTINCT} or more different"
    for name, values in (("N", log_n), ("D", log_d)):
        n_distinct = len(np.unique(_places(values)))
        if n_distinct < LEAST_DISTINCT:
            raise InputError(f"{wanted} {name}; these points have {n_distinct}")
    both = len(np.unique(np.column_stack([_places(log_n), _places(log_d)]), axis=0))
    if both <= form.k:
        raise InputError(
            f"L = {FORMS[PLAIN].formula}{form.special} needs {form.k + 1} or more different (N, D); {both} given"
        )
    x = log_n - log_n.mean()
    off = log_d - log_d.mean() - (x @ log_d / (x @ x)) * x
    if off.std() < LEAST_SPREAD:
        raise InputError(
            f"D follows N in these points (within {100 * off.std():.2g}% of a power law), so the terms of N and D "
            "cannot be told apart: train some sizes on other amounts of tokens"
        )


def identifies(points: Points) -> bool:
    """Whether the N and D of these points can identify the plain form."""
    try:
        check_design(np.log(points.n_params), np.log(points.n_tokens))
    except InputError:
        return False
    return True


def _places(values: np.ndarray) -> np.ndarray:
    """[n]: a number for each group of values within SAME of its lowest: rows of a dense curve, each close to the next,
    are not all at one place."""
    ordered = np.unique(values)
    firsts = []
    at = 0
    while at < len(ordered):
        firsts.append(ordered[at])
        at = int(np.searchsorted(ordered, ordered[at] + SAME, side="right"))
    return np.searchsorted(np.array(firsts), values, side="right")


@dataclass(frozen=True)
class Draws:
    """r surfaces [r] that the noise could have led to. over: what was re-drawn; at_bound: the shares of replicates in
    which each parameter of the form's `ranges` ended at the end of its range or has no term; df: of Student's t where
    the percentiles are widened by it."""

    surface: Surface
    method: str
    over: str
    at_bound: tuple[float, ...]
    df: float | None = None

    def interval(self, values: Any, level: float = 0.95) -> np.ndarray:
        """[2, ...]: low and high ends for values [r, ...] computed from the replicates. Values that are nan are left
        out; infinite ones count."""
        tail = (1 - level) / 2
        if self.df is not None:
            tail = float(stats.norm.sf(stats.t.isf(tail, self.df)))
        return quantiles(np.asarray(values, dtype=float), tail)


@dataclass(frozen=True)
class ParametricFit:
    """A fitted surface, its replicates (None: no interval is to be had) and where both come from. delta: of Huber
    losses; n_free: how many unknowns the points decide; effects: the noise; p_tied: of the over-training form, how
    probable alpha and beta this far apart are where they are equal, as it assumes (None: not tested)."""

    rows: Rows
    objective: str
    delta: float
    form: str
    cost: Cost
    solution: Solution
    n_free: int
    effects: Effects | None
    same_runs: SameRuns | None
    draws: Draws | None = None
    why_no_draws: str = ""
    p_tied: float | None = None

    @property
    def model(self) -> Form:
        return form_of(self.form)

    @cached_property
    def surface(self) -> Surface:
        return self.solution.surface.item()

    @property
    def points(self) -> Points:
        return self.rows.points

    @property
    def misses(self) -> np.ndarray:
        """[n]: log of the losses over the surface's."""
        points = self.points
        return np.asarray(
            np.log(points.loss / self.surface.loss(points.n_params, points.n_tokens, points.unique_tokens))
        )

    def refit(self, losses: np.ndarray, weights: np.ndarray) -> Solution:
        """The same form and objective on other losses or weights [r, n] of the same points."""
        near = self.surface if self.model.k > len(PARAMS) or len(self.points) >= MANY else None
        return fit_form(self.points, losses, weights, self.objective, self.form, delta=self.delta, near=near)

    def without(self, groups: Sequence[np.ndarray]) -> Solution:
        """Fits without the points of each group, masks [n]."""
        return self.refit(self.points.loss, np.stack([np.where(mine, 0.0, self.rows.weights) for mine in groups]))

    def estimate(self, of: Callable[[Surface], Any], level: float = 0.95, why: str = "") -> Estimate:
        """A number of one surface, [r] of r of them, with its interval; why: there is no interval, and the reason."""
        with np.errstate(all="ignore"):
            ends = None if self.draws is None or why else self.draws.interval(of(self.draws.surface), level).tolist()
            return Estimate.of(float(of(self.surface)), ends, why)

    def loss_interval(self, n_params: Any, n_tokens: Any, unique_tokens: Any = None, level: float = 0.95) -> np.ndarray:
        """[2, k] for the expected loss at N and D [k], without the noise of a new run."""
        if self.draws is None:
            raise InputError(f"no interval: {self.why_no_draws}")
        n_params, n_tokens = np.atleast_1d(n_params), np.atleast_1d(n_tokens)
        with np.errstate(over="ignore"):
            return self.draws.interval(self.draws.surface.column().loss(n_params, n_tokens, unique_tokens), level)

    def optimum(self, c: float, level: float = 0.95, why: str = "") -> Optimum:
        """At C [FLOP]; why: an exponent is not identified, so N and D have no interval."""

        def at(name: str, reason: str) -> Estimate:
            estimate = self.estimate(lambda surface: getattr(surface, name)(c, self.cost), level, reason)
            # without a term of N (of D) the best N is 0 (infinite), or nan
            return estimate if estimate.value is not None and estimate.value > 0 else Estimate(reason=reason)

        return Optimum(c, at("n_opt", why), at("d_opt", why), at("l_opt", ""))

    def exponents(self, surface: Surface) -> dict[str, Any]:
        """a and b of a surface, or of r, under the cost of these points, and over their range of C."""
        return surface.exponents(self.cost, float(self.points.flops.min()), float(self.points.flops.max()))


def fit_parametric(
    points: Points,
    *,
    objective: str = HUBER,
    delta: float = DELTA,
    form: str = PLAIN,
    cost: Cost | None = None,
    n_replicates: int = 1000,
    seed: int = 0,
    noise: tuple[float, float] | None = None,
    first_share: float = FIRST_SHARE,
    progress: Callable[[float], None] | None = None,
) -> ParametricFit:
    """Fit L(N, D) to points of one group, end points or whole curves, as analysis.fits.prepare makes them.

    delta: of Huber losses; cost: of a token over N, for optima; that of the points if left out. noise: standard
    deviation of log L between seeds and its degrees of freedom, where it was measured on other runs; it enters below 20
    trunks. first_share: of curves, `rows_of`. progress: called with the share of the replicates that is done.
    n_replicates 0: no intervals, and no test of the over-training form. Raises InputError for points that cannot
    identify the form's parameters, with how many are needed.
    """
    rows = rows_of(points, first_share)
    kept, weights = rows.points, rows.weights
    log_n, log_d = np.log(kept.n_params), np.log(kept.n_tokens)
    check_design(log_n, log_d, form_of(form))
    if form_of(form).repeated:
        _check_repeats(kept)
    solution = fit_form(kept, kept.loss, weights, objective, form, delta=delta, every_start=True)
    surface = solution.surface.item()
    jacobian = free_slopes(kept, form, surface, solution.at_bound[0])
    residual = np.log(kept.loss / surface.loss(kept.n_params, kept.n_tokens, kept.unique_tokens))
    squared = weights * kept.loss**2 if objective == LEAST_SQUARES else weights
    kinds = kinds_of(kept.trunk, kept.run, log_d)
    alone = effects_of(residual, jacobian, squared, kinds)
    effects = alone if noise is None else effects_of(residual, jacobian, squared, kinds, noise)
    same = same_runs(residual, log_n, log_d, kept.trunk, kept.recipe, alone)
    n_free = jacobian.shape[1]
    fit = ParametricFit(rows, objective, delta, form, cost or cost_of(kept), solution, n_free, effects, same)
    if n_replicates <= 0:
        return replace(fit, why_no_draws=NOT_ASKED)
    draws = _draws(fit, n_replicates, seed, progress)
    if draws is None:
        return replace(fit, why_no_draws=NO_NOISE)
    p_tied = None
    if form_of(form).tied and identifies(kept):
        more = max(n_replicates, LEAST_REPLICATES)
        same_as: dict[str, Any] = {"objective": objective, "delta": delta, "cost": fit.cost, "noise": noise}
        free = fit_parametric(points, n_replicates=more, seed=seed, first_share=first_share, **same_as)
        p_tied = _p_of_tie(free.draws)
    return replace(fit, draws=draws, p_tied=p_tied)


def _check_repeats(points: Points) -> None:
    times = points.n_tokens / np.minimum(points.unique_tokens, points.n_tokens)
    if times.min() > 1 + SAME and times.max() < times.min() * (1 + SAME):  # D' is D times a number
        raise InputError(
            f"all points read their text {times.min():.3g} times: what repeated tokens are worth shows where "
            "runs read it differently often"
        )


def _draws(fit: ParametricFit, r: int, seed: int, progress: Callable[[float], None] | None) -> Draws | None:
    """Replicates of a fit; None where nothing tells their noise."""
    points, own = fit.points, fit.rows.weights
    trunks, trunk = np.unique(points.trunk.astype(str), return_inverse=True)
    n = len(trunks)
    what = "runs" if n == points.n_runs else "trunks"
    rng = np.random.default_rng(seed)
    df, losses = None, np.broadcast_to(points.loss, (r, len(own)))
    resampled = n >= LEAST_TRUNKS and not fit.model.repeated
    if resampled:
        df = float(n - fit.n_free) if fit.objective == LEAST_SQUARES else None
        method = (OVER_TRUNKS if df is None else WIDENED).format(n=n, what=what)
    elif fit.effects is not None:
        method = SIMULATED.format(r=r, what=what)
        losses = points.loss * np.exp(fit.effects.draw(rng, r) - fit.misses)
    else:
        return None
    # An array freed at once: glibc then reuses the memory of those below 31 MB, else fits take up to 1.4 times as long.
    np.empty(3_900_000)
    parts, weights = [], own
    for mine in np.split(losses, range(size := max(1, BLOCK // len(own)), r, size)):
        if resampled:
            weights = rng.multinomial(n, np.full(n, 1 / n), len(mine))[:, trunk] * own
        parts.append(fit.refit(mine, weights))
        if progress is not None:
            progress(sum(len(part.objective) for part in parts) / r)
    again = joined(parts)
    return Draws(again.surface, method, f"{n} {what}", tuple(again.at_bound.mean(0).tolist()), df)


def _p_of_tie(free: Draws | None) -> float | None:
    """p of alpha = beta, by the replicates of the plain form: under 6 N D one exponent is a = 1/2, so p is one less the
    level of the interval of a that just ends there; at least 2 / (r + 1) before it is widened. An F test on the sums of
    squares would take the rows of a run for independent."""
    if free is None:
        return None
    a = free.surface.a[np.isfinite(free.surface.a)]
    tail = (min((a <= 0.5).sum(), (a >= 0.5).sum()) + 1) / (len(a) + 1)
    if free.df is not None:  # as Draws.interval widens
        tail = stats.t.sf(stats.norm.isf(tail), free.df)
    return min(1.0, 2 * float(tail))


def fit_form(
    points: Points, losses: np.ndarray, weights: np.ndarray, objective: str = HUBER, form: str = PLAIN, **options: Any
) -> Solution:
    """A form fitted to losses or weights [r, n] (or [n]) of `points`; `options` are those of `fit_surfaces`."""
    log_n, log_d, log_unique = (np.log(amount) for amount in (points.n_params, points.n_tokens, points.unique_tokens))
    return fit_surfaces(log_n, log_d, losses, weights, objective=objective, form=form, log_unique=log_unique, **options)


def free_slopes(points: Points, form: str, surface: Surface, at_bound: np.ndarray) -> np.ndarray:
    """[n, free]: how log L at points moves with the unknowns of a fit that are free: what noise a fit absorbs, and how
    many it has."""
    slopes = form_of(form).slopes_of(surface, points.n_params, points.n_tokens, points.unique_tokens)[0]
    return np.asarray(slopes[:, form_of(form).is_free(surface, at_bound)])


def parametric_result(
    fit: ParametricFit,
    *,
    at: Sequence[float] = (),
    curve: Sequence[float] = (),
    predict: Sequence[tuple[float, float]] = (),
    level: float = 0.95,
    seed: int = 0,
) -> Fit:
    """A fitted surface as every approach returns it. at, curve: C [FLOP] of its optima; predict: (N, D) of its
    predictions; seed: of its replicates."""
    points, drawn = fit.points, fit.draws
    low, high = float(points.flops.min()), float(points.flops.max())
    reasons = not_identified(fit, level)
    surface_reasons = [why for name, why in reasons.items() if name not in fit.model.assumed]
    of_exponents = next((reasons[name] for name in ("alpha", "beta") if name in reasons), "")
    of_optima = next(iter(surface_reasons), "")
    own = {
        name: fit.estimate(
            _named(fit.model.parameters, name),
            level,
            reasons.get(name) or reasons.get(EXPONENT_OF.get(name, ""), ""),
        )
        for name in fit.model.parameters(fit.surface)
    }
    own = {name: replace(value, reason=reasons.get(name, "")) for name, value in own.items()}
    exponents = {
        quantity: fit.estimate(_named(fit.exponents, name), level, reasons.get(name) or of_exponents)
        for quantity, name in ((N_OPT, "a"), (D_OPT, "b"))
    }
    middle = fit.optimum(math.sqrt(low * high), level, of_exponents)
    return Fit(
        approach=PARAMETRIC,
        group=points.group,
        n_points=len(points),
        n_runs=points.n_runs,
        input_hash=points.input_hash,
        range=(low, high),
        conventions={"C": fit.cost.convention, "L": points.loss_unit},
        objective=Objective(
            OBJECTIVES[fit.objective].format(delta=fit.delta),
            float(fit.solution.objective[0]),
            float(fit.solution.starts.max()),
            len(fit.solution.starts),
        ),
        intervals=Intervals(fit.why_no_draws)
        if drawn is None
        else Intervals(
            drawn.method, level, ESTIMAND.format(over=drawn.over), len(drawn.surface), seed=seed, over=drawn.over
        ),
        laws=tuple(
            Law(
                quantity,
                exponent=exponents.get(quantity, NOTHING),
                floor=own["E"] if quantity == L_OPT else NOTHING,
                centre=None if middle.of(quantity).value is None else (middle.flops, middle.of(quantity).value or 0.0),
                range=(low, high),
            )
            for quantity in QUANTITIES
        ),
        middle=middle,
        optima=tuple(fit.optimum(c, level, of_optima) for c in at),
        curve=tuple(fit.optimum(c, level, of_optima) for c in curve),
        predictions=tuple(
            Prediction(n, d, fit.estimate(partial(Surface.loss, n_params=n, n_tokens=d), level)) for n, d in predict
        ),
        parametric=ParametricPart(
            form=fit.model.formula,
            parameters=own,
            sizes=tuple(dict.fromkeys(points.size.astype(str).tolist())),
            noise=tuple(
                NoiseOf(kind.name, float(s), float(df))
                for kind, s, df in zip(fit.effects.kinds, fit.effects.s, fit.effects.df, strict=True)
            )
            if fit.effects
            else (),
            seeds=fit.same_runs,
            over_training={
                name: fit.estimate(_named(fit.model.over_training, name), level)
                for name in fit.model.over_training(fit.surface)
            }
            or None,
            p_tied=fit.p_tied,
            assumes=fit.model.assumes,
        ),
        left_out=tuple(f"{count} {what}" for what, count in fit.rows.left_out.items()),
        notes=(*_notes_on_repeats(fit), *_notes_on_mistakes(fit)),
    )


def _named(values: Callable[[Surface], Mapping[str, Any]], name: str) -> Callable[[Surface], Any]:
    return lambda surface: values(surface)[name]


def not_identified(fit: ParametricFit, level: float = 0.95) -> dict[str, str]:
    """Parameters that the points do not identify, with the reason: the search, or more than 1 - `level` of the
    replicates, ended at the end of a range, which then sets the interval and not the points; or the form assumes
    them."""
    values, missing = fit.model.parameters(fit.surface), fit.model.missing
    reasons = {}
    for i, (name, (low, high)) in enumerate(fit.model.ranges.items()):
        ends = f"the end of its range ({low:g} to {high:g})"
        share = 0.0 if fit.draws is None else fit.draws.at_bound[i]
        if fit.solution.at_bound[0, i]:
            inside = low < values[name] < high or not math.isfinite(values[name])
            reasons[name] = missing[name] if inside else f"ended at {values[name]:.4g}, {ends}"
        elif share > 1 - level:
            no_term = f" or have {missing[name].removeprefix(BEST)}" if missing[name].startswith(BEST) else ""
            reasons[name] = f"{100 * share:.3g}% of the replicates end at {ends}{no_term}"
    return reasons | dict(fit.model.assumed)


def _notes_on_repeats(fit: ParametricFit) -> list[str]:
    """That a form without repeats was fitted to text that was read again and again."""
    points = fit.points
    many = int((points.n_tokens > READINGS * points.unique_tokens * (1 + 1e-9)).sum())
    if fit.model.repeated or not many:
        return []
    law = f"{'an' if fit.model.written[0] in 'aeiou' else 'a'} {fit.model.written} law"
    return [
        f"{counted_of(many, len(points), 'point')} read their text more than {READINGS} times: {law} takes repeated "
        "text for new; --form data-constrained tells them apart"
    ]


def _notes_on_mistakes(fit: ParametricFit) -> list[str]:
    """On points further off the surface than any noise of the others explains."""
    points, off = fit.points, fit.misses
    spread = 1.4826 * float(np.median(np.abs(off)))  # of normal noise: its standard deviation
    far = np.flatnonzero(np.abs(off) > max(FAR_OFF * spread, math.log1p(LEAST_OFF)))
    if not len(far):
        return []
    worst = far[np.abs(off[far]).argmax()]
    loss, away, half = points.loss[worst], math.expm1(off[worst]), math.expm1(spread / 1.4826)
    return [
        f"far off the surface: {counted(len(far), 'point')}, as {points.run[worst]} of loss {loss:.4g}, {away:+.0%}; "
        f"half of all points lie within {half:.1%}: a mistake?"
    ]
