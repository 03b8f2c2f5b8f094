"""What the law rests on: its change when one run or one size is left out, when more of the beginning of the curves is
cut, when they are smoothed, or when compute is counted otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.fits.cost import Cost, cost_of
from analysis.fits.diagnose.predictors import fitted
from analysis.fits.parametric.curves import prepare
from analysis.fits.parametric.fit import fit_form
from analysis.fits.parametric.forms import PLAIN
from analysis.fits.parametric.many import HUBER
from analysis.fits.points import Points
from analysis.fits.smooth import smooth
from arch.errors import InputError

FIRST_SHARES = (0.05, 0.2, 0.4)  # of a run's tokens that a variant of the points leaves out; fits leave out 0.1
SMOOTHING = (0.2, 0.5)  # of the tokens seen so far, over which a variant is averaged


def leave_out(
    points: Points,
    approach: str,
    c: float,
    cost: Cost,
    by: str = "run",
    objective: str = HUBER,
    form: str = PLAIN,
) -> list[dict[str, Any]]:
    """For every run (or `size`) left out: the change of a, and of log N_opt at C [FLOP]; None where nothing is left to
    fit. Largest change of a first. Raises InputError where the whole of the points cannot be fitted."""
    names = points.run if by == "run" else points.size
    if approach == "parametric":
        found = _surfaces(points, names, c, cost, objective, form)
    else:
        whole = _told(points, approach, c, cost)
        if whole is None:
            raise InputError(f"{approach}: N_opt is not identified, so no run has an influence on it")
        found = []
        for name in dict.fromkeys(names.tolist()):
            told = _told(points.take(names != name), approach, c, cost)
            a, n = (None, None) if told is None else (told[0] - whole[0], told[1] - whole[1])
            found.append({by: str(name), "a": a, "log_n_opt": n})
    return sorted(found, key=lambda one: -math.inf if one["a"] is None else -abs(one["a"]))


def _surfaces(
    points: Points, names: np.ndarray, c: float, cost: Cost, objective: str, form: str
) -> list[dict[str, Any]]:
    """All fits at once: a run that is left out has no weight."""
    prepared = prepare(points)
    kept = prepared.points
    by = "run" if names is points.run else "size"
    labels = getattr(kept, by)
    each = list(dict.fromkeys(labels.tolist()))
    weights = np.stack([prepared.weights, *(np.where(labels == name, 0.0, prepared.weights) for name in each)])
    fits, _ = fit_form(kept, kept.loss, weights, objective, form)
    with np.errstate(all="ignore"):
        log_n = np.log(np.asarray(fits.surface.n_opt(c, cost)))
        # over the whole range, as `a` is: under a cost with knots a local slope jumps at each of them
        low, high = float(kept.flops.min()), float(kept.flops.max())
        wide = np.asarray(fits.surface.n_opt(high, cost)) / np.asarray(fits.surface.n_opt(low, cost))
        a = np.log(wide) / math.log(high / low)
    good = ~fits.at_bound.any(1) & np.isfinite(log_n) & np.isfinite(a)
    return [
        {by: str(name)}
        | (
            {"a": float(a[i] - a[0]), "log_n_opt": float(log_n[i] - log_n[0])}
            if good[i] and good[0]
            else {"a": None, "log_n_opt": None}
        )
        for i, name in enumerate(each, 1)
    ]


def variants(points: Points) -> dict[str, Points]:
    """The points of whole curves with more or less of their beginning, and smoothed; none for end points."""
    found: dict[str, Points] = {}
    if len(points) < 2 * points.n_runs:
        return found
    last = {run: float(points.n_tokens[points.run == run].max()) for run in dict.fromkeys(points.run.tolist())}
    share = points.n_tokens / np.array([last[run] for run in points.run.tolist()])
    for first in FIRST_SHARES:
        found[f"from {first:.0%} of each run"] = points.take(share >= first)
    for fraction in SMOOTHING:
        found[f"mean over {fraction:.0%} of the tokens seen"] = _smoothed(points, fraction)
    return found


def sensitivity(
    points: Points,
    approach: str,
    c: float,
    cost: Cost,
    others: Mapping[str, Points] | None = None,
    objective: str = HUBER,
    form: str = PLAIN,
) -> list[dict[str, Any]]:
    """a and log N_opt at C [FLOP of the points' own convention], their change in each of `variants`, and in `others`:
    the same runs under other conventions of compute, of which only a is compared."""
    whole = _told(points, approach, c, cost, objective, form)
    if whole is None:
        raise InputError(f"{approach}: N_opt is not identified")
    found = []
    for name, one in variants(points).items():
        told = _told(one, approach, c, cost, objective, form)
        a, n = (None, None) if told is None else (told[0] - whole[0], told[1] - whole[1])
        found.append({"variant": name, "a": a, "log_n_opt": n})
    for name, one in (others or {}).items():
        middle = math.sqrt(float(one.flops.min()) * float(one.flops.max()))
        told = _told(one, approach, middle, cost_of(one), objective, form)
        found.append({"variant": f"C by {name}", "a": None if told is None else told[0] - whole[0], "log_n_opt": None})
    return found


def _told(
    points: Points, approach: str, c: float, cost: Cost, objective: str = HUBER, form: str = PLAIN
) -> tuple[float, float] | None:
    """a and log N_opt at C, without intervals; None where they are not identified."""
    try:
        told = fitted(approach, points, cost, objective=objective, form=form)
    except InputError:
        return None
    if told.a is None or told.n_opt is None:
        return None
    value = told.n_opt(c)[0]
    return (told.a, math.log(value)) if math.isfinite(value) and value > 0 else None


def _smoothed(points: Points, fraction: float) -> Points:
    parts = []
    for run in dict.fromkeys(points.run.tolist()):
        rows = np.flatnonzero(points.run == run)
        rows = rows[np.argsort(points.n_tokens[rows], kind="stable")]
        tokens, loss = smooth(points.n_tokens[rows], points.loss[rows], 0.0, fraction)
        if not len(tokens):
            continue
        kept = points.take(rows[: len(tokens)])
        fresh = kept.unique_tokens >= kept.n_tokens  # read once
        unique = np.where(fresh, tokens, np.minimum(kept.unique_tokens, tokens))
        flops = kept.flops * tokens / kept.n_tokens
        parts.append(replace(kept, n_tokens=tokens, loss=loss, flops=flops, unique_tokens=unique))
    if not parts:
        return points.take(np.arange(0))
    whole = points.take(np.arange(sum(len(part) for part in parts)) * 0)
    names = ("n_params", "n_tokens", "flops", "loss", "run", "trunk", "cell", "size", "unique_tokens", "row")
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(whole, **joined)
