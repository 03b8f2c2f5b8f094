"""What each approach says, fitted to some points, of compute and runs beyond them: one face for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.cost import Cost
from analysis.fits.envelope.crossings import find_crossings
from analysis.fits.envelope.diagnostics import interval_of_law, predict
from analysis.fits.envelope.laws import fit_arch
from analysis.fits.envelope.of_points import size_curves
from analysis.fits.envelope.optimum import optimum_laws
from analysis.fits.isoflop.fit import isoflop
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric import optima
from analysis.fits.parametric.curves import FIRST_SHARE, check_design, prepare
from analysis.fits.parametric.fit import ParametricFit, fit_form, fit_parametric
from analysis.fits.parametric.forms import PLAIN
from analysis.fits.parametric.many import HUBER
from analysis.fits.parametric.redraw import bias_told_by
from analysis.fits.parametric.repeats import Repeats
from analysis.fits.parametric.surface import Surface
from analysis.fits.points import Points
from analysis.fits.settings import FitSettings
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
        if _cannot_tell(fit.repeats, n_tokens, unique):
            return math.nan, None
        ends = _ends(fit.loss_interval(n_params, n_tokens, unique, level=level)[:, 0]) if sure else None
        return float(fit.loss(n_params, n_tokens, unique)), ends

    kept = fit.points
    residual = np.log(kept.loss / fit.loss(kept.n_params, kept.n_tokens, kept.unique_tokens))
    own = float(np.sqrt((residual**2).sum() / max(len(residual) - fit.n_free, 1)))
    a = float(fit.exponents(fit.surface, fit.repeats)["a"])
    known = optimum("n_opt") if fit.identified else None
    return Predictor(a if fit.identified else None, known, optimum("l_opt"), loss, noise.s if noise else own)


def _surface(points: Points, cost: Cost, objective: str, form: str, first_share: float) -> Predictor:
    """Without replicates and other starts: the same fit, far faster."""
    kept, surface, repeats, known = _quick(points, objective, form, first_share)

    def n_opt(c: float) -> Value:
        return float(optima.n_opt(surface, repeats, c, cost)), None

    def loss(n_params: float, n_tokens: float, unique: float) -> Value:
        if _cannot_tell(repeats, n_tokens, unique):
            return math.nan, None
        if repeats is None:
            return float(surface.loss(n_params, n_tokens)), None
        return float(repeats.loss(surface, n_params, n_tokens, unique)), None

    ends = float(kept.flops.min()), float(kept.flops.max())
    a = None
    if known and ends[1] > ends[0]:
        a = math.log(n_opt(ends[1])[0] / n_opt(ends[0])[0]) / math.log(ends[1] / ends[0])
    return Predictor(
        a,
        n_opt if known else None,
        lambda c: (float(optima.optimum(surface, repeats, c, cost)["l_opt"]), None),
        loss,
        None,
    )


def _quick(
    points: Points, objective: str, form: str, first_share: float
) -> tuple[Points, Surface, Repeats | None, bool]:
    """The points as fitted, the surface, R* and whether both exponents are identified."""
    prepared = prepare(points, first_share=first_share)
    kept = prepared.points
    check_design(np.log(kept.n_params), np.log(kept.n_tokens))
    fits, stars = fit_form(kept, kept.loss, prepared.weights, objective, form)
    repeats = None if stars is None else stars.take(0)
    return kept, Surface(**fits.surface.take(0).to_dict()), repeats, not fits.at_bound.any()


def _cannot_tell(repeats: Repeats | None, n_tokens: float, unique: float) -> bool:
    """Whether tokens are repeated while no fitted point had any that were: R* is then not known."""
    return repeats is not None and math.isinf(repeats.r_d) and n_tokens > unique * (1 + 1e-9)


def isoflops(
    points: Points,
    cost: Cost,
    noise: SeedNoise | None,
    n_replicates: int,
    seed: int,
    objective: str = HUBER,
    form: str = PLAIN,
    first_share: float = FIRST_SHARE,
    surface: Surface | None = None,
) -> Predictor:
    """As it is published: less the bias that a surface tells which is fitted to the same points, where they identify
    one. surface: without replicates, where it is at hand."""
    told: dict[str, Any] = {}
    if surface is not None:
        told = {"surface": surface.loss}
    elif n_replicates > 0:
        given = None if noise is None else (noise.s, float(noise.df))
        with suppress(InputError):
            options: dict[str, Any] = {"objective": objective, "form": form, "first_share": first_share}
            of = fit_parametric(points, cost=cost, n_replicates=0, noise=given, **options)
            told = bias_told_by(of, points, n_replicates, seed, LEVEL)
    elif form == PLAIN:
        with suppress(InputError):
            _, quick, _, known = _quick(points, objective, form, first_share)
            told = {"surface": quick.loss} if known else {}
    fit = isoflop(points, cost, noise=noise, n_replicates=n_replicates, level=LEVEL, seed=seed, **told)
    laws = fit.lines if fit.corrected is None else fit.corrected.laws
    s = fit.noise.total if fit.noise is not None else None

    def l_opt(c: float) -> Value:
        return fit.optimum("L_opt", c) if fit.tells_loss(c) else (math.nan, None)

    return Predictor(float(laws["N_opt"].slope[0]), lambda c: fit.optimum("N_opt", c), l_opt, None, s)


def envelope(points: Points, cost: Cost, noise: SeedNoise | None, n_replicates: int, seed: int) -> Predictor:
    """N_opt by the crossings; L by the form with an irreducible loss where it describes the curve, else by the pure
    power law, and by none where that misses its points."""
    curves = size_curves(points)
    low, high = float(points.flops.min()), float(points.flops.max())
    if n_replicates <= 0:  # N_opt alone, far faster
        crossings, missing = find_crossings(curves, (math.log(low), math.log(high)))
        optimum = optimum_laws(curves, crossings, missing, noise, LEVEL)[0]["n_opt"]
        return Predictor(optimum["exponent"], _n_opt(optimum), None, None, noise.s if noise else None)
    settings = FitSettings(grid_points=GRID_POINTS, n_replicates=max(n_replicates, 2), level=LEVEL)
    laws = fit_arch(curves, (low, high), noise, settings, (seed,))["laws"]
    n_opt, bent, pure = laws["n_opt"], laws["irreducible"], laws["loss"]

    def above(c: float) -> Value:
        return bent["E"] + bent["above"] * (c / bent["centre"][0]) ** bent["exponent"], None

    l_opt: Callable[[float], Value] | None = None
    if bent["identified"] and bent["describes"] == "irreducible":
        l_opt = above
    elif pure["identified"] and not pure["curved"]:
        l_opt = lambda c: (predict(pure, c), interval_of_law(pure, c))  # noqa: E731
    return Predictor(n_opt["exponent"], _n_opt(n_opt), l_opt, None, noise.s if noise else None)


def _n_opt(law: dict[str, Any]) -> Callable[[float], Value] | None:
    return (lambda c: (predict(law, c), interval_of_law(law, c))) if law["identified"] else None


OF_A_SURFACE = {"parametric": parametric, "isoflop": isoflops}  # take an objective and a form
PREDICTORS = (*OF_A_SURFACE, "envelope")


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
    if approach in OF_A_SURFACE:
        return OF_A_SURFACE[approach](points, cost, noise, n_replicates, seed, objective, form, first_share)
    return envelope(points, cost, noise, n_replicates, seed)


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
