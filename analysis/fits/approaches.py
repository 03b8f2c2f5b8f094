"""The approaches by name: points in, laws out. What the command `scaling fit --approach` and notebooks call.

from analysis.fits import approaches, tables
points = tables.read_points("runs.csv").groups[""]
result = approaches.fit(points, approach="parametric", at=[1e22])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.fits.envelope.of_points import fit_envelope, interval_of, result_of, seed_noise_of
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from analysis.fits.study import fit_study
from analysis.fits.study_points import StudyRuns
from arch.errors import InputError, choice

APPROACHES = ("envelope", "isoflop")
ALL = "all"
NEEDS_CURVES = ("envelope",)


@dataclass(frozen=True)
class Options:
    """What the approaches are asked for beside the points.

    at: C [FLOP] at which optima are given; n_replicates, level and seed: of the intervals.
    """

    at: tuple[float, ...] = ()
    n_replicates: int = 1000
    level: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Fits:
    """results: what was fitted, group by group; failed: what could not be, with its reason."""

    results: tuple[FitResult, ...]
    failed: tuple[Mapping[str, str], ...]


def named(approach: str) -> tuple[str, ...]:
    """The approaches that a name stands for. Raises InputError for another name."""
    if approach == ALL:
        return APPROACHES
    if approach not in APPROACHES:
        raise InputError(f"--approach: {approach!r}{choice(approach, [*APPROACHES, ALL])}")
    return (approach,)


def fit(points: Points, approach: str = "envelope", *, noise: SeedNoise | None = None, **options: Any) -> FitResult:
    """One group by one approach; options as `Options` has them. noise: of seeds, where more groups than this one tell
    it. Raises InputError where the points do not allow it."""
    named(approach)
    asked = Options(**options)
    return fit_envelope(
        points,
        noise=noise or seed_noise_of([points]),
        at=asked.at,
        n_replicates=asked.n_replicates,
        level=asked.level,
        seed=asked.seed,
    )


def fit_groups(
    ends: Mapping[str, Points],
    curves: Mapping[str, Points],
    wanted: Sequence[str],
    options: Options,
    said: Callable[[str, str], None] = lambda group, approach: None,
) -> Fits:
    """Every group by every approach: `curves` for those that need them, `ends` for the others. What cannot be fitted is
    told, and stops nothing else. `said` is called with group and approach before each."""
    noise = seed_noise_of(list(curves.values()))
    results, failed = [], []
    for group in {**ends, **curves}:
        for name in wanted:
            said(group, name)
            points = (curves if name in NEEDS_CURVES else ends).get(group)
            try:
                if points is None:
                    raise InputError("needs curves, several rows a run; this table has one row a run")
                results.append(fit(points, name, noise=noise, **vars(options)))
            except InputError as error:
                failed.append({"group": group, "approach": name, "reason": str(error)})
    return Fits(tuple(results), tuple(failed))


def envelope_of_study(study: StudyRuns, curves: Mapping[str, Points], options: Options) -> Fits:
    """The envelope approach on a study: the laws of its fit stage (analysis.fits.study), as results."""
    settings = study.settings.model_copy(
        update={"n_replicates": options.n_replicates, "level": options.level, "seed": options.seed}
    )
    found = fit_study(study.tables, settings)
    spread = found["interval"]["seed_noise"]
    noise = None if spread is None else SeedNoise(spread["s"], spread["df"])
    interval = interval_of(noise, options.level, options.n_replicates, settings.optimum)
    results, failed = [], []
    for arch, one in found["archs"].items():
        if one["fitted"] and arch in curves:
            results.append(result_of(one, curves[arch], settings.optimum, interval, options.at))
        else:
            failed.append({"group": arch, "approach": "envelope", "reason": one["reason"] or "no settled curve"})
    return Fits(tuple(results), tuple(failed))
