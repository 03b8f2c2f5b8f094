"""The approaches by name: points in, laws and verdicts out. What `scaling fit` and notebooks call.

from analysis.fits import approaches, tables
points = tables.read_points("runs.csv").groups[""]
fit = approaches.fit(points, approach="parametric", at=[1e22])
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.fits.cost import cost_of
from analysis.fits.fit import (
    APPROACHES,
    ENVELOPE,
    ISOFLOP,
    PARAMETRIC,
    Estimate,
    Fit,
    NotFitted,
    Prediction,
)
from analysis.fits.forms import form_of
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric import ParametricFit, fit_parametric, parametric_result
from analysis.fits.points import Points
from analysis.fits.rehearsal import forecast
from analysis.fits.seeds import seed_noise_of, seed_noises_of
from analysis.fits.settings import FitSettings
from analysis.fits.solver import DELTA, HUBER, LEAST_SQUARES, OBJECTIVES
from analysis.fits.verdicts import judge, judge_loss
from arch.errors import InputError, choice

if TYPE_CHECKING:
    from analysis.fits.envelope import Curves

ALL, CHECKS = "all", "checks"  # the name of all approaches; of the step after the approaches of a group
MINIMA, OPTIMA = ("local", "akima"), ("crossings", "envelope", "hull")  # of isoFLOP's budgets, and of the envelope
NEEDS_CURVES = (ENVELOPE,)
DEFAULTS = FitSettings()
FEWEST = 40  # replicates of an interval of the default level
STUDY_OBJECTIVE = LEAST_SQUARES  # objective of a study's surfaces, where none is asked for: seeds leave no outliers
CURVE = 33  # C at which figures draw a law
Progress = Callable[[str, str, float], None]  # of group, approach (CHECKS at the end) and the share of it that is done
BEYOND = (1.0, 10.0)  # times the largest C that all fitted groups reached, where no C is asked for


@dataclass(frozen=True)
class Options:
    """What the approaches are asked for beside the points.

    at: C [FLOP] of optima (none: `default_at`); predict: (N, D) of losses, objective, huber_delta (None: 1e-3) and form
    (None: as the settings have it), of the parametric approach; minimum: how isoFLOP finds the lowest loss of a budget;
    optimum and near_sizes: what the envelope's N_opt is fitted to, and within which factor sizes count as one (None:
    likewise); n_replicates, level and seed: of the intervals; curve: at so many C, from the smallest of the points to
    the last of `at`, optima stand in `Fit.curve`, for figures: no verdict is drawn from them. Raises InputError for an
    unknown objective, form, minimum or optimum, a delta that no Huber loss has, a factor below 1, and a level that is
    none.
    """

    at: Sequence[float] = ()
    predict: Sequence[tuple[float, float]] = ()
    objective: str = HUBER
    huber_delta: float | None = None
    form: str | None = None
    minimum: str = MINIMA[0]
    optimum: str | None = None
    near_sizes: float | None = None
    n_replicates: int = DEFAULTS.n_replicates
    level: float = DEFAULTS.level
    seed: int = DEFAULTS.seed
    curve: int = 0

    def __post_init__(self) -> None:
        if self.form is not None:
            form_of(self.form, "--form")
        for option, value, known in (
            ("objective", self.objective, OBJECTIVES),
            ("minimum", self.minimum, MINIMA),
            ("optimum", self.optimum, OPTIMA),
        ):
            if value is not None and value not in known:
                raise InputError(f"--{option}: {value!r}{choice(value, list(known))}")
        if self.huber_delta is not None and self.objective != HUBER:
            raise InputError(f"--huber-delta {self.huber_delta:g}: belongs to --objective huber")
        if self.huber_delta is not None and not 0 < self.huber_delta < math.inf:
            raise InputError(f"--huber-delta: {self.huber_delta:g} is no number above 0, as 1e-3")
        if self.near_sizes is not None and not 1 <= self.near_sizes < math.inf:
            raise InputError(f"--near-sizes: {self.near_sizes:g} is no factor of 1 or more, as 1.1")
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


def default_at(points: Points) -> tuple[float, ...]:
    """C [FLOP] of the optima where none is asked for; points: of the group that reaches least."""
    reached = float(points.flops.max())
    return tuple(times * reached for times in BEYOND)


def fit(points: Points, approach: str = PARAMETRIC, **options: Any) -> Fit:
    """One group by one approach; `options` are those of `Options`. Raises InputError where the points do not allow the
    fit."""
    if approach not in APPROACHES:
        named(approach)  # raises
        raise InputError(f"approach {approach!r}: fit_groups takes several, fit one of {', '.join(APPROACHES)}")
    return fit_with_surface(points, approach, None, None, Options(**options))[0]


def fit_with_surface(
    points: Points,
    approach: str,
    noise: SeedNoise | None,
    progress: Callable[[float], None] | None,
    options: Options,
    curves: Curves | None = None,
    settings: FitSettings = DEFAULTS,
) -> tuple[Fit, ParametricFit | None]:
    """The fit, and of the parametric approach the surface with its draws. noise: between seeds, as other runs show it;
    the envelope takes it in the place of its own. curves: of the envelope (None: those of the points); settings: its
    grid, optimum and form."""
    at = tuple(options.at) or default_at(points)
    drawn = np.geomspace(points.flops.min(), max(points.flops.max(), *at), options.curve).tolist()
    asked: dict[str, Any] = {"at": at, "curve": drawn}
    of_intervals: dict[str, Any] = {"n_replicates": options.n_replicates, "level": options.level, "seed": options.seed}
    if approach == ENVELOPE:
        from analysis.fits.envelope import fit_envelope

        wanted = {"optimum": options.optimum, "near_sizes": options.near_sizes}
        of_envelope = {name: value for name, value in wanted.items() if value is not None}
        noise = noise or (seed_noise_of([points]) if curves is None else None)
        return fit_envelope(
            points, curves, noise=noise, settings=settings.model_copy(update=of_intervals | of_envelope), **asked
        ), None
    if approach == ISOFLOP:
        from analysis.fits.isoflop import fit_isoflop

        return fit_isoflop(points, cost_of(points), options.minimum, noise=noise, **of_intervals, **asked), None
    surface = fit_parametric(
        points,
        objective=options.objective,
        delta=options.huber_delta or DELTA,
        form=options.form or settings.form,
        n_replicates=options.n_replicates,
        seed=options.seed,
        # of several points a run the fit has their mean
        noise=None if noise is None else (noise.s if points.n_runs == len(points) else noise.of_runs, noise.df),
        progress=progress,
    )
    result = parametric_result(surface, predict=options.predict, level=options.level, seed=options.seed, **asked)
    if options.predict:
        result = replace(result, predictions=_rehearsed(result, surface))
    # of what was given, not of curves as they were averaged
    return replace(result, input_hash=points.input_hash), surface


def _rehearsed(result: Fit, fit: ParametricFit) -> tuple[Prediction, ...]:
    """The predictions with what analysis.fits.rehearsal predicts of the same runs, and whether to believe it."""
    predictions = result.predictions
    try:
        known = forecast(
            fit.points, fit.rows.weights, cost=fit.cost, objective=fit.objective, delta=fit.delta, form=fit.form
        )
    except InputError as error:
        why = str(error)
        return tuple(replace(prediction, rehearsed=Estimate(reason=why), rests_on=why) for prediction in predictions)
    runs = [known.predict(prediction.n_params, prediction.n_tokens) for prediction in predictions]
    return tuple(
        replace(prediction, rehearsed=run.loss, rests_on=run.sentence, claim=judge_loss(known, run, result))
        for prediction, run in zip(predictions, runs, strict=True)
    )


# Every group by every approach: what one cannot fit stops nothing else


@dataclass(frozen=True)
class Runs:
    """Runs as the approaches read them, by group: `curves` for approaches that need them, `ends` (or curves too) for
    the others; ends_alone: curves tell the noise between seeds, and no approach fits them.

    envelopes: of a study, the whole curves of each group, or why it has no envelope (None: the envelope is that of
    `curves`); settings: its grid, optimum and form.
    """

    ends: Mapping[str, Points]
    curves: Mapping[str, Points]
    ends_alone: bool = False
    envelopes: Mapping[str, Curves | str] | None = None
    settings: FitSettings = DEFAULTS


@dataclass(frozen=True)
class Fits:
    """results: what was fitted, group by group, each with its verdict; failed: what could not be fitted."""

    results: tuple[Fit, ...]
    failed: tuple[NotFitted, ...]

    def of(self, group: str) -> list[Fit]:
        return [result for result in self.results if result.group == group]


def fit_groups(
    runs: Runs, approaches: Sequence[str], options: Options, progress: Progress = lambda group, approach, share: None
) -> Fits:
    """Every group by every approach, and whether to believe it; isoFLOP takes curves where the ends have no budgets.
    What cannot be fitted has its reason in `failed`, and stops nothing else."""
    ends, curves, is_asked = runs.ends, runs.curves, bool(options.at)
    every = {**ends, **curves}
    seeds, whole = seed_noises_of(list(curves.values())), {} if runs.ends_alone else curves
    envelopes = runs.envelopes if ENVELOPE in approaches and not runs.ends_alone else None
    results, failed = list[Fit](), list[NotFitted]()
    surfaces: dict[str, ParametricFit] = {}
    for group in sorted(every, key=lambda name: float(every[name].flops.max())):
        if not is_asked and not results:  # the first that is fitted reaches least of those that are
            options = replace(options, at=default_at(every[group]))
        # what a group's own seeds tell is in the residuals of its surface already
        noises = {name: seeds.of_others(group) if name == PARAMETRIC else seeds.of(group) for name in APPROACHES}
        points = {name: (whole if name in NEEDS_CURVES else ends).get(group) for name in approaches}
        if group in whole and (budgets := points.get(ISOFLOP)) is not None:
            from analysis.fits.budgets import has_budgets

            points[ISOFLOP] = budgets if has_budgets(budgets) else whole[group]
        fits, again = dict[str, Fit](), dict[str, Callable[[Points], Fit]]()
        for name in sorted(approaches, key=lambda approach: approach != PARAMETRIC):  # whose reasons say most
            own = envelopes.get(group, "") if envelopes is not None and name == ENVELOPE else None
            if isinstance(own, str):
                continue
            step = partial(progress, group, name)
            step(0.0)
            try:
                mine = points[name]
                if mine is None:
                    raise InputError(needs_curves(runs.ends_alone))
                noise = noises[name] if own is None else None
                fits[name], behind = fit_with_surface(mine, name, noise, step, options, own, runs.settings)
                surfaces |= {} if behind is None else {group: behind}
                without = partial(_without, own, mine)
                again[name] = partial(_fit_again, name, noise, options, without, runs.settings)
            except InputError as error:
                reason = re.sub(rf"^{name}: ", "", str(error), flags=re.IGNORECASE)  # named beside it
                failed.append(NotFitted(group, name, reason))
        for place, name in enumerate(name for name in APPROACHES if name in fits):
            progress(group, CHECKS, place / len(fits))
            fitted = points[name]
            assert fitted is not None
            step = partial(_part, partial(progress, group, CHECKS), place, len(fits))
            verdict = judge(fits[name], fitted, surfaces[group] if name == PARAMETRIC else again[name], step)
            results.append(replace(fits[name], verdict=verdict))
    no_envelope = [
        NotFitted(group, ENVELOPE, reason) for group, reason in (envelopes or {}).items() if isinstance(reason, str)
    ]
    order = {group: i for i, group in enumerate(every)}
    results.sort(key=lambda result: order[result.group])
    failed.sort(key=lambda failure: order[failure.group])
    return Fits(tuple(results), (*no_envelope, *failed))


def _fit_again(
    approach: str,
    noise: SeedNoise | None,
    options: Options,
    curves_of: Callable[[Points], Curves | None],
    settings: FitSettings,
    kept: Points,
) -> Fit:
    """The points that are kept, as all of them were fitted: the law alone, with hardly any replicates."""
    fast = replace(options, n_replicates=FEWEST, level=DEFAULTS.level, curve=0)
    return fit_with_surface(kept, approach, noise, None, fast, curves_of(kept), settings)[0]


def _without(curves: Curves | None, points: Points, kept: Points) -> Curves | None:
    """A study's curves without the sizes of `points` that are not kept; None without such curves."""
    gone = np.setdiff1d(points.n_params, kept.n_params)
    return curves and replace(curves, sizes=[size for size in curves.sizes if size.n_params not in gone])


def _part(step: Callable[[float], None], place: int, n_parts: int, share: float) -> None:
    """Progress of one of the parts of a step."""
    step((place + share) / n_parts)


def needs_curves(ends_alone: bool) -> str:
    """Why an approach of curves fits nothing to ends."""
    return (
        f"needs curves, several rows a run; {'--points ends leaves' if ends_alone else 'this table has'} one row a run"
    )
