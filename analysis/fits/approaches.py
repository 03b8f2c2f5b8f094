"""The approaches by name: points in, laws out. What `scaling fit runs`, `fit table` and notebooks call.

from analysis.fits import approaches, tables
points = tables.read_points("runs.csv").groups[""]
fit = approaches.fit(points, approach="parametric", at=[1e22])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.fits.cost import cost_of
from analysis.fits.fit import APPROACHES, ENVELOPE, ISOFLOP, PARAMETRIC, Estimate, Fit, Prediction
from analysis.fits.forms import FORMS
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric import ParametricFit, fit_parametric, parametric_result
from analysis.fits.points import Points
from analysis.fits.rehearsal import Forecast, forecast
from analysis.fits.seeds import seed_noise_of
from analysis.fits.settings import FitSettings
from analysis.fits.solver import HUBER, LEAST_SQUARES, OBJECTIVES
from arch.errors import InputError, choice

if TYPE_CHECKING:
    from analysis.fits.envelope import Curves

ALL = "all"
NEEDS_CURVES = (ENVELOPE,)
DEFAULTS = FitSettings()
STUDY_OBJECTIVE = LEAST_SQUARES  # objective of a study's surfaces, where none is asked for: seeds leave no outliers
CURVE = 33  # C at which figures draw a law
BEYOND = (1.0, 10.0)  # times the largest C that all groups reached, where no C is asked for


@dataclass(frozen=True)
class Options:
    """What the approaches are asked for beside the points.

    at: C [FLOP] of optima (none: `default_at`); predict: (N, D) of losses, and objective and form, of the parametric
    approach; n_replicates, level and seed: of the intervals; curve: at so many C, from the smallest of the points to
    the last of `at`, optima stand in `Fit.curve`, for figures: no verdict is drawn from them. Raises InputError for an
    unknown objective or form, and for a level that is none or needs more replicates.
    """

    at: Sequence[float] = ()
    predict: Sequence[tuple[float, float]] = ()
    objective: str = HUBER
    form: str = "plain"
    n_replicates: int = DEFAULTS.n_replicates
    level: float = DEFAULTS.level
    seed: int = DEFAULTS.seed
    curve: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", self.form.replace("-", "_"))
        for option, value, known in (("objective", self.objective, OBJECTIVES), ("form", self.form, FORMS)):
            if value not in known:
                written = [name.replace("_", "-") if option == "form" else name for name in known]
                raise InputError(f"--{option}: {value!r}{choice(value, written)}")
        if not 0.5 <= self.level < 1:
            raise InputError(f"--level: {self.level:g} is no level of an interval: give 0.5 to below 1, as 0.95")
        if self.n_replicates < 2 / (1 - self.level):
            raise InputError(
                f"--replicates: {self.n_replicates} are too few for intervals of level {self.level:g}: give "
                f"{round(2 / (1 - self.level))} or more"
            )


def options_of(settings: FitSettings, **asked: Any) -> Options:
    """What a study's approaches are asked for where nothing else is said: its fit stage's options."""
    own = {"n_replicates": settings.n_replicates, "level": settings.level, "seed": settings.seed}
    return Options(**{"objective": STUDY_OBJECTIVE} | own | asked)


def named(approach: str) -> tuple[str, ...]:
    """The approaches that a name stands for. Raises InputError for another name."""
    if approach == ALL:
        return APPROACHES
    if approach not in APPROACHES:
        raise InputError(f"--approach: {approach!r}{choice(approach, [*APPROACHES, ALL])}")
    return (approach,)


def default_at(groups: Mapping[str, Points]) -> tuple[float, ...]:
    """C [FLOP] of the optima of all approaches where none is asked for."""
    reached = min(float(points.flops.max()) for points in groups.values())
    return tuple(times * reached for times in BEYOND)


def _curve(points: Points, at: Sequence[float], options: Options) -> Sequence[float]:
    """C [FLOP] of `Fit.curve`."""
    if not options.curve:
        return ()
    computes: list[float] = np.geomspace(points.flops.min(), max(points.flops.max(), *at), options.curve).tolist()
    return computes


def fit(
    points: Points,
    approach: str = PARAMETRIC,
    *,
    noise: SeedNoise | None = None,
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> Fit:
    """One group by one approach; `options` are those of `Options`. noise: between seeds, as other runs show it; the
    envelope takes it in the place of its own. progress: called with the share that is done, now and then. Raises
    InputError where the points do not allow the fit."""
    if approach not in APPROACHES:
        named(approach)  # raises
        raise InputError(f"approach {approach!r}: fit_groups takes several, fit one of {', '.join(APPROACHES)}")
    return fit_with_surface(points, approach, noise, progress, Options(**options))[0]


def fit_with_surface(
    points: Points,
    approach: str,
    noise: SeedNoise | None,
    progress: Callable[[float], None] | None,
    options: Options,
    curves: Curves | None = None,
    settings: FitSettings = DEFAULTS,
) -> tuple[Fit, ParametricFit | None]:
    """The fit, and of the parametric approach the surface with its draws. curves: of the envelope (None: those of the
    points); settings: its grid and optimum."""
    at = tuple(options.at) or default_at({"": points})
    asked: dict[str, Any] = {"at": at, "curve": _curve(points, at, options)}
    of_intervals: dict[str, Any] = {"n_replicates": options.n_replicates, "level": options.level, "seed": options.seed}
    if approach == ENVELOPE:
        from analysis.fits.envelope import fit_envelope

        noise = noise or (seed_noise_of([points]) if curves is None else None)
        settings = settings.model_copy(update=of_intervals)
        return fit_envelope(points, curves, noise=noise, settings=settings, **asked), None
    if approach == ISOFLOP:
        from analysis.fits.isoflop import fit_isoflop

        return fit_isoflop(points, cost_of(points), noise=noise, **of_intervals, **asked), None
    surface = fit_surface(points, options, noise, options.n_replicates, progress)
    result = parametric_result(surface, predict=options.predict, level=options.level, seed=options.seed, **asked)
    result = with_rehearsed(result, surface) if options.predict else result
    # of what was given, not of curves as they were averaged
    return replace(result, input_hash=points.input_hash), surface


def with_rehearsed(result: Fit, fit: ParametricFit) -> Fit:
    """The result whose predictions have `rehearsed`: what analysis.fits.rehearsal predicts of the same runs."""

    def rehearsed(prediction: Prediction) -> Prediction:
        if isinstance(known, str):
            return replace(prediction, rehearsed=Estimate(reason=known), rests_on=known)
        run = known.predict(prediction.n_params, prediction.n_tokens)
        return replace(prediction, rehearsed=run.loss, rests_on=run.sentence)

    known: Forecast | str
    try:
        known = forecast(fit.points, fit.rows.weights, cost=fit.cost, objective=fit.objective, form=fit.form)
    except InputError as error:
        known = str(error)
    return replace(result, predictions=tuple(map(rehearsed, result.predictions)))


def _of_runs(points: Points, noise: SeedNoise) -> float:
    """Standard deviation of log loss between seeds of what the fit has of a run: one point, or the mean of many."""
    one_each = points.n_runs == len(points.n_tokens)
    return noise.s if one_each or noise.of_means is None else noise.of_means


def fit_surface(
    points: Points,
    options: Options,
    noise: SeedNoise | None,
    n_replicates: int,
    progress: Callable[[float], None] | None = None,
) -> ParametricFit:
    """The surface that the parametric approach reports, with its replicates. Raises InputError for points that cannot
    identify one."""
    return fit_parametric(
        points,
        objective=options.objective,
        form=options.form,
        n_replicates=n_replicates,
        seed=options.seed,
        noise=None if noise is None else (_of_runs(points, noise), noise.df),
        progress=progress,
    )
