"""The approaches by name: points in, laws out. What the command `scaling fit --approach` and notebooks call.

from analysis.fits import approaches, tables
points = tables.read_points("runs.csv").groups[""]
result = approaches.fit(points, approach="parametric", at=[1e22])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from analysis.fits.cost import cost_of
from analysis.fits.diagnose.checks import check_laws
from analysis.fits.diagnose.influence import Reread
from analysis.fits.envelope.of_points import fit_envelope, seed_noise_of
from analysis.fits.isoflop.budgets import has_budgets
from analysis.fits.isoflop.fit import fit_isoflop
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric.fit import ParametricFit, fit_parametric
from analysis.fits.parametric.forms import FORMS
from analysis.fits.parametric.many import HUBER, OBJECTIVES
from analysis.fits.parametric.results import parametric_result
from analysis.fits.parametric.surface import PARAMS, Surface
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from arch.errors import InputError, choice

ENVELOPE, ISOFLOP, PARAMETRIC = "envelope", "isoflop", "parametric"
APPROACHES = (ENVELOPE, ISOFLOP, PARAMETRIC)
ALL, CHECKS = "all", "checks"
NEEDS_CURVES = (ENVELOPE,)
BEYOND = (1.0, 10.0)  # times the largest C that all groups reached, where no C is asked for


@dataclass(frozen=True)
class Options:
    """What the approaches are asked for beside the points.

    at: C [FLOP] of optima (none: `default_at`); predict: (N, D) of losses, and objective and form, of the parametric
    approach; n_replicates, level and seed: of the intervals. Raises InputError for an unknown objective or form, and
    for a level that is none.
    """

    at: Sequence[float] = ()
    predict: Sequence[tuple[float, float]] = ()
    objective: str = HUBER
    form: str = "plain"
    n_replicates: int = 1000
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", self.form.replace("-", "_"))
        for option, value, known in (("objective", self.objective, OBJECTIVES), ("form", self.form, FORMS)):
            if value not in known:
                raise InputError(f"--{option}: {value!r}{choice(value, list(known))}")
        if not 0.5 <= self.level < 1:
            raise InputError(f"--level: {self.level:g} is no level of an interval: give 0.5 to below 1, as 0.95")
        if self.n_replicates < 2 / (1 - self.level):
            raise InputError(
                f"--replicates: {self.n_replicates} are too few for intervals of level {self.level:g}: give "
                f"{round(2 / (1 - self.level))} or more"
            )


@dataclass(frozen=True)
class Fits:
    """results: what was fitted, group by group, each with its verdict and, in `diagnostics["checks"]`, what that rests
    on; failed: what could not be fitted, with its reason; compared: by group, the approaches side by side; surfaces: by
    group, the parametric fit behind its result, with its draws."""

    results: tuple[FitResult, ...]
    failed: tuple[Mapping[str, str], ...]
    compared: Mapping[str, Any] = field(default_factory=dict)
    surfaces: Mapping[str, ParametricFit] = field(default_factory=dict)


def named(approach: str) -> tuple[str, ...]:
    """The approaches that a name stands for. Raises InputError for another name."""
    if approach == ALL:
        return APPROACHES
    if approach not in APPROACHES:
        raise InputError(f"--approach: {approach!r}{choice(approach, [*APPROACHES, ALL])}")
    return (approach,)


def default_at(groups: Mapping[str, Points]) -> tuple[float, ...]:
    """The computes [FLOP] at which all approaches tell their optimum where none is asked for."""
    reached = min(float(points.flops.max()) for points in groups.values())
    return tuple(times * reached for times in BEYOND)


def fit(
    points: Points,
    approach: str = PARAMETRIC,
    *,
    noise: SeedNoise | None = None,
    surface: Surface | None = None,
    told: Callable[[float], None] | None = None,
    **options: Any,
) -> FitResult:
    """One group by one approach; `options` are those of `Options`. noise: between seeds, as other runs tell it; the
    envelope takes it in the place of its own. surface: as the parametric approach found it, by which isoFLOP tells its
    own bias. told: called with the share that is done, now and then. Raises InputError where the points do not allow
    the fit."""
    if approach not in APPROACHES:
        named(approach)  # raises
        raise InputError(f"approach {approach!r}: fit_groups takes several, fit one of {', '.join(APPROACHES)}")
    return _fit(points, approach, noise, surface, told, Options(**options))[0]


def _fit(
    points: Points,
    approach: str,
    noise: SeedNoise | None,
    surface: Surface | None,
    told: Callable[[float], None] | None,
    asked: Options,
) -> tuple[FitResult, ParametricFit | None]:
    """The result, and of the parametric approach the fit behind it."""
    at = tuple(asked.at) or default_at({"": points})
    if approach == ENVELOPE:
        of_curves = fit_envelope(
            points,
            noise=noise or seed_noise_of([points]),
            at=at,
            n_replicates=asked.n_replicates,
            level=asked.level,
            seed=asked.seed,
        )
        return of_curves, None
    if approach == ISOFLOP:
        of_budgets = fit_isoflop(
            points,
            cost_of(points),
            surface=None if surface is None else surface.loss,
            noise=noise,
            n_replicates=asked.n_replicates,
            level=asked.level,
            seed=asked.seed,
            at=at,
        )
        return of_budgets, None
    found = fit_parametric(
        points,
        objective=asked.objective,
        form=asked.form,
        n_replicates=asked.n_replicates,
        seed=asked.seed,
        noise=None if noise is None else (noise.s, noise.df),
        told=told,
    )
    result = parametric_result(found, at=at, predict=asked.predict, level=asked.level)
    # of what was given, not of curves as they were averaged
    return replace(result, input_hash=points.input_hash), found


def fit_groups(
    ends: Mapping[str, Points],
    curves: Mapping[str, Points],
    wanted: Sequence[str],
    options: Options,
    said: Callable[[str, str, float], None] = lambda group, approach, share: None,
    given: Sequence[FitResult] = (),
    others: Mapping[str, Reread] | None = None,
) -> Fits:
    """Every group by every approach, and whether to believe it: `curves` for approaches that need them, `ends` (or
    curves too) for the others; isoFLOP takes curves where the ends have no budgets. What cannot be fitted is told, and
    stops nothing else.

    said: called with group, approach (CHECKS at the end) and the share of it that is done; given: results that were
    fitted elsewhere, judged with the others; others: by name, other readings of the same runs, by which the checks
    tell how much the reading decides.
    """
    if not options.at and (ends or curves):
        options = replace(options, at=default_at({**ends, **curves}))
    of_all = seed_noise_of(list(curves.values()))
    results: list[FitResult] = []
    failed: list[Mapping[str, str]] = []
    compared: dict[str, Any] = {}
    surfaces: dict[str, ParametricFit] = {}
    for group in {**ends, **curves}:
        # what a group's own seeds tell is in the residuals of its surface already
        of_others = seed_noise_of([points for other, points in curves.items() if other != group])
        noises = {name: of_others if name == PARAMETRIC else of_all for name in APPROACHES}
        found = {one.approach: one for one in given if one.group == group}
        fitted = {name: (curves if name in NEEDS_CURVES else ends).get(group) for name in (*found, *wanted)}
        if group in curves and (points := fitted.get(ISOFLOP)) is not None and not has_budgets(points):
            fitted[ISOFLOP] = curves[group]
        for name in sorted(wanted, key=lambda one: one != PARAMETRIC):  # first: isoFLOP reads its bias off the surface
            told = partial(said, group, name)
            told(0.0)
            try:
                points = fitted[name]
                if points is None:
                    raise InputError("needs curves, several rows a run; this table has one row a run")
                surface = _surface(found.get(PARAMETRIC))
                found[name], behind = _fit(points, name, noises[name], surface, told, options)
                surfaces |= {} if behind is None else {group: behind}
            except InputError as error:
                failed.append({"group": group, "approach": name, "reason": str(error)})
        said(group, CHECKS, 0.0)
        one, compared[group] = _judged(found, fitted, noises, options, others)
        results += one
    return Fits(tuple(results), tuple(failed), compared, surfaces)


def _judged(
    found: Mapping[str, FitResult],
    fitted: Mapping[str, Points | None],
    noise: Mapping[str, SeedNoise | None],
    options: Options,
    others: Mapping[str, Reread] | None,
) -> tuple[list[FitResult], Any]:
    """One group's results in the order of APPROACHES with their verdicts, and the approaches side by side. noise: what
    each was fitted with."""
    points = {name: fitted[name] for name in found}
    known = {name: one for name, one in points.items() if one is not None}
    in_order = [found[name] for name in APPROACHES if name in found]
    chosen: dict[str, Any] = {"seed": options.seed, "objective": options.objective, "form": options.form}
    judged, told = check_laws(known, in_order, noise=noise, others=others, **chosen)
    checks = told["approaches"]
    whole = [replace(one, diagnostics={**one.diagnostics, "checks": checks[one.approach]}) for one in judged]
    return whole, told["compare"]


def _surface(result: FitResult | None) -> Surface | None:
    """The fitted surface where it is identified, holds for text that is read once and assumes no exponent."""
    if result is None or result.diagnostics["not_identified"] or "R_star" in result.params:
        return None
    return Surface(*(result.params[name] for name in PARAMS))
