"""Every group of a table or study by every approach, with verdicts: what one cannot fit stops nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from analysis.fits.approaches import (
    APPROACHES,
    ISOFLOP,
    NEEDS_CURVES,
    PARAMETRIC,
    Options,
    default_at,
    fit_with_surface,
)
from analysis.fits.budgets import has_budgets
from analysis.fits.diagnose.checks import check_laws
from analysis.fits.diagnose.influence import Reread
from analysis.fits.envelope.of_points import seed_noises_of
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric.fit import ParametricFit
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from arch.errors import InputError

CHECKS = "checks"  # the step after the approaches of a group


@dataclass(frozen=True)
class Fits:
    """results: what was fitted, group by group, each with its verdict and, in `diagnostics["checks"]`, what that rests
    on; failed: what could not be fitted, with its reason; compared: by group, the approaches side by side; surfaces: by
    group, the parametric fit behind its result, with its draws."""

    results: tuple[FitResult, ...]
    failed: tuple[Mapping[str, str], ...]
    compared: Mapping[str, Any] = field(default_factory=dict)
    surfaces: Mapping[str, ParametricFit] = field(default_factory=dict)


def fit_groups(
    ends: Mapping[str, Points],
    curves: Mapping[str, Points],
    wanted: Sequence[str],
    options: Options,
    said: Callable[[str, str, float], None] = lambda group, approach, share: None,
    given: Sequence[FitResult] = (),
    others: Mapping[str, Reread] | None = None,
    ends_alone: bool = False,
) -> Fits:
    """Every group by every approach, and whether to believe it: `curves` for approaches that need them, `ends` (or
    curves too) for the others; isoFLOP takes curves where the ends have no budgets. What cannot be fitted is told, and
    stops nothing else. ends_alone: curves tell the noise between seeds, and no approach fits them.

    said: called with group, approach (CHECKS at the end) and the share of it that is done; given: results that were
    fitted elsewhere, judged with the others; others: by name, other readings of the same runs, by which the checks
    tell how much the reading decides.
    """
    if not options.at and (ends or curves):
        options = replace(options, at=default_at({**ends, **curves}))
    seeds, whole = seed_noises_of(list(curves.values())), {} if ends_alone else curves
    results: list[FitResult] = []
    failed: list[Mapping[str, str]] = []
    compared: dict[str, Any] = {}
    surfaces: dict[str, ParametricFit] = {}
    for group in {**ends, **curves}:
        # what a group's own seeds tell is in the residuals of its surface already
        noises = {name: seeds.of_others(group) if name == PARAMETRIC else seeds.of(group) for name in APPROACHES}
        found = {one.approach: one for one in given if one.group == group}
        fitted = {name: (whole if name in NEEDS_CURVES else ends).get(group) for name in (*found, *wanted)}
        if group in whole and (points := fitted.get(ISOFLOP)) is not None and not has_budgets(points):
            fitted[ISOFLOP] = whole[group]
        for name in sorted(wanted, key=lambda one: one != PARAMETRIC):  # whose reasons say most
            progress = partial(said, group, name)
            progress(0.0)
            try:
                points = fitted[name]
                if points is None:
                    raise InputError(needs_curves(ends_alone))
                found[name], behind = fit_with_surface(points, name, noises[name], progress, options)
                surfaces |= {} if behind is None else {group: behind}
            except InputError as error:
                reason = re.sub(rf"^{name}( \(\w+\))?: ", "", str(error), flags=re.IGNORECASE)  # named beside it
                failed.append({"group": group, "approach": name, "reason": reason})
        said(group, CHECKS, 0.0)
        checked = partial(said, group, CHECKS)
        one, compared[group] = _judged(found, fitted, noises, options, others, checked)
        results += one
    return Fits(tuple(results), tuple(failed), compared, surfaces)


def needs_curves(ends_alone: bool) -> str:
    """Why an approach of curves fits nothing to ends."""
    return (
        f"needs curves, several rows a run; {'--points ends leaves' if ends_alone else 'this table has'} one row a run"
    )


def _judged(
    found: Mapping[str, FitResult],
    fitted: Mapping[str, Points | None],
    noise: Mapping[str, SeedNoise | None],
    options: Options,
    others: Mapping[str, Reread] | None,
    said: Callable[[float], None],
) -> tuple[list[FitResult], Any]:
    """One group's results in the order of APPROACHES with their verdicts, and the approaches side by side. noise: what
    each was fitted with."""
    points = {name: fitted[name] for name in found}
    known = {name: one for name, one in points.items() if one is not None}
    in_order = [found[name] for name in APPROACHES if name in found]
    chosen: dict[str, Any] = {"seed": options.seed, "objective": options.objective, "form": options.form}
    judged, told = check_laws(known, in_order, noise=noise, others=others, said=said, **chosen)
    checks = told["approaches"]
    whole = [replace(one, diagnostics={**one.diagnostics, "checks": checks[one.approach]}) for one in judged]
    return whole, told["compare"]
