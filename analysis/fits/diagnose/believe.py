"""Whether to believe a law, with the reasons: `believe`, `believe inside the range` or `do not believe`.

What is judged is N_opt and its exponent. A law that is not known well enough to choose a size by, or that rests on one
size, or that another approach contradicts, is not believed. One whose optimum lies where nothing was trained, that
did not foretell the study's own largest runs, that changes with how the curves are read, that misses its points by more
than seeds differ, or that no size left out and no backtest checked, is believed inside the range alone. The thresholds
were chosen on simulated studies of six sizes and equal tokens (NOTES.md has the confusion matrix).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.fits.diagnose.backtest import RUN, SIZE, Row
from analysis.fits.diagnose.side_by_side import ERRORS, FACTOR
from analysis.fits.result import BELIEVE, DO_NOT, INSIDE, FitResult, Verdict

WIDE_A = (
    0.08  # half of the interval of a: more does not tell how to split a hundred times the compute by a factor of 1.4
)
WIDE_N = 1.5  # factor from N_opt to an end of its interval
ONE_SIZE_A = 0.07  # change of a when one size is left out
ONE_SIZE_N = 1.3  # factor of N_opt when one size is left out
VARIANT_A = 0.05  # change of a when curves start elsewhere, are smoothed, or when C is counted otherwise
VARIANT_N = 1.3  # factor of N_opt at the same
MISSES = 0.01  # probability of residuals this large over the seeds' own, below which the surface misses its points
TIED = 0.01  # the same of alpha and beta this far apart, where the form assumes that they are one
WIDE_BEYOND = 2.0  # factor from N_opt to an end of its interval, beyond the range
FAR = 1000.0  # times the largest compute of the fit; no backtest reaches nearly as far
OUTSIDE = 1.2  # factor by which an optimum inside the range may lie outside of what was trained
HELD = 0.8  # share of a backtest's intervals that must hold
FORETOLD_N = 1.5  # factor by which a backtest's N_opt may be off
ENOUGH = 5  # intervals of a backtest from which on their share counts


@dataclass(frozen=True)
class Evidence:
    """What a verdict is drawn from beside the result; what was not computed is left empty. Without `by_size` and
    `backtest` no law is believed beyond its range.

    by_size: influence.leave_out(by="size"); pairs: of side_by_side.compare_approaches; identities, outside: of
    side_by_side; sensitivity: influence.sensitivity; backtest: rows of this approach; not_done: by name, why what is
    empty is.
    """

    by_size: Sequence[Mapping[str, Any]] = ()
    pairs: Sequence[Mapping[str, Any]] = ()
    identities: Mapping[str, Any] | None = None
    outside: Sequence[Mapping[str, Any]] = ()
    sensitivity: Sequence[Mapping[str, Any]] = ()
    backtest: Sequence[Row] = ()
    not_done: Mapping[str, str] = field(default_factory=dict)


def verdict_on(result: FitResult, evidence: Evidence) -> Verdict:
    """The verdict on the N_opt of one law."""
    against = [*_known(result), *_one_size(evidence), *_contradicted(result, evidence)]
    if against:
        return Verdict(DO_NOT, tuple(against))
    limits = [
        *_assumed(result),
        *_beyond(result, evidence),
        *_apart(result, evidence),
        *_misses(result),
        *_varied(evidence),
        *_foretold(evidence),
        *_unchecked(evidence),
    ]
    if limits:
        return Verdict(INSIDE, tuple(limits))
    return Verdict(BELIEVE, (_why(result, evidence),))


def _known(result: FitResult) -> list[str]:
    told = []
    names = {"a": "the exponent of N_opt", "N_opt": "N_opt"}
    missing = result.diagnostics.get("not_identified") or {}
    for name, words in names.items():
        if result.params.get(name) is None:
            why = missing.get("n_opt") or missing.get(name) or "see the fit"
            return [f"N_opt is not identified: {why}"]
        if result.intervals.get(name) is None and not (name == "a" and _is_assumed(result)):
            why = "; ".join(f"{key}: {one}" for key, one in missing.items())
            if not why:  # where intervals were made at all, `method` says how, else why not
                made = result.interval.get("level") is not None
                why = "too few of its replicates could be fitted" if made else result.interval.get("method", "")
            return [f"{words} has no interval" + (f" ({why})" if why else "")]
    if _is_assumed(result):
        p = result.diagnostics.get("p_tied")
        if p is None:
            told.append("the form assumes alpha = beta, which was not tested")
        elif p <= TIED:
            told.append(f"the form assumes alpha = beta, which these points reject (p = {p:.2g})")
    else:
        low, high = result.intervals["a"]  # type: ignore[misc]
        if not (high - low) / 2 <= WIDE_A:
            told.append(f"its exponent is known to {(high - low) / 2:.2f} either way only, {WIDE_A} is the limit")
    low, high = result.intervals["N_opt"]  # type: ignore[misc]
    n_opt = result.params["N_opt"]
    factor = max(n_opt / low if low > 0 else math.inf, high / n_opt)
    if not factor <= WIDE_N:
        size = f"a factor of {factor:.2g}" if math.isfinite(factor) else "no factor at all"
        told.append(f"N_opt in the middle of the range is known to {size} only, {WIDE_N} is the limit")
    return told


def _is_assumed(result: FitResult) -> bool:
    return (result.diagnostics.get("not_identified") or {}).get("a", "").startswith("assumed")


def _assumed(result: FitResult) -> list[str]:
    if not _is_assumed(result):
        return []
    return [
        f"the exponent of N_opt is assumed, not fitted: alpha = beta, which these points do not reject (p = "
        f"{result.diagnostics['p_tied']:.2g})"
    ]


def _one_size(evidence: Evidence) -> list[str]:
    told = []
    if needed := [one["size"] for one in evidence.by_size if one["a"] is None]:
        told.append(f"without the size {' or '.join(needed)} nothing is identified")
    known = [one for one in evidence.by_size if one["a"] is not None]
    decisive = [one for one in known if abs(one["a"]) > ONE_SIZE_A or abs(one["log_n_opt"]) > math.log(ONE_SIZE_N)]
    if decisive:
        most = max(decisive, key=lambda one: abs(one["a"]) / ONE_SIZE_A + abs(one["log_n_opt"]) / math.log(ONE_SIZE_N))
        others = f" (and {len(decisive) - 1} more sizes change it)" if len(decisive) > 1 else ""
        told.append(
            f"without the size {most['size']} the exponent changes by {most['a']:+.2f} and N_opt by a factor of "
            f"{math.exp(most['log_n_opt']):.2f}, {ONE_SIZE_A} and {ONE_SIZE_N} are the limits{others}"
        )
    return told


def _contradicted(result: FitResult, evidence: Evidence) -> list[str]:
    told = []
    for pair in evidence.pairs:
        if result.approach in pair["approaches"] and (pair["in_errors"] or 0) > ERRORS:
            other = next(one for one in pair["approaches"] if one != result.approach)
            told.append(
                f"the {other} approach has an exponent {abs(pair['difference']):.2f} away, {pair['in_errors']:.1f} "
                "joint standard errors"
            )
    if evidence.identities and evidence.identities["off"]:
        told.append("N_opt and D_opt together do not spend the compute that they are optimal for")
    return told


def _beyond(result: FitResult, evidence: Evidence) -> list[str]:
    """At computes that were asked for: within the range an optimum that no run was near; beyond it one that is not
    known well enough, or that lies too far off for any check."""
    told = []
    last = result.range[1] * (1 + 1e-9) if result.range is not None else math.inf
    for at in result.diagnostics.get("optimum", ()):
        if at["C"] <= last or not at["N"]:
            continue
        ends = at["intervals"].get("N")
        factor = math.inf if ends is None or not ends[0] > 0 else max(at["N"] / ends[0], ends[1] / at["N"])
        if at["C"] > FAR * last:
            told.append(f"{at['C']:.3g} FLOP is {at['C'] / last:.3g} times the largest compute of the fit")
        elif not factor <= WIDE_BEYOND:
            size = f"to a factor of {factor:.2g} only" if math.isfinite(factor) else "without an interval"
            told.append(f"at {at['C']:.3g} FLOP N_opt is known {size}, {WIDE_BEYOND:g} is the limit")
    for one in evidence.outside:
        kind = "parameters" if one["what"] == "N" else "tokens"
        if one["C"] <= last and one["factor"] > OUTSIDE:
            told.append(
                f"at {one['C']:.3g} FLOP the optimal {one['value']:.3g} {kind} lie a factor of {one['factor']:.2g} "
                "outside of what was trained"
            )
    return told


def _apart(result: FitResult, evidence: Evidence) -> list[str]:
    """Approaches whose N_opt lies elsewhere and that are known as well; one that is known worse tells nothing."""
    return [
        f"the {other} approach, known no worse, has N_opt a factor of {pair['factor']:.2g} away"
        for other, pair, better in _elsewhere(result, evidence)
        if better
    ]


def _elsewhere(result: FitResult, evidence: Evidence) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Approaches that disagree by a factor of N_opt, and whether each is known as well as this one."""
    found = []
    for pair in evidence.pairs:
        if result.approach in pair["approaches"] and pair["factor"] is not None and pair["factor"] > FACTOR:
            mine = pair["approaches"].index(result.approach)
            own, its = pair["errors"][mine], pair["errors"][1 - mine]
            found.append((pair["approaches"][1 - mine], pair, its is not None and (own is None or its <= own)))
    return found


def _misses(result: FitResult) -> list[str]:
    p = (result.diagnostics.get("seeds") or {}).get("p_surface_fits")
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
                f'read as "{one["variant"]}" the exponent changes by {one["a"]:+.2f}{also}, {VARIANT_A}'
                f"{' and ' + str(VARIANT_N) if also else ''} {'are the limits' if also else 'is the limit'}"
            )
    return told


def _unchecked(evidence: Evidence) -> list[str]:
    told = []
    if not evidence.by_size:
        told.append(_without("no fit without one of its sizes was done", evidence.not_done.get("by_size")))
    if not _checked(evidence.backtest):
        whys = [row.reason for row in evidence.backtest if row.reason]
        why = evidence.not_done.get("backtest") or (whys[0] if whys else None)
        told.append(_without("no backtest was possible", why))
    return told


def _without(what: str, why: str | None) -> str:
    return f"{what} ({why})" if why else what


def _checked(rows: Sequence[Row]) -> list[Row]:
    """Predictions of a backtest that were compared with what lies above the cut."""
    return [row for row in rows if row.error is not None]


def _foretold(evidence: Evidence) -> list[str]:
    told = []
    held = [row.held for row in evidence.backtest if row.held is not None and row.what == RUN]
    if len(held) >= ENOUGH and sum(held) < HELD * len(held):
        told.append(f"fitted below cuts of compute, {sum(held)} of {len(held)} intervals held the losses above")
    sizes = [row for row in evidence.backtest if row.what == SIZE and row.error is not None]
    if sizes:
        worst = max(sizes, key=lambda row: abs(row.error or 0.0))
        if abs(worst.error or 0.0) > math.log(FORETOLD_N):
            told.append(
                f"fitted below {worst.cut:.3g} FLOP, N_opt at {worst.c:.3g} FLOP is off by a factor of "
                f"{math.exp(abs(worst.error or 0.0)):.2g}"
            )
    return told


def _why(result: FitResult, evidence: Evidence) -> str:
    """What was checked, and how it came out."""
    low, high = result.intervals["a"]  # type: ignore[misc]
    told = [f"the exponent is known to {(high - low) / 2:.2f} either way"]
    worst = max(evidence.by_size, key=lambda one: abs(one["a"]))
    told.append(f"without any one of {len(evidence.by_size)} sizes it changes by {abs(worst['a']):.2f} or less")
    rows = _checked(evidence.backtest)
    cuts, held = len({row.cut for row in rows}), [row.held for row in rows if row.held is not None and row.what == RUN]
    sizes = [abs(row.error or 0.0) for row in rows if row.what == SIZE]
    found = [f"{sum(held)} of {len(held)} intervals held the losses above"] if held else []
    found += [f"N_opt was off by a factor of {math.exp(max(sizes)):.2g} or less"] if sizes else []
    found = found or [f"losses were off by {max(abs(row.error or 0.0) for row in rows):.2g} of their logarithm or less"]
    told.append(f"fitted below {cuts} cut{'s' if cuts > 1 else ''} of compute, {' and '.join(found)}")
    if evidence.sensitivity:
        most, several = max(abs(one["a"]) for one in evidence.sensitivity), len(evidence.sensitivity) > 1
        read = f"{len(evidence.sensitivity)} other reading{'s' if several else ''}"
        told.append(f"in {read} of the curves or of C it changes by {most:.2f} or less")
    apart = {other for other, _, _ in _elsewhere(result, evidence)}
    for pair in evidence.pairs:
        if result.approach in pair["approaches"]:
            other = next(one for one in pair["approaches"] if one != result.approach)
            if other in apart:
                told.append(f"the {other} approach has N_opt a factor of {pair['factor']:.2g} away and is known worse")
            elif pair["in_errors"] is not None:
                told.append(f"the {other} approach has an exponent {pair['in_errors']:.1f} joint standard errors away")
    return "; ".join(told)
