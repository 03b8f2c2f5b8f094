"""Rehearsals: the step that a forecast takes beyond the fitted runs, taken inside the grid beforehand.

A forecast goes beyond the largest N and the longest D at once. A backtest that cuts compute never does: below a cut
the small sizes keep their whole curves. Here both axes are cut by about the ratios of the forecast, the surface is
fitted to what is left as the study's own is, and what was cut off tells the error of its form at such a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES
from analysis.forecast.predictors import predicted

SMALLER = 3  # sizes below the cut, beside the size at the cut
TARGETS, APART = 4, 1.25  # token counts of a target size, from its last one down, and how far apart they are wanted
SAME = 0.01  # of log N, log D: a step of less is none, closer token counts are one
FIT, REHEARSAL = "fit", "rehearsal"  # what an interval is by
LIMIT = 0.015  # of the loss: half of an interval that tells little
INSIDE = "the forecast goes beyond neither the largest size nor the most tokens of the fit"
FEW = f"a step below each size fewer than {SMALLER + 1} sizes are left, or curves too short for a fit"
Ends = Sequence[float] | None  # of an interval


@dataclass(frozen=True)
class Rehearsed:
    """One rehearsal: the mean loss of the seeds at (n_params, n_tokens) over what was predicted from sizes up to cut_n
    and tokens up to cut_d, less 1."""

    n_params: float
    n_tokens: float
    cut_n: float
    cut_d: float
    error: float


def early_share(first_share: float, r_d: float) -> float:
    """The share of its tokens from which a run's points have to be read, so that a fit below the lowest cut of tokens
    finds its own `first_share` of what is left."""
    return first_share / (max(r_d, 1.0) * APART**TARGETS)


def rehearse(
    points: Points, r_n: float, r_d: float, first_share: float, objective: str = LEAST_SQUARES
) -> dict[str, Any]:
    """{"step": [r_n, r_d] of the forecast, "taken": the median step in N and in D that was rehearsed (1: not cut),
    "rows": `Rehearsed` as plain data, "n", "sizes" (target sizes), "refused" (fits that identify no surface), "mean",
    "rms" (of log measured over predicted), "reason"}; where nothing can be rehearsed `reason` says why, and mean, rms
    and taken are None.

    points: the sizes of the study's own fit, read from `early_share` on. r_n, r_d: N and D of the forecast over the
    largest of the fit; an axis is cut where its ratio is above 1. The size at the cut of N is the grid's nearest to
    target / r_n, the cut of D is the last tokens up to target / r_d: `taken` may differ from the step.
    """
    cuts_n, cuts_d = math.log(r_n) > SAME, math.log(r_d) > SAME
    if not (cuts_n or cuts_d):
        return _told(r_n, r_d, [], 0, INSIDE)
    rows: list[Rehearsed] = []
    refused = 0
    sizes = np.unique(points.n_params)
    for i, size in enumerate(sizes):
        below = int(np.abs(np.log(sizes[:i] * r_n / size)).argmin()) if cuts_n and i else i
        if below < SMALLER:
            continue
        mine = points.take(points.n_params == size)
        for tokens in _targets(mine.n_tokens):
            most_n = float(sizes[below]) if cuts_n else math.inf
            most_d = tokens / r_d * (1 + SAME) if cuts_d else math.inf
            left = points.take((points.n_params <= most_n) & (points.n_tokens <= most_d))
            found = _error(left, mine, tokens, first_share, objective)
            if found is None:
                refused += 1
                continue
            ends = float(left.n_params.max()), float(left.n_tokens.max())
            rows.append(Rehearsed(float(size), tokens, *ends, found))
    return _told(r_n, r_d, rows, refused, None if rows else FEW)


def _targets(tokens: np.ndarray) -> list[float]:
    """The last token count, and earlier ones of about even steps in log D."""
    known = np.unique(tokens)
    wanted = known[-1] / APART ** np.arange(TARGETS)
    at = [float(known[np.abs(np.log(known / one)).argmin()]) for one in wanted]
    return list(dict.fromkeys(at))


def _error(left: Points, mine: Points, tokens: float, first_share: float, objective: str) -> float | None:
    """Measured over predicted, less 1; None where the points that are left identify no surface."""
    there = np.abs(np.log(mine.n_tokens / tokens)) < SAME
    n, unique = float(mine.n_params[0]), float(mine.unique_tokens[there].mean())
    loss = predicted(left, objective, first_share, n, tokens, unique)
    return None if loss is None else float(mine.loss[there].mean()) / loss - 1


def _told(r_n: float, r_d: float, rows: Sequence[Rehearsed], refused: int, reason: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"step": [r_n, r_d], "taken": None, "mean": None, "rms": None, "reason": reason}
    if rows:
        off = np.log1p([row.error for row in rows])
        found |= {"mean": float(off.mean()), "rms": float(np.sqrt((off**2).mean()))}
        found["taken"] = [
            float(np.median([max(row.n_params / row.cut_n, 1.0) for row in rows])),
            float(np.median([max(row.n_tokens / row.cut_d, 1.0) for row in rows])),
        ]
    sizes = len({row.n_params for row in rows})
    return found | {"n": len(rows), "sizes": sizes, "refused": refused, "rows": [asdict(row) for row in rows]}


def as_rehearsed(loss: float, found: Mapping[str, Any], level: float) -> tuple[float, float] | None:
    """The interval of a predicted loss by its rehearsals: loss * exp(+-t * rms), with Student's t at as many degrees of
    freedom as there are target sizes, since rehearsals of one size share its runs and most of what they are fitted to;
    those of different sizes overlap too, so it is no exact level. None where nothing was rehearsed."""
    if found["rms"] is None:
        return None
    off = float(stats.t.ppf((1 + level) / 2, max(found["sizes"], 1))) * found["rms"]
    return loss * math.exp(-off), loss * math.exp(off)


def half_width(ends: Ends) -> float | None:
    """Of an interval of the loss: half of its width in logarithms; None without one."""
    return None if ends is None else math.log(ends[1] / ends[0]) / 2


def wider(of_fit: Ends, rehearsed: Ends) -> tuple[Ends, str | None]:
    """The wider of a prediction's two intervals, and what it is by; a fit without an interval has none."""
    own, other = half_width(of_fit), half_width(rehearsed)
    if own is None:
        return None, None
    return (rehearsed, REHEARSAL) if other is not None and other > own else (of_fit, FIT)
