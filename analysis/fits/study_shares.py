"""How much of the beginning of each run to leave out: what a study's surfaces would have foretold of its largest runs,
share by share.

The surface describes a loss late in training. How soon a curve lies on it differs from text to text and from
architecture to architecture, and laws read from too early on miss the runs above them by more than their intervals say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.fits.cost import cost_of
from analysis.fits.diagnose.backtest import RUN, backtest
from analysis.fits.diagnose.predictors import fitted
from analysis.fits.parametric.curves import FIRST_SHARE
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import prepare
from analysis.run_table import RunTable
from arch.errors import InputError

PARAMETRIC = "parametric"  # the approach that reads curves
FIRST_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of a run's tokens
CUTS = (2.0, 4.0, 8.0)  # times less compute than the largest run's
Errors = dict[tuple[str, float, float, float], float]  # of group, cut, compute and loss of a run: of log loss
WORTH = 0.8  # of the own share's error: another one that errs by less than this is worth a word


def first_shares(study: RunTable, objective: str) -> list[dict[str, Any]]:
    """A row a share, the study's own among them: {"share", "own", "groups": {group: {"a", "n", "error"}}, "n",
    "error"}: a of the surface of all points, and the root mean square of the errors of log loss with which surfaces
    fitted below cuts of compute foretold the ends of the runs above: of those n that every share could foretell. None
    where nothing is fitted or foretold. No rows for a study whose runs have no curves."""
    own = study.settings.first_share
    whole = prepare(study, points=CURVES, first_share=FIRST_SHARES[0]).groups
    if all(len(one) == one.n_runs for one in whole.values()):
        return []
    points = {
        share: {group: one.take(one.run_share >= share * (1 - 1e-9)) for group, one in whole.items()}
        for share in sorted({*FIRST_SHARES, own})
    }
    errors = {
        share: {key: one for mine in groups.values() for key, one in _errors(mine, share, objective).items()}
        for share, groups in points.items()
    }
    common = sorted(set.intersection(*(set(found) for found in errors.values())))  # sums to the same bits
    rows = []
    for share, groups in points.items():
        told = {}
        for group, mine in groups.items():
            of_group = [errors[share][key] for key in common if key[0] == group]
            told[group] = {"a": _exponent(mine, share, objective), "n": len(of_group), "error": _rms(of_group)}
        every = _rms([errors[share][key] for key in common])
        rows.append({"share": share, "own": share == own, "groups": told, "n": len(common), "error": every})
    return rows


def _errors(points: Points, share: float, objective: str) -> Errors:
    """The errors of what surfaces fitted below each cut foretold of the ends of runs above it. share: of a run's
    tokens, that the points begin at; a backtest's own would leave out more of a smaller one."""
    cuts = [float(points.flops.max()) / cut for cut in CUTS]
    try:
        rows = backtest(points, PARAMETRIC, cuts, n_replicates=0, objective=objective, first_share=share)
    except InputError:
        return {}
    ends = [row for row in rows if row.what == RUN and row.error is not None and row.c and row.observed]
    return {(points.group, row.cut, row.c or 0.0, row.observed or 0.0): row.error or 0.0 for row in ends}


def _exponent(points: Points, share: float, objective: str) -> float | None:
    try:
        return fitted(PARAMETRIC, points, cost_of(points), objective=objective, first_share=share).a
    except InputError:
        return None


def _rms(errors: Sequence[float]) -> float | None:
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else None


def better_share(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The share that foretold best of those that a study may set, where it errs clearly less than the study's own."""
    own = next((row for row in rows if row["own"]), None)
    if own is None or own["error"] is None:
        return None
    alike = [row for row in rows if row["error"] is not None and row["share"] >= FIRST_SHARE]
    best = min(alike, key=lambda row: float(row["error"]))
    return best if best["error"] < WORTH * own["error"] else None
