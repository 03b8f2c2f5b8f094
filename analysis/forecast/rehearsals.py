"""The rehearsals of a study's forecast: of new predictions, which they widen, and of stored ones that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.fits.approaches import STUDY_OBJECTIVE
from analysis.fits.fit import plain
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import prepare
from analysis.fits.settings import FitSettings
from analysis.forecast.rehearsal import LIMIT, as_rehearsed, early_share, half_width, rehearse, wider
from analysis.run_table import RunTable
from arch.errors import InputError

if TYPE_CHECKING:
    from analysis.source.choose import Source
    from scaling.study.spec import StudySpec

Rows = Sequence[Mapping[str, Any]]


def rehearsals_of(
    study: RunTable, curves: Mapping[str, Points], runs: Rows, means: Rows, level: float
) -> list[dict[str, Any]]:
    """A row for each of `means` (a size of a group) that has a predicted loss: what `rehearse` found, with "group",
    "size", "interval" as rehearsed (None: nothing was rehearsed), its "half" and "of_fit", that of one run's interval
    by the fit, both halves of the width in logarithms; "above_limit", whether `half` is above "limit"; and
    "too_narrow", whether the rms is above `of_fit` (None where one is not known). curves: the fits' points."""
    found = []
    for mean in means:
        if mean["loss"] is None:
            continue
        points = curves[mean["group"]]
        r_n, r_d = mean["n_params"] / points.n_params.max(), mean["read_at"] / points.n_tokens.max()
        share = study.settings.first_share
        told = rehearse(_early(study, points, early_share(share, r_d)), r_n, r_d, share, STUDY_OBJECTIVE)
        ends = as_rehearsed(mean["loss"], told, level)
        half, of_fit = half_width(ends), half_width(_of_fit(next(row for row in runs if _is_of(row, mean))))
        found.append(
            {"group": mean["group"], "size": mean["size"], "interval": ends, "half": half, "of_fit": of_fit}
            | {"limit": LIMIT, "above_limit": None if half is None else half > LIMIT}
            | {"too_narrow": None if half is None or of_fit is None else told["rms"] > of_fit}
            | told
        )
    return found


def _early(study: RunTable, points: Points, share: float) -> Points:
    """The runs of a group's `points`, from a smaller share of their tokens on: fits below a cut leave out a share of
    what is left."""
    kept = study.under(None, stopped="keep")  # sizes that the fit left out are not in `points`
    whole = prepare(kept, points=CURVES, first_share=share).groups[points.group]
    return whole.take(np.isin(whole.run.astype(str), np.unique(points.run.astype(str))))


def _is_of(row: Mapping[str, Any], mean: Mapping[str, Any]) -> bool:
    return bool(row["run_id"] in mean["run_ids"])


def _of_fit(row: Mapping[str, Any]) -> Sequence[float] | None:
    """The fit's own interval, whichever of the two a row has."""
    ends: Sequence[float] | None = row.get("interval_of_fit", row["interval"])
    return ends


def widened(rows: Rows, rehearsed: Rows, level: float) -> list[dict[str, Any]]:
    """Rows of new predictions with the wider of both intervals: `interval_by` says which it is ("fit", "rehearsal"),
    `interval_of_fit` keeps the fit's. One run has the interval of the mean: between seeds there is less than a step
    beyond may be off by."""
    known = {(one["group"], one["size"]): one for one in rehearsed}
    found = []
    for row in rows:
        one = known.get((row["group"], row["size"]))
        other = None if one is None or row["loss"] is None else as_rehearsed(row["loss"], one, level)
        ends, by = wider(row["interval"], other)
        found.append({**row, "interval": ends, "interval_by": by, "interval_of_fit": row["interval"]})
    return found


def with_rehearsals(study: StudySpec, source: Source, told: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of stored predictions (analysis.forecast.stage) with "rehearsals" and "afterwards": whether they
    were made now, from the runs that the predictions were made from, as the file has none; then no prediction changes.
    "not_rehearsed" says why there are none (else None)."""
    if "rehearsals" in told:
        return {**told, "afterwards": False, "not_rehearsed": None}
    settings, hashes = FitSettings(**told["settings"]), told["fitted"]["spec_hashes"]
    found: dict[str, Any] = {**told, "rehearsals": [], "afterwards": True, "not_rehearsed": None}
    table = source.table(settings, study.evaluation.validation_tokens, variants=False)
    runs = table.runs
    same = (runs["spec_hash"] == runs["run_id"].map(hashes)) & (runs["state"] == "done")
    if gone := len(hashes) - int(same.sum()):
        is_or = "is" if gone == 1 else "are"
        return found | {"not_rehearsed": f"{gone} of the {len(hashes)} runs that it was made from {is_or} not here"}
    try:
        fitted = table.without(set(runs.loc[~same, "run_id"]))
        curves = prepare(fitted, points=CURVES).groups
        rows = rehearsals_of(fitted, curves, told["runs"], told["means"], told["level"])
    except (InputError, KeyError) as error:
        return found | {"not_rehearsed": str(error)}
    return found | {"rehearsals": plain(rows)}
