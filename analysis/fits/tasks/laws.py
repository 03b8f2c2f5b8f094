"""One architecture's law of one task: its link or trend to the loss, the drawn curve, and what it foretells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.fits.downstream.gate import gate
from analysis.fits.downstream.link import Link, fit_link
from analysis.fits.downstream.result import to_result
from analysis.fits.downstream.scores import COMPUTE, Scores
from analysis.fits.downstream.trend import LEAST_SIDE, Trend, fit_trend
from analysis.fits.fit import Optimum
from analysis.fits.study_fits import StudyFits
from analysis.scales import TREND

CURVE_POINTS = 40


def law_of(fits: StudyFits, scores: Scores) -> dict[str, Any]:
    told = gate(scores)
    result: dict[str, Any] = {
        "n_checkpoints": len(scores),
        "n_runs": scores.n_runs,
        "withheld": told.reason,
        "trend": {"t": told.t if told.t is None or np.isfinite(told.t) else None, "needed": told.needed},
        "link": None,
        "against_compute": None,
        "compute_curve": None,
        "curve": None,
        "predictions": [],
    }
    if told.reason is not None:
        return result
    name = fits.conventions["L"]
    losses = np.geomspace(scores.loss.min(), scores.loss.max(), CURVE_POINTS)
    if scores.scale.kind == TREND:
        trend = fit_trend(scores)
        return result | {
            "trend": result["trend"] | {"tau": trend.tau},
            "curve": _curve(trend, losses),
            "predictions": [_prediction(trend, at) for at in _asked(fits, scores.group)],
        }
    link = fit_link(scores)
    return result | {
        "link": to_result(link, name).to_dict(),
        **_against_compute(_last(scores), name),
        "curve": _curve(link, losses),
        "predictions": [_prediction(link, at) for at in _asked(fits, scores.group)],
    }


def _last(scores: Scores) -> Scores:
    """Each run's last checkpoint."""
    last: dict[str, int] = {}
    for i, run in enumerate(scores.run):
        if run not in last or scores.flops[i] > scores.flops[last[run]]:
            last[run] = i
    return scores.take(np.array(sorted(last.values())))


def _against_compute(last: Scores, name: str) -> dict[str, Any]:
    """The link of the last checkpoints' scores to their compute; nothing where noise may have made it."""
    if len(last) < 3 or gate(last, COMPUTE).reason:
        return {}
    link = fit_link(last, against=COMPUTE)
    computes = np.geomspace(last.flops.min(), last.flops.max(), CURVE_POINTS)
    return {"against_compute": to_result(link, name).to_dict(), "compute_curve": _curve(link, computes, "flops")}


def _curve(law: Link | Trend, at: np.ndarray, what: str = "loss") -> dict[str, Any]:
    band = law.interval(at)
    low, high = (None, None) if band is None else ([float(v) if np.isfinite(v) else None for v in end] for end in band)
    return {what: at.tolist(), "value": law.predict(at).tolist(), "low": low, "high": high}


def _asked(fits: StudyFits, arch: str) -> Sequence[Optimum]:
    """The verdict's predictions of this architecture's loss, at its computes."""
    return next((one.archs[arch].predictions for one in fits.verdicts if arch in one.archs), ())


def _prediction(law: Link | Trend, at: Optimum) -> dict[str, Any]:
    """The score at a compute, of the loss that L(C) says there. A trend is read inside its own checkpoints alone."""
    told = at.loss
    result: dict[str, Any] = {"c": at.flops, "loss": told.value, "value": None, "interval": None, "reason": None}
    if told.value is None:
        return result | {"reason": f"the loss there: {told.reason}"}
    value = float(law.predict(told.value)[0])
    if np.isnan(value):
        return result | {"reason": "the loss there lies outside of the checkpoints'"}
    if told.interval is None:
        return result | {"value": value, "reason": f"the loss there: {told.reason or 'no interval'}"}
    if isinstance(law, Link):
        band = law.interval(told.value, at_interval=told.interval)
        if band is None:
            return result | {"value": value, "reason": "no interval: too few runs"}
        return result | {"value": value, "interval": [float(end[0]) for end in band]}
    ends = [law.interval(loss) for loss in told.interval]
    low, high = min(float(one[0][0]) for one in ends), max(float(one[1][0]) for one in ends)
    if not (np.isfinite(low) and np.isfinite(high)):
        return result | {"value": value, "reason": f"no interval: fewer than {LEAST_SIDE} runs on a side"}
    return result | {"value": value, "interval": [low, high]}
