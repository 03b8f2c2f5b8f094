"""What each approach says, fitted to some points, of compute and runs beyond them: one face for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.cost import Cost
from analysis.fits.envelope.crossings import find_crossings
from analysis.fits.envelope.floor import IRREDUCIBLE
from analysis.fits.envelope.laws import fit_arch
from analysis.fits.envelope.of_points import size_curves
from analysis.fits.envelope.optimum import optimum_laws
from analysis.fits.fit import Law
from analysis.fits.forms import PLAIN
from analysis.fits.isoflop import isoflop
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric.curves import FIRST_SHARE, check_design, prepare
from analysis.fits.parametric.fit import ParametricFit, fit_form, fit_parametric
from analysis.fits.points import Points
from analysis.fits.settings import FitSettings
from analysis.fits.solver import HUBER
from analysis.fits.surface import Surface
from arch.errors import InputError

Value = tuple[float, tuple[float, float] | None]  # and its interval
LEVEL = 0.95
GRID_POINTS = 40


@dataclass(frozen=True)
class Predictor:
    """n_opt, l_opt: of C [FLOP]; loss: of N, D and the unique ones of its tokens, where the approach has a surface (nan
    where no fitted point tells what repeated ones are worth); None for what it does not tell. a: exponent of N_opt;
    noise: standard deviation of log loss between runs (None: not known)."""

    a: float | None
    n_opt: Callable[[float], Value] | None
    l_opt: Callable[[float], Value] | None
    loss: Callable[[float, float, float], Value] | None
    noise: float | None


def parametric(
    points: Points,
    cost: Cost,
    noise: SeedNoise | None,
    n_replicates: int,
    seed: int,
    objective: str = HUBER,
    form: str = PLAIN,
    first_share: float = FIRST_SHARE,
) -> Predictor:
    if n_replicates <= 0:
        return _surface(points, cost, objective, form, first_share)
    given = None if noise is None else (noise.s, float(noise.df))
    options: dict[str, Any] = {"objective": objective, "form": form, "n_replicates": n_replicates, "seed": seed}
    options["first_share"] = first_share
    return of_surface(fit_parametric(points, cost=cost, noise=given, **options), noise)


def of_surface(fit: ParametricFit, noise: SeedNoise | None, level: float = LEVEL) -> Predictor:
    """What a fitted surface says, with intervals at `level`; noise: between seeds."""
    sure = fit.draws is not None

    def optimum(name: str) -> Callable[[float], Value]:
        def at(c: float) -> Value:
            found = fit.optimum(c, level)
            return float(found[name][0]), _ends(found[f"{name}_interval"][:, 0]) if sure else None

        return at

    def loss(n_params: float, n_tokens: float, unique: float) -> Value:
        if _cannot_tell(fit.surface, n_tokens, unique):
            return math.nan, None
        ends = _ends(fit.loss_interval(n_params, n_tokens, unique, level=level)[:, 0]) if sure else None
        return float(fit.surface.loss(n_params, n_tokens, unique)), ends

    kept = fit.points
    residual = np.log(kept.loss / fit.surface.loss(kept.n_params, kept.n_tokens, kept.unique_tokens))
    own = float(np.sqrt((residual**2).sum() / max(len(residual) - fit.n_free, 1)))
    a = float(fit.exponents(fit.surface)["a"])
    known = optimum("n_opt") if fit.identified else None
    return Predictor(a if fit.identified else None, known, optimum("l_opt"), loss, noise.s if noise else own)


def _surface(points: Points, cost: Cost, objective: str, form: str, first_share: float) -> Predictor:
    """Without replicates and other starts: the same fit, far faster."""
    kept, surface, known = _quick(points, objective, form, first_share)

    def n_opt(c: float) -> Value:
        return float(surface.n_opt(c, cost)), None

    def loss(n_params: float, n_tokens: float, unique: float) -> Value:
        if _cannot_tell(surface, n_tokens, unique):
            return math.nan, None
        return float(surface.loss(n_params, n_tokens, unique)), None

    ends = float(kept.flops.min()), float(kept.flops.max())
    a = None
    if known and ends[1] > ends[0]:
        a = math.log(n_opt(ends[1])[0] / n_opt(ends[0])[0]) / math.log(ends[1] / ends[0])
    return Predictor(
        a,
        n_opt if known else None,
        lambda c: (float(surface.l_opt(c, cost)), None),
        loss,
        None,
    )


def _quick(points: Points, objective: str, form: str, first_share: float) -> tuple[Points, Surface, bool]:
    """The points as fitted, the surface, and whether both exponents are identified."""
    prepared = prepare(points, first_share=first_share)
    kept = prepared.points
    check_design(np.log(kept.n_params), np.log(kept.n_tokens))
    solution = fit_form(kept, kept.loss, prepared.weights, objective, form)
    return kept, solution.surface.one(), not solution.unidentified.any()


def _cannot_tell(surface: Surface, n_tokens: float, unique: float) -> bool:
    """Whether tokens are repeated while no fitted point had any that were: R* is then not known."""
    return surface.r_d is not None and math.isinf(surface.r_d) and n_tokens > unique * (1 + 1e-9)


def isoflops(points: Points, cost: Cost, noise: SeedNoise | None, n_replicates: int, seed: int) -> Predictor:
    fit = isoflop(points, cost, noise=noise, n_replicates=max(n_replicates, 2), level=LEVEL, seed=seed)

    def of(name: str) -> Callable[[float], Value]:
        def at(c: float) -> Value:
            value, ends = fit.optimum(name, c)
            return (math.nan, None) if value is None else (value, ends if n_replicates else None)

        return at

    s = None if fit.noise is None else math.sqrt(fit.noise.variance)
    return Predictor(fit.lines["N_opt"].slope, of("N_opt"), of("L_opt"), None, s)


def envelope(points: Points, cost: Cost, noise: SeedNoise | None, n_replicates: int, seed: int) -> Predictor:
    """N_opt by the crossings; L by the form with an irreducible loss where it describes the curve, else by the pure
    power law, and by none where that misses its points."""
    curves = size_curves(points)
    low, high = float(points.flops.min()), float(points.flops.max())
    if n_replicates <= 0:  # N_opt alone, far faster
        crossings, missing = find_crossings(curves, (math.log(low), math.log(high)))
        optimum, _ = optimum_laws(curves, crossings, missing, noise, LEVEL)
        return Predictor(optimum.exponent.value, _values(optimum), None, None, noise.s if noise else None)
    settings = FitSettings(grid_points=GRID_POINTS, n_replicates=max(n_replicates, 2), level=LEVEL)
    (n_opt, _, pure), part = fit_arch(curves, (low, high), noise, settings, (seed,))
    l_opt = None if pure.curved else _values(pure)
    if part.irreducible.identified and part.describes == IRREDUCIBLE:
        l_opt = lambda c: (part.irreducible.at(c).value or math.nan, None)  # noqa: E731
    return Predictor(n_opt.exponent.value, _values(n_opt), l_opt, None, noise.s if noise else None)


def _values(law: Law) -> Callable[[float], Value] | None:
    if not law.identified:
        return None

    def at(c: float) -> Value:
        told = law.at(c)
        return told.value or math.nan, told.interval

    return at


PREDICTORS = ("parametric", "isoflop", "envelope")


def fitted(
    approach: str,
    points: Points,
    cost: Cost,
    noise: SeedNoise | None = None,
    n_replicates: int = 0,
    seed: int = 0,
    objective: str = HUBER,
    form: str = PLAIN,
    first_share: float = FIRST_SHARE,
) -> Predictor:
    """`approach` fitted to points; `objective`, `form` and `first_share` (of a run's tokens that it leaves out) of the
    surface. Raises InputError where they do not allow it."""
    if approach not in PREDICTORS:
        raise InputError(f"no approach {approach!r}: {', '.join(PREDICTORS)}")
    if approach == "parametric":
        return parametric(points, cost, noise, n_replicates, seed, objective, form, first_share)
    return (isoflops if approach == "isoflop" else envelope)(points, cost, noise, n_replicates, seed)


def of_new_runs(
    value: Value, noise: float | None, df: float | None, level: float, n_runs: int = 1
) -> tuple[float, float] | None:
    """Of the loss of a run that is to come, or of the mean of several: the error of what is expected (the interval of
    `value`, at `level`) and the noise of runs, which are independent, in logarithms. noise: standard deviation of log
    loss between runs, df its degrees of freedom (None: taken as known). None where one of the two is not known."""
    predicted, ends = value
    if ends is None or noise is None or not ends[0] > 0:
        return None
    times = float(stats.t.ppf((1 + level) / 2, df) if df is not None else stats.norm.ppf((1 + level) / 2))
    low, high = (math.log(end / predicted) for end in ends)
    own = times * noise / math.sqrt(n_runs)
    low, high = -math.hypot(min(low, 0), own), math.hypot(max(high, 0), own)
    return predicted * math.exp(low), predicted * math.exp(high)


def _ends(values: np.ndarray) -> tuple[float, float] | None:
    low, high = (float(value) for value in values)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
