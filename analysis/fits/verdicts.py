"""Whether to believe a claim at a compute, a reach times the largest one that was fitted: that N_opt is right to a
factor of 1.5, or that the loss of a run lies in its rehearsed interval.

Four checks, each passed, failed or not done, with its number and its limit:

inside: N and D lie within what was trained, or beyond it by at most a factor of 1.2 times the square root of the reach,
by which both grow with compute.
fits: the points do not refute the form at 1%, by seeds or by a free exponent.
rehearsed: laws fitted below cuts of the data give N_opt above them to a factor of 1.5 at this reach, the loss to 5%
(analysis/fits/rehearsal.py); and of the runs above the cuts 80% or more lay within the 90% intervals of other cuts.
stable: by the changes without each size, added as independent errors are, N_opt moves by a factor of at most 1.5 less
the rehearsed one, again as independent errors; the loss by no more than half its interval.

A claim is believed where none fails and the last two were done. A law is believed up to the largest reach at which its
claim is, and not at all where that at the largest compute fitted is not. docs/research/verdicts.md has how often
believed claims are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.fits.cost import Cost, cost_of
from analysis.fits.fit import FAILED, N_OPT, NEAR, NOT_DONE, PASSED, Check, Claim, Fit, Verdict, believed_to
from analysis.fits.parametric import ParametricFit
from analysis.fits.points import Points
from analysis.fits.rehearsal import (
    Forecast,
    Rehearsal,
    Rehearsed,
    rehearse_line,
    rehearse_optimum,
    rehearse_ratio,
    size_groups,
)
from analysis.fits.surface import Surface
from arch.amounts import count
from arch.errors import InputError

OUTSIDE = 1.2
MISFIT = 0.01
RIGHT = 1.5
HELD = 0.8  # of runs in 90% intervals
WIDE = 1.05
Law = Callable[[float], float]  # N_opt [nan: none] at C [FLOP]


@dataclass(frozen=True)
class Evidence:
    """What the checks of an approach need: its law through all points; by name, the laws without each size (None where
    nothing is identified), by the same settings; its rehearsal, or why there is none, and the leverage at C."""

    law: Law
    without: tuple[tuple[str, Law | None], ...]
    rehearsal: Rehearsal | str
    leverage: Law = lambda c: 0.0


def judge(
    result: Fit,
    points: Points,
    behind: ParametricFit | Callable[[Points], Fit],
    progress: Callable[[float], None] = lambda share: None,
) -> Verdict:
    """The verdict on the N_opt of one law at the largest compute that was fitted, and at each one asked for. points:
    what was fitted; behind: the surface of the parametric approach, or of the others how any of the points are fitted
    by the same settings; progress: called with the share that is done."""
    if result.a.value is None:
        why = result.law(N_OPT).reason or next(iter(result.reasons.values()), "see the fit")
        return believed_to(0.0, (f"N_opt is not identified: {why}",))
    try:
        cost = cost_of(points)
        evidence = (
            _of_surface(behind) if isinstance(behind, ParametricFit) else _of_line(result, points, behind, progress)
        )
    except InputError as error:
        return believed_to(0.0, (f"nothing could be checked: {error}",))
    high = result.range[1]
    if not _is_size(evidence.law(high)):
        return believed_to(0.0, ("N_opt is not identified: no size is optimal at the largest compute",))
    beyond = [optimum.flops for optimum in result.optima if optimum.flops > high * NEAR]
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
    rehearsed = _rehearsed(evidence, c, reach)
    error = math.log(rehearsed.value) if rehearsed.state == PASSED and rehearsed.value else 0.0
    limit = math.exp(math.sqrt(max(math.log(RIGHT) ** 2 - error**2, 0.0)))
    without = [(name, None if law is None else law(c)) for name, law in evidence.without]
    checks = (
        _inside(points, n_opt, d_opt, reach, "optimal "),
        _fits(result),
        rehearsed,
        _stable(N_OPT, n_opt, without, limit),
    )
    return Claim(N_OPT, c, reach, n_opt, checks)


def judge_loss(known: Forecast, run: Rehearsed, fit: Fit | None) -> Claim:
    """The verdict on the rehearsed interval of the loss of a run, of `known.predict`. fit: of the surface (None:
    nothing tells whether the points refute its form)."""
    rehearsal = known.rehearsal(run.n_params)
    loss, high = run.loss.value or math.nan, run.loss.high
    share = rehearsal.held()
    if high is None:
        rehearsed = Check("rehearsed", NOT_DONE, None, WIDE, run.sentence)
    elif share is not None and share < HELD:
        words = f"of the runs that were rehearsed {share:.0%} lay within such intervals (limit {HELD:.0%})"
        rehearsed = Check("rehearsed", FAILED, share, HELD, words)
    else:
        words = (
            f"rehearsed at {rehearsal.n_cuts} disjoint cuts, the loss is right to {high / loss - 1:.1%} (limit "
            f"{WIDE - 1:.0%})"
        )
        rehearsed = _check("rehearsed", high / loss, WIDE, words)
    at = np.array([run.n_params]), np.array([run.n_tokens]), run.unique_tokens
    changed = [(name, None if laws is None else float(laws.loss(*at)[0, 0])) for name, laws in known.without]
    reach = max(run.reach, 1.0)
    checks = (
        _inside(known.points, run.n_params, run.n_tokens, reach, ""),
        _fits(fit),
        rehearsed,
        _stable("the loss", loss, changed, WIDE if high is None else high / loss),
    )
    return Claim("loss", run.reach * float(known.points.flops.max()), reach, loss, checks)


def judge_ranking(groups: Mapping[str, Forecast], c: float, fits: Mapping[str, Fit] | None = None) -> Claim:
    """The verdict on which of two groups, by name, has the lower loss at C [FLOP], each at its optimal size. fits: of
    their surfaces, where these tell whether the points refute the form."""
    at, names = np.array([c]), list(groups)
    names.sort(key=lambda name: float(groups[name].whole.lowest(at)[0, 0]))
    better, worse = (groups[name] for name in names)
    reach = max(c / min(float(group.points.flops.max()) for group in groups.values()), 1.0)
    (low, h_low), (high, h_high) = better.lowest(-1, at), worse.lowest(-1, at)
    ratio = float(high[0] - low[0])
    places = []
    for group in (better, worse):
        n_opt = _n_opt(group.surface, group.laws.cost)(c)
        if not (_is_size(n_opt) and 0 < ratio < math.inf):
            raise InputError("no size is optimal at that compute, or the losses are the same")
        places.append(_inside(group.points, n_opt, c / float(group.laws.cost.per_token(n_opt)), reach, "optimal "))
    rehearsal = rehearse_ratio(better, worse)
    if why := rehearsal.reason(reach):
        rehearsed = Check("rehearsed", NOT_DONE, None, 1.0, why)
    else:
        half = float(rehearsal.half_width(reach, float(h_low[0] + h_high[0])))
        words = f"rehearsed at {rehearsal.n_cuts} disjoint cuts, a difference of {ratio:.2%} is right to {half:.2%}"
        rehearsed = _check("rehearsed", half / ratio, 1.0, words)
    changes: list[tuple[float, str]] = []
    for name, group, sign in ((names[0], better, -1), (names[1], worse, 1)):
        whole = float(group.whole.lowest(at)[0, 0])
        for size, laws in group.without:
            loss = math.nan if laws is None else float(laws.lowest(at)[0, 0])
            moved = sign * math.log(loss / whole) if loss > 0 else -math.inf
            changes.append((-moved / ratio, f"without the size {size} of {name} the difference is {ratio + moved:.2%}"))
    stable = _check("stable", max(changes)[0], 1.0, max(changes)[1])
    refuted = [_fits((fits or {}).get(name)) for name in names]
    checks = (
        max(places, key=lambda check: check.value or 0.0),
        min(refuted, key=lambda check: (FAILED, NOT_DONE, PASSED).index(check.state)),
        rehearsed,
        stable,
    )
    return Claim(f"{names[0]} better than {names[1]}", c, reach, math.exp(-ratio), checks)


def _check(name: str, value: float, limit: float, words: str) -> Check:
    return Check(name, PASSED if value <= limit * (1 + 1e-9) else FAILED, value, limit, words)


def _inside(points: Points, n_params: float, n_tokens: float, reach: float, kind: str) -> Check:
    """kind: of N and D, "optimal " or nothing."""
    limit = OUTSIDE * math.sqrt(reach)
    amounts = []
    for value, trained, what in ((n_params, points.n_params, "parameters"), (n_tokens, points.n_tokens, "tokens")):
        low, high = float(trained.min()), float(trained.max())
        amounts.append((max(low / value, value / high, 1.0), value, what, low, high))
    factor, value, what, low, high = max(amounts)
    if factor <= 1:
        words = f"{'N_opt and D_opt lie' if kind else 'N and D lie'} inside what was trained"
    else:
        words = (
            f"the {kind}{count(value)} {what} lie a factor of {factor:.2g} outside what was trained, {count(low)} to "
            f"{count(high)} (limit {limit:.2g})"
        )
    return _check("inside", factor, limit, words)


def _fits(result: Fit | None) -> Check:
    part = None if result is None else result.parametric
    tied = part is not None and part.p_tied is not None
    p = None if part is None else part.p_tied if tied else part.seeds.p_fits if part.seeds else None
    what = "the form's one exponent" if tied else "the surface"
    if p is None or math.isnan(p):
        return Check("fits", NOT_DONE, None, MISFIT, "no repeated runs tell whether the points refute the form")
    state = FAILED if p < MISFIT else PASSED
    verb = "refute" if state == FAILED else "do not refute"
    return Check("fits", state, p, MISFIT, f"the points {verb} {what} (p = {p:.2g}, limit {MISFIT})")


def _rehearsed(evidence: Evidence, c: float, reach: float) -> Check:
    rehearsal = evidence.rehearsal
    why = rehearsal if isinstance(rehearsal, str) else rehearsal.reason(reach)
    if why or isinstance(rehearsal, str):
        return Check("rehearsed", NOT_DONE, None, RIGHT, why or "")
    factor = math.exp(float(rehearsal.half_width(reach, evidence.leverage(c))))
    words = (
        f"rehearsed at {rehearsal.n_cuts} disjoint cuts, N_opt is right to a factor of {factor:.2f} (limit {RIGHT:g})"
    )
    return _check("rehearsed", factor, RIGHT, words)


def _stable(what: str, whole: float, without: Sequence[tuple[str, float | None]], limit: float) -> Check:
    """without: by name of a size, the value without it (None: nothing is identified). What it changes without each of
    them is added as independent errors are."""
    changes = []
    for name, value in without:
        if value is None or not _is_size(value):
            return Check("stable", FAILED, None, limit, f"without the size {name} nothing is identified")
        changes.append((abs(math.log(value / whole)), name))
    if not changes:
        return Check("stable", NOT_DONE, None, limit, "there is one size")
    change = math.sqrt(sum(shift**2 for shift, _ in changes))
    by, most = f"a factor of {math.exp(change):.2f}", f"{limit:.2f}"
    if what != N_OPT:
        by, most = f"{math.expm1(change):.1%}", f"{limit - 1:.1%}"
    words = f"over sizes left out in turn {what} moves by {by}, most without the size {max(changes)[1]} (limit {most})"
    return _check("stable", math.exp(change), limit, words)


def _of_surface(fit: ParametricFit) -> Evidence:
    groups = size_groups(fit.points)
    solution = fit.without([mine for _, mine in groups])
    without = [
        (name, None if solution.unidentified[i] else _n_opt(solution.surface.item(i), fit.cost))
        for i, (name, _) in enumerate(groups)
    ]
    law = _n_opt(fit.surface, fit.cost)
    try:
        rehearsal, leverage = rehearse_optimum(
            fit.points, fit.rows.weights, cost=fit.cost, objective=fit.objective, delta=fit.delta, form=fit.form
        )
    except InputError as error:
        return Evidence(law, tuple(without), str(error))
    return Evidence(law, tuple(without), rehearsal, leverage)


def _n_opt(surface: Surface, cost: Cost) -> Law:
    def at(c: float) -> float:
        with np.errstate(all="ignore"):
            return float(surface.n_opt(c, cost))

    return at


def _of_line(
    result: Fit, points: Points, fitted: Callable[[Points], Fit], progress: Callable[[float], None]
) -> Evidence:
    """Of crossings of neighbouring sizes (envelope), or of the minima of budgets (isoFLOP)."""
    without: list[tuple[str, Law | None]] = []
    groups = size_groups(points)
    for i, (name, mine) in enumerate(groups):
        progress((1 + i) / (1 + len(groups)))
        try:
            without.append((name, _line(fitted(points.take(~mine)))))
        except InputError:
            without.append((name, None))
    if result.isoflop is not None:
        optima = [(minimum.c, minimum.n_params or 0.0) for minimum in result.isoflop.used]
    else:
        pairs = result.envelope.pairs if result.envelope is not None else ()
        optima = [(pair.c, pair.n_params) for pair in pairs if pair.c is not None and pair.beyond == 0]
    rehearsal = rehearse_line([c for c, _ in optima], [n_params for _, n_params in optima])
    return Evidence(_line(result), tuple(without), *rehearsal)


def _line(fit: Fit) -> Law:
    law = fit.law(N_OPT)
    return lambda c: law.at(c).value or math.nan
