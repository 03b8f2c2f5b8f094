"""Why a law is believed inside of its range alone: beyond it the law is not known well enough or nothing checked it, or
it depends on how the runs are read, or did not foretell the largest of them."""

from __future__ import annotations

import math

from analysis.fits.diagnose.backtest import RUN, SIZE
from analysis.fits.diagnose.evidence import Evidence, compared_rows, elsewhere, is_assumed
from analysis.fits.fit import FAR, Fit
from arch.amounts import count, counted_of, flop

VARIANT_A = 0.05  # change of a when curves start elsewhere, are smoothed, or when C is counted otherwise
VARIANT_N = 1.3  # factor of N_opt at the same
MISSES = 0.01  # probability of residuals this large over the seeds' own, below which the surface misses its points
WIDE_BEYOND = 2.0  # factor from N_opt to an end of its interval, beyond the range
OUTSIDE = 1.2  # factor by which an optimum inside the range may lie outside of what was trained
HELD = 0.8  # share of a backtest's intervals that must hold
FORETOLD_N = 1.5  # factor by which a backtest's N_opt may be off
ENOUGH = 5  # intervals of a backtest from which on their share counts


def reasons_to_stay_inside(result: Fit, evidence: Evidence) -> list[str]:
    return [
        *_assumed(result),
        *_beyond(result, evidence),
        *_apart(result, evidence),
        *_misses(result),
        *_varied(evidence),
        *_foretold(evidence),
        *_unchecked(evidence),
    ]


def _assumed(result: Fit) -> list[str]:
    if not is_assumed(result) or result.parametric is None:
        return []
    return [
        f"the exponent of N_opt is assumed, not fitted: alpha = beta, which these points do not reject (p = "
        f"{result.parametric.p_tied:.2g})"
    ]


def _beyond(result: Fit, evidence: Evidence) -> list[str]:
    """At computes that were asked for: within the range an optimum that no run was near; beyond it one that is not
    known well enough, or that lies too far off for any check."""
    told = []
    last = result.range[1] * (1 + 1e-9)
    for at in result.optima:
        times = result.beyond(at.flops)
        if times > FAR:
            side = "below the smallest" if at.flops < last else "the largest"
            told.append(
                f"{flop(at.flops)} FLOP is {count(times)} times {side} compute of the fit: nothing checks it there"
            )
            continue
        if at.flops <= last or not at.n_params.value:
            continue
        n_opt, ends = at.n_params.value, at.n_params.interval
        factor = math.inf if ends is None or not ends[0] > 0 else max(n_opt / ends[0], ends[1] / n_opt)
        if not factor <= WIDE_BEYOND:
            size = f"to a factor of {factor:.2g} only" if math.isfinite(factor) else "without an interval"
            told.append(f"at {flop(at.flops)} FLOP N_opt is known {size} (limit {WIDE_BEYOND:g})")
    for one in evidence.outside:
        kind = "parameters" if one["what"] == "N" else "tokens"
        if one["C"] <= last and one["factor"] > OUTSIDE and result.beyond(one["C"]) <= FAR:
            told.append(
                f"at {flop(one['C'])} FLOP the optimal {count(one['value'])} {kind} lie a factor of "
                f"{one['factor']:.2g} outside of what was trained"
            )
    return told


def _apart(result: Fit, evidence: Evidence) -> list[str]:
    """Approaches whose N_opt lies elsewhere and that are known as well; one that is known worse tells nothing."""
    return [
        f"the {other} approach, known no worse, has N_opt a factor of {pair['factor']:.2g} away"
        for other, pair, better in elsewhere(result, evidence)
        if better
    ]


def _misses(result: Fit) -> list[str]:
    seeds = None if result.parametric is None else result.parametric.seeds
    p = None if seeds is None else seeds.p_fits
    if p is None or not p < MISSES:  # nan: no other runs
        return []
    return [f"the surface misses the runs by more than seeds of one run differ (p = {p:.2g})"]


def _varied(evidence: Evidence) -> list[str]:
    told = []
    for one in evidence.sensitivity:
        log_n = one["log_n_opt"] or 0.0
        if one["a"] is None:
            told.append(f'read as "{one["variant"]}" nothing is identified')
        elif abs(one["a"]) > VARIANT_A or abs(log_n) > math.log(VARIANT_N):
            also = "" if one["log_n_opt"] is None else f" and N_opt by a factor of {math.exp(log_n):.2f}"
            told.append(
                f'read as "{one["variant"]}" the exponent changes by {one["a"]:+.2f}{also} '
                + (f"(limits {VARIANT_A} and {VARIANT_N})" if also else f"(limit {VARIANT_A})")
            )
    return told


def _foretold(evidence: Evidence) -> list[str]:
    told = []
    held = [row.held for row in evidence.backtest if row.held is not None and row.what == RUN]
    if len(held) >= ENOUGH and sum(held) < HELD * len(held):
        told.append(
            f"fitted below cuts of compute, {counted_of(sum(held), len(held), 'interval')} held the losses above "
            f"(limit {HELD:.0%})"
        )
    sizes = [row for row in evidence.backtest if row.what == SIZE and row.error is not None]
    if sizes:
        worst = max(sizes, key=lambda row: abs(row.error or 0.0))
        if abs(worst.error or 0.0) > math.log(FORETOLD_N):
            told.append(
                f"fitted below {flop(worst.cut)} FLOP, N_opt at {flop(worst.c or 0.0)} FLOP is off by a factor of "
                f"{math.exp(abs(worst.error or 0.0)):.2g} (limit {FORETOLD_N})"
            )
    return told


def _unchecked(evidence: Evidence) -> list[str]:
    told = []
    if not evidence.by_size:
        told.append(_without("no fit without one of its sizes was done", evidence.not_done.get("by_size")))
    if not compared_rows(evidence.backtest):
        whys = [row.reason for row in evidence.backtest if row.reason]
        why = evidence.not_done.get("backtest") or (whys[0] if whys else None)
        told.append(_without("no backtest was possible", why))
    return told


def _without(what: str, why: str | None) -> str:
    return f"{what} ({why})" if why else what
