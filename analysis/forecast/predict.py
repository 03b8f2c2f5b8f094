"""Predictions of the losses of runs that are not trained, by the surfaces of a study's fits.

The surface is the parametric approach's, as the fit stage reports it: the same points, objective and replicates. A new
run's loss is the surface's, with the error that the fit's own draws give it, and the noise between seeds
(analysis.forecast.predictors). Beside it stands the pure power law of the envelope, L(C),
whether or not its checks believe it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.fits.approaches import PARAMETRIC, Options, fit_surface, options_of
from analysis.fits.envelope.of_points import seed_noises_of
from analysis.fits.fit import L_OPT, plain
from analysis.fits.noise import SeedNoise
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import prepare
from analysis.fits.settings import FitSettings
from analysis.fits.smooth import smooth
from analysis.fits.study_fits import StudyFits
from analysis.forecast.predictors import Predictor, of_new_runs, of_surface
from analysis.forecast.rehearsals import rehearsals_of, widened
from analysis.grid_points import named, point_of_run
from analysis.labels import group_of
from analysis.run_table import RunTable
from arch.errors import InputError
from data.units import loss_unit
from flops import count_params, train_flops_per_token

if TYPE_CHECKING:
    from scaling.study.run import RunSpec

SAME = 1e-6  # of C: runs that end together
NO_RATE = "it had no learning rate when the others were predicted"
NO_SURFACE = "its surface is not identified: an exponent ends at the bound of its range"


@dataclass(frozen=True)
class Source:
    """A group's surface as a predictor, its noise between seeds, and what else its predictions are told with."""

    points: Points
    told: Predictor
    noise: SeedNoise | None
    about: dict[str, Any]


def predictions(study: RunTable, fits: StudyFits, runs: Sequence[RunSpec], level: float) -> dict[str, Any]:
    """{"groups": by group what is predicted from, "runs": a row a run, "means": a row for the seeds of each size,
    "rehearsals": of analysis.forecast.rehearsals, which may have widened the rows' intervals}; `fits` is what the fit
    stage found of the study. A row without a loss has a reason.

    Raises InputError where no run of the study can be fitted, and for a level that its replicates cannot tell.
    """
    curves, options = prepare(study, points=CURVES).groups, options_of(study.settings)
    if options.n_replicates < 2 / (1 - level):
        raise InputError(f"forecast.level: {level:g} needs more than the {options.n_replicates} replicates of the fits")
    seeds, settings = seed_noises_of(list(curves.values())), study.settings
    groups: dict[str, Source | str] = {}
    rows, kinds = [], dict[tuple[str, str], list[dict[str, Any]]]()
    for run in runs:
        group = _group(run)
        if group not in groups:
            groups[group] = source_of(group, curves, fits, seeds.of(group), seeds.of_others(group), options, level)
        row = _row(run, group, groups[group], fits, study, level)
        rows.append(row)
        kinds.setdefault((group, run.size), []).append(row)
    means = [_mean(mine, groups[group], level) for (group, _), mine in kinds.items()]
    rehearsed = rehearsals_of(study, curves, rows, means, level)
    return {
        "groups": {name: {"reason": one} if isinstance(one, str) else one.about for name, one in groups.items()},
        "runs": widened(rows, rehearsed, level),
        "means": widened(means, rehearsed, level),
        "rehearsals": rehearsed,
        "loss": settings.loss_name(loss_unit(study.runs["tokenizer"])),
    }


def _group(run: RunSpec) -> str:
    return group_of(run.arch, named(point_of_run(run.model_dump(mode="json")), ())["point"])


def source_of(
    group: str,
    curves: Mapping[str, Points],
    fits: StudyFits,
    noise: SeedNoise | None,
    of_others: SeedNoise | None,
    options: Options,
    level: float,
) -> Source | str:
    """Of a group; or why nothing is predicted of it."""
    points = curves.get(group)
    if points is None:
        return "none of its runs is fitted"
    try:
        fit = fit_surface(points, options, of_others, options.n_replicates)
    except InputError as error:
        return f"it has no surface: {error}"
    if not fit.identified:
        return NO_SURFACE
    told = of_surface(fit, noise, level)
    own, judged = told.noise, fits.fit(group, PARAMETRIC)
    about = {
        "reason": None,
        "verdict": plain(judged.verdict) if judged else None,
        "surface": {key: float(value) for key, value in fit.surface.to_dict().items()},
        "n_runs": points.n_runs,
        "noise": {"s": own, "df": noise.df if noise else None},
        "largest": _largest(points),
        "power_law": _power_law(fits, group),
        "no_interval": fit.why_no_draws or None,
    }
    return Source(points, told, noise, about)


def _largest(points: Points) -> dict[str, Any]:
    """The runs that end at the largest C: their mean loss, which a prediction is to lie below."""
    ends = [rows[points.flops[rows].argmax()] for rows in points.rows_of_runs.values()]
    most = max(float(points.flops[i]) for i in ends)
    taken = [i for i in ends if points.flops[i] >= most * (1 - SAME)]
    size, n_params = str(points.size[taken[0]]), float(points.n_params[taken[0]])
    told = {"c": most, "loss": float(points.loss[taken].mean()), "size": size, "n_params": n_params}
    return told | {"runs": sorted(str(points.run[i]) for i in taken)}


def _power_law(fits: StudyFits, group: str) -> dict[str, Any] | None:
    """The pure power law L(C) of the envelope, and whether its checks found that the curve is one; None without one."""
    envelope = fits.envelope(group)
    law = None if envelope is None else envelope.law(L_OPT)
    if law is None or not law.identified:
        return None
    return {"centre": law.centre, "exponent": law.exponent.value, "describes": not law.curved}


def _row(
    run: RunSpec, group: str, source: Source | str, fits: StudyFits, study: RunTable, level: float
) -> dict[str, Any]:
    settings = study.settings
    n_params, read_at = count_params(run.config).non_embedding, end_of_curve(run, settings)
    row: dict[str, Any] = {"run_id": run.run_id, "spec_hash": None if run.is_pending else run.spec_hash}
    row |= {"arch": run.arch, "group": group}
    row |= {"size": run.size, "seed": run.seed, "n_params": n_params, "n_tokens": run.n_tokens, "read_at": read_at}
    row["c"] = read_at * float(train_flops_per_token(run.config, settings.flops))
    nothing = dict.fromkeys(("loss", "expected", "interval", "power_law", "drop"))
    if run.is_pending or isinstance(source, str):
        return row | nothing | {"reason": NO_RATE if run.is_pending else str(source)}
    value = source.told.loss(float(n_params), read_at, min(read_at, _text(study)))
    if not (math.isfinite(value[0]) and value[0] > 0):
        return row | nothing | {"reason": "it repeats text, and no fitted run tells what that is worth"}
    envelope = fits.envelope(group)
    return row | {
        "loss": value[0],
        "expected": value[1],
        "interval": interval_of(source, value, level),
        "power_law": None if envelope is None else envelope.law(L_OPT).at(row["c"]).value,
        "drop": source.about["largest"]["loss"] - value[0],
        "reason": None,
    }


def interval_of(source: Source, value: Any, level: float, n_runs: int = 1) -> tuple[float, float] | None:
    df = source.noise.df if source.noise else None
    return of_new_runs(value, source.told.noise, df, level, n_runs)


def _mean(rows: Sequence[dict[str, Any]], source: Source | str, level: float) -> dict[str, Any]:
    """Of the seeds of one size, as a row of one run."""
    first = {key: value for key, value in rows[0].items() if key not in ("run_id", "spec_hash", "seed")}
    first |= {"run_ids": [row["run_id"] for row in rows]}
    if not isinstance(source, str) and first["loss"] is not None:
        value = (first["loss"], first["expected"])
        first["interval"] = interval_of(source, value, level, len(rows))
    return first


def end_of_curve(run: RunSpec, settings: FitSettings) -> float:
    """Tokens at which the last loss lies that fits read of the run: its own, or those of its last smoothing window."""
    if settings.loss == "validation":
        return float(run.n_tokens)
    tokens = run.training.batch_tokens * np.arange(1.0, run.n_steps + 1)
    read, _ = smooth(tokens, np.zeros_like(tokens), settings.smoothing_tokens, settings.smoothing_fraction)
    if not len(read):
        raise InputError(f"{run.run_id}: has no more tokens than fit.smoothing_tokens: give forecast.n_tokens more")
    return float(read[-1])


def _text(study: RunTable) -> float:
    """Tokens of the training text, infinite where that is not known."""
    runs = study.runs
    found = (runs["n_tokens"] / runs["epochs"]).to_numpy(dtype=float)
    found = found[np.isfinite(found)]
    return float(found.max()) if len(found) else math.inf


def fitted_runs(tables: RunTable) -> dict[str, str]:
    """{run id: spec hash} of the runs that a grouped study's fits are of."""
    runs = tables.runs[(tables.runs["state"] == "done") & (tables.runs["left_out"] == "")]
    return {str(run): str(spec) for run, spec in zip(runs["run_id"], runs["spec_hash"], strict=True)}
