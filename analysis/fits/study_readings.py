"""Other ways to read the runs of a study than its fits do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analysis.fits.diagnose.influence import Reread, Variant
from analysis.fits.points import Points
from analysis.fits.study_points import StudyRuns, study_points
from analysis.fits.tables.points import CURVES
from analysis.runs import CONVENTIONS

EARLIER = (0.05, 0.1, 0.2)  # of a run's tokens, from which on curves are read too, where fits leave out more


def other_readings(study: StudyRuns) -> dict[str, Reread]:
    """Other ways to read the runs of a study: C by its other conventions (6 N D is among the checks of any points), and
    curves from an earlier point on."""
    runs = study.grouped.runs.set_index("run_id")

    def counted(convention: str) -> Reread:
        def read(points: Points) -> Variant | None:
            ids = np.where(np.isin(points.run, runs.index), points.run, points.trunk)  # a merged loss is its trunk's
            per_token = runs.loc[ids, f"flops_per_token_{convention}"].to_numpy(dtype=float)
            if points.convention == convention or np.isnan(per_token).any():
                return None
            return Variant(replace(points, flops=points.n_tokens * per_token, convention=convention))

        return read

    def earlier(share: float) -> Reread:
        found: dict[str, Points] = {}

        def read(points: Points) -> Variant | None:
            if len(points) == points.n_runs:
                return None
            if not found:
                found.update(study_points(study, CURVES, first_share=share).groups)
            one = found[points.group]
            return Variant(one.take(np.isin(one.size.astype(str), points.size.astype(str))), share)

        return read

    told = {f"C by {name}": counted(name) for name in CONVENTIONS if name != "6nd"}
    return told | {
        f"from {share:.0%} of each run": earlier(share) for share in EARLIER if share < study.settings.first_share
    }
