"""Other ways to read the runs of a study than its fits do."""

from __future__ import annotations

import numpy as np

from analysis.fits.diagnose.influence import Reread, Variant
from analysis.fits.grouping import grouped
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import prepare, under
from analysis.run_table import CONVENTIONS, RunTable

EARLIER = (0.05, 0.1, 0.2)  # of a run's tokens, from which on curves are read too, where fits leave out more


def other_readings(study: RunTable) -> dict[str, Reread]:
    """Other ways to read the runs of a study: C by its other conventions (6 N D is among the checks of any points), and
    curves from an earlier point on."""
    runs = grouped(study).runs

    def counted(convention: str) -> Reread:
        def read(points: Points) -> Variant | None:
            other = None if points.convention == convention else under(points, runs, convention)
            return None if other is None else Variant(other)

        return read

    def earlier(share: float) -> Reread:
        found: dict[str, Points] = {}

        def read(points: Points) -> Variant | None:
            if len(points) == points.n_runs:
                return None
            if not found:
                found.update(prepare(study, points=CURVES, first_share=share).groups)
            one = found[points.group]
            return Variant(one.take(np.isin(one.size.astype(str), points.size.astype(str))), share)

        return read

    readings = {f"C by {name}": counted(name) for name in CONVENTIONS if name != "6nd"}
    return readings | {
        f"from {share:.0%} of each run": earlier(share) for share in EARLIER if share < study.settings.first_share
    }
