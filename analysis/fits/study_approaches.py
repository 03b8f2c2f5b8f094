"""What a study's runs say by every approach: laws with their checks and verdicts, what the runs wasted, and the
architectures compared. The fit stage and the command `scaling fit runs` give the same numbers: both come
from here.

Curves enter as points: under a constant learning rate each is as good as a run that ends there. The surface is fitted
by least squares: the noise between seeds has no outliers that Huber's loss would hold off
(docs/research/parametric-fits.md: its intervals cover as they should and are narrower).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.fits.approaches import APPROACHES, ENVELOPE, Options, computes, default_at, without_curve
from analysis.fits.envelope.of_points import envelope_result, interval_of
from analysis.fits.grouping import grouped
from analysis.fits.groups import Fits, fit_groups
from analysis.fits.noise import SeedNoise
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import prepare
from analysis.fits.result import plain
from analysis.fits.settings import FitSettings
from analysis.fits.solver import LEAST_SQUARES
from analysis.fits.study import fit_study
from analysis.fits.study_comparison import compare_study
from analysis.fits.study_readings import other_readings
from analysis.fits.study_shares import first_shares
from analysis.fits.study_waste import waste_rows, wrong_choices
from analysis.run_table import RunTable
from arch.errors import InputError

OBJECTIVE = LEAST_SQUARES  # of a study's surfaces, where none is asked for
CURVE = 33  # C at which figures draw a law
Said = Callable[[str, str, float], None]


def options_of(study: RunTable, **asked: Any) -> Options:
    """What a study's approaches are asked for where nothing else is said: its fit stage's options."""
    settings = study.settings
    own = {"n_replicates": settings.n_replicates, "level": settings.level, "seed": settings.seed}
    return Options(**{"objective": OBJECTIVE} | own | asked)


def fit_study_groups(
    study: RunTable,
    groups: Mapping[str, Points],
    curves: Mapping[str, Points],
    wanted: Sequence[str],
    options: Options,
    fits: Mapping[str, Any],
    said: Said = lambda group, approach, share: None,
    ends_alone: bool = False,
) -> Fits:
    """`fit_groups` of a study's points: the envelope is that of its fit stage (fits: `laws_of_study` under the same
    options; none of ends_alone), and the checks read the runs in other ways too."""
    if not options.at:
        options = replace(options, at=default_at({**groups, **curves}))
    is_read = ENVELOPE in wanted and not ends_alone
    envelope = envelope_results(fits, curves, options) if is_read else Fits((), ())
    rest = [name for name in wanted if name != ENVELOPE or not is_read]
    found = fit_groups(groups, curves, rest, options, said, envelope.results, other_readings(study), ends_alone)
    return replace(found, failed=envelope.failed + found.failed)


def approaches_of_study(study: RunTable, fits: Mapping[str, Any]) -> dict[str, Any]:
    """{"laws": [FitResult as plain data, one a group and approach], "not_fitted": [group, approach, reason],
    "side_by_side": {group: analysis.fits.diagnose.side_by_side}, "waste": {group: rows of `waste_rows`},
    "wrong_choices": {group: `wrong_choices`}, "first_shares": of analysis.fits.study_shares, "comparisons": of
    analysis.fits.study_comparison}. fits: what `fit_study` found."""
    settings = study.settings
    try:
        curves = prepare(study, points=CURVES).groups
    except InputError as error:
        none = [{"at": "", "reason": str(error), "views": {}, "pairs": []}]
        empty: dict[str, Any] = {"laws": [], "not_fitted": [], "side_by_side": {}, "waste": {}, "wrong_choices": {}}
        return empty | {"first_shares": [], "comparisons": none}
    found = fit_study_groups(study, curves, curves, APPROACHES, options_of(study, curve=CURVE), fits)
    runs = grouped(study).runs
    surfaces = {arch: fit for arch, fit in found.surfaces.items() if fit.identified}
    return {
        "laws": [one.to_dict() for one in found.results],
        # why there is no envelope stands beside its architecture
        "not_fitted": [dict(one) for one in found.failed if one["approach"] != ENVELOPE],
        "side_by_side": plain(found.compared),
        "waste": {arch: waste_rows(fit, curves[arch], runs, settings.level) for arch, fit in surfaces.items()},
        "wrong_choices": {arch: wrong_choices(fit, settings.level) for arch, fit in surfaces.items()},
        "first_shares": first_shares(study, OBJECTIVE),
        "comparisons": architectures_of_study(study, options_of(study), fits),
    }


def laws_of_study(study: RunTable, options: Options) -> dict[str, Any]:
    """What the study's fit stage finds (`fit_study`), with intervals by these options."""
    return fit_study(study.under(None, n_replicates=options.n_replicates, level=options.level, seed=options.seed))


def architectures_of_study(
    study: RunTable, options: Options, fits: Mapping[str, Any], points: str = CURVES
) -> list[dict[str, Any]]:
    """The architectures compared (analysis.fits.study_comparison), with the noise between the study's seeds. points: of
    each run its curve, or its end alone."""
    spread = fits["interval"]["seed_noise"]
    of_runs = 0.0 if spread is None else float(spread["of_means"] or spread["s"])
    return compare_study(study, options.seed, options.level, of_runs, points)


def envelope_results(found: Mapping[str, Any], curves: Mapping[str, Points], options: Options) -> Fits:
    """What a study's fit stage found (`fit_study`), as results."""
    settings, spread = FitSettings(**found["settings"]), found["interval"]["seed_noise"]
    options = replace(options, at=tuple(options.at) or default_at(curves))
    results, failed = [], []
    for arch, one in found["archs"].items():
        if one["fitted"] and arch in curves:
            part = spread and next((part for part in spread["parts"] if arch in part["archs"]), spread)
            noise = SeedNoise(part["s"], part["df"]) if part else None
            interval = interval_of(noise, settings)
            at = computes(curves[arch], options)
            results.append(
                without_curve(envelope_result(one, curves[arch], settings.optimum, interval, at), options.curve)
            )
        else:
            failed.append({"group": arch, "approach": ENVELOPE, "reason": one["reason"] or "no settled curve"})
    return Fits(tuple(results), tuple(failed))
