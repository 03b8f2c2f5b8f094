"""Whether to believe what a law claims: N_opt at a compute, a reach times the largest one that was fitted.

Four checks, each passed, failed or not done, with its number and its limit:

inside: N and D of the optimum lie within what was trained, or beyond it by at most a factor of 1.2 times the square
root of the reach, by which both grow with compute.
fits: the points do not refute the form at 1%, by seeds or by a free exponent.
rehearsed: laws fitted below cuts of the data give the optimum above them to a factor of 1.5 at this reach
(analysis/fits/rehearsal.py).
stable: without any one size the optimum changes by a factor of at most 1.3.

A claim is believed where none fails and the last two were done. A law is believed up to the largest reach at which its
claim is, and not at all where that at the largest compute fitted is not. docs/research/verdicts.md has how often
believed claims are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.fits.cost import Cost, cost_of
from analysis.fits.fit import ENVELOPE, FAILED, N_OPT, NOT_DONE, PASSED, Check, Claim, Fit, Verdict, believed_to
from analysis.fits.parametric import ParametricFit
from analysis.fits.points import Points
from analysis.fits.rehearsal import LEVEL, SAME, Rehearsal, rehearse_line, rehearse_optimum
from analysis.fits.surface import Surface
from arch.amounts import count
from arch.errors import InputError

OUTSIDE = 1.2
MISFIT = 0.01
REHEARSED = 1.5
STABLE = 1.3
MOST_LEFT_OUT = 12  # groups of neighbouring sizes, of more sizes
Law = Callable[[float], float]  # N_opt [nan: none] at C [FLOP]


@dataclass(frozen=True)
class Evidence:
    """What the checks of an approach need: its law through all points; by name, the laws without each size (None where
    nothing is identified); its rehearsal, or why there is none."""

    law: Law
    without: tuple[tuple[str, Law | None], ...]
    rehearsal: Rehearsal | str


def judge(
    result: Fit,
    points: Points,
    surface: ParametricFit | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Verdict:
    """The verdict on the N_opt of one law at the largest compute that was fitted, and at each one asked for. points:
    what was fitted; surface: of the parametric approach; progress: called with the share that is done."""
    if result.a.value is None:
        why = result.law(N_OPT).reason or next(iter(result.reasons.values()), "see the fit")
        return believed_to(0.0, (f"N_opt is not identified: {why}",))
    try:
        cost = cost_of(points)
        evidence = _of_surface(surface) if surface else _of_crossings(result.approach, points, cost, progress)
    except InputError as error:
        return believed_to(0.0, (f"nothing could be checked: {error}",))
    high = result.range[1]
    if not _is_size(evidence.law(high)):
        return believed_to(0.0, ("N_opt is not identified: no size is optimal at the largest compute",))
    beyond = [optimum.flops for optimum in result.optima if optimum.flops > high]
    computes = dict.fromkeys((high, *(c for c in beyond if _is_size(evidence.law(c)))))
    claims = tuple(_claim(result, points, c, evidence, cost) for c in computes)
    if not claims[0].believed:
        return believed_to(0.0, claims[0].against, claims)
    farther = [claim for claim in claims if not claim.believed]
    reasons = [check.words for check in claims[0].checks if check.state == PASSED]
    reasons += [f"at {claim.reach:.3g} times the largest compute: {'; '.join(claim.against)}" for claim in farther[:1]]
    nearest = min((claim.reach for claim in farther), default=math.inf)
    reach = max(claim.reach for claim in claims if claim.believed and claim.reach < nearest)
    return believed_to(reach, tuple(reasons), claims)


def _is_size(n_params: float) -> bool:
    return math.isfinite(n_params) and n_params > 0


def _claim(result: Fit, points: Points, c: float, evidence: Evidence, cost: Cost) -> Claim:
    reach = max(c / result.range[1], 1.0)
    n_opt = evidence.law(c)
    d_opt = c / float(cost.per_token(n_opt))
    checks = (
        _inside(points, n_opt, d_opt, reach),
        _fits(result),
        _rehearsed(evidence.rehearsal, reach),
        _stable(evidence, c),
    )
    return Claim("N_opt", c, reach, n_opt, checks)


def _check(name: str, value: float, limit: float, words: str) -> Check:
    return Check(name, PASSED if value <= limit * (1 + 1e-9) else FAILED, value, limit, words)


def _inside(points: Points, n_opt: float, d_opt: float, reach: float) -> Check:
    limit = OUTSIDE * math.sqrt(reach)
    amounts = []
    for value, trained, what in ((n_opt, points.n_params, "parameters"), (d_opt, points.n_tokens, "tokens")):
        low, high = float(trained.min()), float(trained.max())
        amounts.append((max(low / value, value / high, 1.0), value, what, low, high))
    factor, value, what, low, high = max(amounts)
    if factor <= 1:
        words = "N_opt and D_opt lie inside what was trained"
    else:
        words = (
            f"the optimal {count(value)} {what} lie a factor of {factor:.2g} outside what was trained, {count(low)} to "
            f"{count(high)} (limit {limit:.2g})"
        )
    return _check("inside", factor, limit, words)


def _fits(result: Fit) -> Check:
    part = result.parametric
    tied = part is not None and part.over_training is not None
    p = None if part is None else part.p_tied if tied else part.seeds.p_fits if part.seeds else None
    what = "the form's one exponent" if tied else "the surface"
    if p is None or math.isnan(p):
        return Check("fits", NOT_DONE, None, MISFIT, "no repeated runs tell whether the points refute the form")
    state = FAILED if p < MISFIT else PASSED
    verb = "refute" if state == FAILED else "do not refute"
    return Check("fits", state, p, MISFIT, f"the points {verb} {what} (p = {p:.2g}, limit {MISFIT})")


def _rehearsed(rehearsal: Rehearsal | str, reach: float) -> Check:
    why = rehearsal if isinstance(rehearsal, str) else rehearsal.reason(reach)
    if why or isinstance(rehearsal, str):
        return Check("rehearsed", NOT_DONE, None, REHEARSED, why or "")
    factor = math.exp(float(rehearsal.half_width(reach)))
    words = (
        f"rehearsed at {rehearsal.n_cuts} disjoint cuts, N_opt is right to a factor of {factor:.2f} (limit "
        f"{REHEARSED:g})"
    )
    return _check("rehearsed", factor, REHEARSED, words)


def _stable(evidence: Evidence, c: float) -> Check:
    whole, changes = evidence.law(c), []
    for name, law in evidence.without:
        value = math.nan if law is None else law(c)
        if not _is_size(value):
            return Check("stable", FAILED, None, STABLE, f"without the size {name} nothing is identified")
        changes.append((abs(math.log(value / whole)), name))
    if not changes:
        return Check("stable", NOT_DONE, None, STABLE, "there is one size")
    most, name = max(changes)
    words = f"without the size {name} N_opt changes by a factor of {math.exp(most):.2f} (limit {STABLE:g})"
    return _check("stable", math.exp(most), STABLE, words)


def size_groups(points: Points) -> list[tuple[str, np.ndarray]]:
    """Each size with its points [n], or of more than MOST_LEFT_OUT so many groups of neighbours."""
    sizes, which = np.unique(np.round(np.log(points.n_params) / SAME), return_inverse=True)
    group = which * min(len(sizes), MOST_LEFT_OUT) // len(sizes)
    groups = []
    for i in np.unique(group):
        mine = group == i
        low, high = float(points.n_params[mine].min()), float(points.n_params[mine].max())
        groups.append((count(low) if high < low * (1 + SAME) else f"{count(low)} to {count(high)}", mine))
    return groups


def _of_surface(fit: ParametricFit) -> Evidence:
    groups = size_groups(fit.points)
    solution = fit.without([mine for _, mine in groups])
    rehearsal: Rehearsal | str
    try:
        rehearsal = rehearse_optimum(
            fit.points, fit.rows.weights, cost=fit.cost, objective=fit.objective, delta=fit.delta, form=fit.form
        )
    except InputError as error:
        rehearsal = str(error)
    without = [
        (name, None if solution.unidentified[i] else _n_opt(solution.surface.one(i), fit.cost))
        for i, (name, _) in enumerate(groups)
    ]
    return Evidence(_n_opt(fit.surface, fit.cost), tuple(without), rehearsal)


def _n_opt(surface: Surface, cost: Cost) -> Law:
    def at(c: float) -> float:
        with np.errstate(all="ignore"):
            return float(surface.n_opt(c, cost))

    return at


def _of_crossings(approach: str, points: Points, cost: Cost, progress: Callable[[float], None]) -> Evidence:
    """Of crossings of neighbouring sizes (envelope), or of the minima of budgets (isoFLOP)."""
    fitted = _envelope if approach == ENVELOPE else _isoflop
    law, c, n_params = fitted(points, cost)
    without: list[tuple[str, Law | None]] = []
    groups = size_groups(points)
    for i, (name, mine) in enumerate(groups):
        progress((1 + i) / (1 + len(groups)))
        try:
            without.append((name, fitted(points.take(~mine), cost)[0]))
        except InputError:
            without.append((name, None))
    return Evidence(law, tuple(without), rehearse_line("N_opt", c, n_params))


def _isoflop(points: Points, cost: Cost) -> tuple[Law, list[float], list[float]]:
    from analysis.fits.isoflop import fit_isoflop

    fit = fit_isoflop(points, cost, n_replicates=2)
    law, used = fit.law(N_OPT), fit.isoflop.used if fit.isoflop else ()
    sizes = [minimum.n_params or 0 for minimum in used]
    return lambda c: law.at(c).value or math.nan, [minimum.c for minimum in used], sizes


def _envelope(points: Points, cost: Cost) -> tuple[Law, list[float], list[float]]:
    from analysis.fits.crossings import crossed, crossing_laws, find_crossings
    from analysis.fits.seeds import size_curves

    curves = size_curves(points)
    ends = math.log(float(points.flops.min())), math.log(float(points.flops.max()))
    crossings = find_crossings(curves, ends)
    law = crossing_laws(crossings, None, LEVEL)[0]
    if not law.identified:
        raise InputError(law.reason)
    inside = [crossing for crossing in crossed(crossings) if crossing.beyond == 0]
    sizes = [math.exp(crossing.middle("n_params")) for crossing in inside]
    return lambda c: law.at(c).value or math.nan, [math.exp(crossing.at) for crossing in inside], sizes
