"""What the law rests on: its change when one run or one size is left out, when more of the beginning of the curves is
cut, when they are smoothed, or when compute is counted otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.cost import ROUNDED, Cost, cost_of
from analysis.fits.diagnose.predictors import fitted
from analysis.fits.forms import PLAIN
from analysis.fits.parametric.curves import FIRST_SHARE, prepare
from analysis.fits.parametric.fit import fit_form
from analysis.fits.points import Points
from analysis.fits.smooth import smooth
from analysis.fits.solver import HUBER, Solution
from arch.errors import InputError

FIRST_SHARES = (0.05, 0.2, 0.4)  # of a run's tokens that a variant leaves out; parametric fits leave out FIRST_SHARE
SMOOTHING = (0.2, 0.5)  # of the tokens seen so far, over which a variant is averaged


@dataclass(frozen=True)
class Variant:
    """The same runs read in another way; first_share: of a run's tokens that a parametric fit of it leaves out."""

    points: Points
    first_share: float = FIRST_SHARE


Reread = Callable[[Points], Variant | None]  # None where these points have no such reading


def leave_out(
    points: Points,
    approach: str,
    c: float,
    cost: Cost,
    by: str = "run",
    objective: str = HUBER,
    form: str = PLAIN,
    said: Callable[[float], None] = lambda share: None,
) -> list[dict[str, Any]]:
    """For every run (or `size`) left out: the change of a, and of log N_opt at C [FLOP]; None where nothing is left to
    fit. Largest change of a first. said: called with the share that is done. Raises InputError where the whole of the
    points cannot be fitted."""
    names = points.run if by == "run" else points.size
    if approach == "parametric":
        found = _surfaces(points, by, c, cost, objective, form, said)
    else:
        whole = _told(points, approach, c, cost, objective, form)
        if whole is None:
            raise InputError(f"{approach}: N_opt is not identified, so no run has an influence on it")
        found, each = [], list(dict.fromkeys(names.tolist()))
        for place, name in enumerate(each):
            said(place / len(each))
            told = _told(points.take(names != name), approach, c, cost, objective, form)
            a, n = (None, None) if told is None else (told[0] - whole[0], told[1] - whole[1])
            found.append({by: str(name), "a": a, "log_n_opt": n})
    return sorted(found, key=lambda one: -math.inf if one["a"] is None else -abs(one["a"]))


def _refitted(
    points: Points, by: str, objective: str, form: str, said: Callable[[float], None] | None = None
) -> tuple[Points, list[Any], Solution]:
    """The points as fitted, the runs (or sizes), and the surfaces of all of them and without each: at once, what is
    left out has no weight."""
    prepared = prepare(points)
    labels = getattr(prepared.points, by)
    each = list(dict.fromkeys(labels.tolist()))
    weights = np.stack([prepared.weights, *(np.where(labels == name, 0.0, prepared.weights) for name in each)])
    return (
        prepared.points,
        each,
        fit_form(prepared.points, prepared.points.loss, weights, objective, form, progress=said),
    )


def _surfaces(
    points: Points, by: str, c: float, cost: Cost, objective: str, form: str, said: Callable[[float], None]
) -> list[dict[str, Any]]:
    kept, each, solution = _refitted(points, by, objective, form, said)
    surface = solution.surface
    with np.errstate(all="ignore"):
        log_n = np.log(np.asarray(surface.n_opt(c, cost)))
        # over the whole range, as `a` is: under a cost with knots a local slope jumps at each of them
        low, high = float(kept.flops.min()), float(kept.flops.max())
        wide = np.asarray(surface.n_opt(high, cost) / surface.n_opt(low, cost))
        a = np.log(wide) / math.log(high / low)
    good = ~solution.unidentified & np.isfinite(log_n) & np.isfinite(a)
    return [
        {by: str(name)}
        | (
            {"a": float(a[i] - a[0]), "log_n_opt": float(log_n[i] - log_n[0])}
            if good[i] and good[0]
            else {"a": None, "log_n_opt": None}
        )
        for i, name in enumerate(each, 1)
    ]


def variants(points: Points, first_share: float = 0.0) -> dict[str, Variant]:
    """The points of whole curves with more or less of their beginning, and smoothed but for held-out losses (none for
    end points); and with C as 6 N D where it is counted otherwise. first_share: of a run's tokens, that the fit itself
    leaves out."""
    found: dict[str, Variant] = {}
    six = 6.0 * points.n_params * points.n_tokens
    if np.abs(np.log(points.flops / six)).max() > ROUNDED:
        found["C by 6nd"] = Variant(replace(points, flops=six, convention="6nd"))
    if len(points) < 2 * points.n_runs:
        return found
    share, shares = points.run_share, list(FIRST_SHARES)
    if FIRST_SHARES[-1] <= (begun := float(share.min())) < 0.6:  # these leave out more already
        shares.append(1.5 * begun)
    for first in shares:
        if ((share >= first) != (share >= first_share)).any():
            found[f"from {first:.0%} of each run"] = Variant(points.take(share >= first), first)
    for fraction in () if points.held_out else SMOOTHING:  # a checkpoint's window would hold little but itself
        found[f"mean over {fraction:.0%} of the tokens seen"] = Variant(_smoothed(points, fraction))
    return found


def sensitivity(
    points: Points,
    approach: str,
    c: float,
    cost: Cost,
    others: Mapping[str, Reread] | None = None,
    objective: str = HUBER,
    form: str = PLAIN,
) -> list[dict[str, Any]]:
    """The change of a, and of log N_opt at C [FLOP of the points' own convention], in each of `variants` and of
    `others`. Under another convention C is another quantity: only a is compared."""
    whole = _told(points, approach, c, cost, objective, form)
    if whole is None:
        raise InputError(f"{approach}: N_opt is not identified")
    found = []
    read = {name: again for name, reread in (others or {}).items() if (again := reread(points)) is not None}
    own = FIRST_SHARE if approach == "parametric" else 0.0
    for name, variant in {**variants(points, own), **read}.items():
        one = variant.points
        alike = one.convention == points.convention
        at = c if alike else math.sqrt(float(one.flops.min()) * float(one.flops.max()))
        try:
            told = _told(one, approach, at, cost if alike else cost_of(one), objective, form, variant.first_share)
        except InputError:  # a cost that is no law of N
            told = None
        a, n = (None, None) if told is None else (told[0] - whole[0], told[1] - whole[1] if alike else None)
        found.append({"variant": name, "a": a, "log_n_opt": n})
    return found


def _told(
    points: Points,
    approach: str,
    c: float,
    cost: Cost,
    objective: str = HUBER,
    form: str = PLAIN,
    first_share: float = FIRST_SHARE,
) -> tuple[float, float] | None:
    """a and log N_opt at C, without intervals; None where they are not identified."""
    try:
        told = fitted(approach, points, cost, objective=objective, form=form, first_share=first_share)
    except InputError:
        return None
    if told.a is None or told.n_opt is None:
        return None
    value = told.n_opt(c)[0]
    return (told.a, math.log(value)) if math.isfinite(value) and value > 0 else None


def _smoothed(points: Points, fraction: float) -> Points:
    parts = []
    for rows in points.rows_of_runs.values():
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
    names = ("n_params", "n_tokens", "flops", "loss", "run", "trunk", "cell", "recipe", "size", "unique_tokens", "row")
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(whole, **joined)
