"""Every group of a table or study by every approach, with verdicts: what one cannot fit stops nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from analysis.fits.approaches import DEFAULTS, NEEDS_CURVES, Options, default_at, fit_with_surface
from analysis.fits.fit import APPROACHES, ENVELOPE, ISOFLOP, PARAMETRIC, Fit, NotFitted
from analysis.fits.parametric import ParametricFit
from analysis.fits.points import Points
from analysis.fits.seeds import seed_noises_of
from analysis.fits.settings import FitSettings
from analysis.fits.verdicts import judge
from arch.errors import InputError

if TYPE_CHECKING:
    from analysis.fits.envelope import Curves

CHECKS = "checks"  # the step after the approaches of a group
Progress = Callable[[str, str, float], None]  # of group, approach (CHECKS at the end) and the share of it that is done


@dataclass(frozen=True)
class Runs:
    """Runs as the approaches read them, by group: `curves` for approaches that need them, `ends` (or curves too) for
    the others; ends_alone: curves tell the noise between seeds, and no approach fits them.

    envelopes: of a study, the whole curves of each group, or why it has no envelope (None: the envelope is that of
    `curves`); settings: its grid and optimum.
    """

    ends: Mapping[str, Points]
    curves: Mapping[str, Points]
    ends_alone: bool = False
    envelopes: Mapping[str, Curves | str] | None = None
    settings: FitSettings = DEFAULTS


@dataclass(frozen=True)
class Fits:
    """results: what was fitted, group by group, each with its verdict; failed: what could not be fitted; surfaces: by
    group, the parametric fit behind its result, with its draws."""

    results: tuple[Fit, ...]
    failed: tuple[NotFitted, ...]
    surfaces: Mapping[str, ParametricFit] = field(default_factory=dict)

    def of(self, group: str) -> list[Fit]:
        return [result for result in self.results if result.group == group]


def fit_groups(
    runs: Runs, approaches: Sequence[str], options: Options, progress: Progress = lambda group, approach, share: None
) -> Fits:
    """Every group by every approach, and whether to believe it; isoFLOP takes curves where the ends have no budgets.
    What cannot be fitted has its reason in `failed`, and stops nothing else."""
    ends, curves = runs.ends, runs.curves
    if not options.at and (ends or curves):
        options = replace(options, at=default_at({**ends, **curves}))
    seeds, whole = seed_noises_of(list(curves.values())), {} if runs.ends_alone else curves
    envelopes = runs.envelopes if ENVELOPE in approaches and not runs.ends_alone else None
    results: list[Fit] = []
    failed = [
        NotFitted(group, ENVELOPE, reason) for group, reason in (envelopes or {}).items() if isinstance(reason, str)
    ]
    surfaces: dict[str, ParametricFit] = {}
    for group in {**ends, **curves}:
        # what a group's own seeds tell is in the residuals of its surface already
        noises = {name: seeds.of_others(group) if name == PARAMETRIC else seeds.of(group) for name in APPROACHES}
        points = {name: (whole if name in NEEDS_CURVES else ends).get(group) for name in approaches}
        if group in whole and (budgets := points.get(ISOFLOP)) is not None:
            from analysis.fits.budgets import has_budgets

            points[ISOFLOP] = budgets if has_budgets(budgets) else whole[group]
        found: dict[str, Fit] = {}
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
                found[name], behind = fit_with_surface(mine, name, noise, step, options, own, runs.settings)
                surfaces |= {} if behind is None else {group: behind}
            except InputError as error:
                reason = re.sub(rf"^{name}( \(\w+\))?: ", "", str(error), flags=re.IGNORECASE)  # named beside it
                failed.append(NotFitted(group, name, reason))
        for place, name in enumerate(name for name in APPROACHES if name in found):
            progress(group, CHECKS, place / len(found))
            fitted = points[name]
            assert fitted is not None
            verdict = judge(found[name], fitted, surfaces.get(group) if name == PARAMETRIC else None)
            results.append(replace(found[name], verdict=verdict))
    return Fits(tuple(results), tuple(failed), surfaces)


def needs_curves(ends_alone: bool) -> str:
    """Why an approach of curves fits nothing to ends."""
    return (
        f"needs curves, several rows a run; {'--points ends leaves' if ends_alone else 'this table has'} one row a run"
    )
