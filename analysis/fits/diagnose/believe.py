"""Whether to believe a law, with the reasons: `believe`, `believe inside the range` or `do not believe`.

What is judged is N_opt and its exponent. A law that is not known well enough to choose a size by, or that rests on one
size, or that another approach contradicts, is not believed. One whose optimum lies where nothing was trained, or that
did not foretell the study's own largest runs, is believed inside the range alone. The thresholds were chosen on
simulated studies of six sizes and equal tokens (NOTES.md has the confusion matrix).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.fits.diagnose.backtest import RUN, SIZE, Row
from analysis.fits.diagnose.side_by_side import ERRORS
from analysis.fits.result import BELIEVE, DO_NOT, INSIDE, FitResult, Verdict

WIDE_A = (
    0.08  # half of the interval of a: more does not tell how to split a hundred times the compute by a factor of 1.4
)
WIDE_N = 1.5  # factor from N_opt to an end of its interval
ONE_SIZE_A = 0.07  # change of a when one size is left out
ONE_SIZE_N = 1.3  # factor of N_opt when one size is left out
BEGINNING_A = 0.05  # change of a when twice as much of the beginning of the curves is left out
WIDE_BEYOND = 2.0  # factor from N_opt to an end of its interval, beyond the range
FAR = 100.0  # times the largest compute of the fit; no backtest reaches as far
HELD = 0.8  # share of a backtest's intervals that must hold
FORETOLD_N = 1.5  # factor by which a backtest's N_opt may be off
ENOUGH = 5  # intervals of a backtest from which on their share counts


@dataclass(frozen=True)
class Evidence:
    """What a verdict is drawn from beside the result; what was not computed is left empty, and counts for nothing.

    by_size: influence.leave_out(by="size"); pairs: side_by_side.compare; identities, outside: of side_by_side;
    sensitivity: influence.sensitivity; backtest: rows of this approach.
    """

    by_size: Sequence[Mapping[str, Any]] = ()
    pairs: Sequence[Mapping[str, Any]] = ()
    identities: Mapping[str, Any] | None = None
    outside: Sequence[Mapping[str, Any]] = ()
    sensitivity: Sequence[Mapping[str, Any]] = ()
    backtest: Sequence[Row] = ()


def judge(result: FitResult, evidence: Evidence) -> Verdict:
    """The verdict on the N_opt of one law."""
    against = [*_known(result), *_one_size(evidence), *_contradicted(result, evidence)]
    if against:
        return Verdict(DO_NOT, tuple(against))
    limits = [*_beyond(result, evidence), *_early(evidence), *_foretold(evidence)]
    if limits:
        return Verdict(INSIDE, tuple(limits))
    return Verdict(BELIEVE, (_why(result),))


def _known(result: FitResult) -> list[str]:
    told = []
    names = {"a": "the exponent of N_opt", "N_opt": "N_opt"}
    missing = result.diagnostics.get("not_identified") or {}
    for name, words in names.items():
        if result.params.get(name) is None:
            why = missing.get("n_opt") or missing.get(name) or "see the fit"
            return [f"N_opt is not identified: {why}"]
        if result.intervals.get(name) is None:
            why = "; ".join(f"{key}: {one}" for key, one in missing.items()) or result.interval.get("method", "")
            return [f"{words} has no interval" + (f" ({why})" if why else "")]
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
        if one["C"] <= last:
            told.append(
                f"at {one['C']:.3g} FLOP the optimal {one['value']:.3g} {kind} lie a factor of {one['factor']:.2g} "
                "outside of what was trained"
            )
    return told


def _early(evidence: Evidence) -> list[str]:
    first = next((one for one in evidence.sensitivity if one["variant"].startswith("from 20%")), None)
    if first is not None and first["a"] is not None and abs(first["a"]) > BEGINNING_A:
        return [f"without the first fifth of every curve the exponent changes by {first['a']:+.2f}"]
    return []


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


def _why(result: FitResult) -> str:
    low, high = result.intervals["a"]  # type: ignore[misc]
    return (
        f"the exponent is known to {(high - low) / 2:.2f} either way, no single size decides it, and nothing that was "
        "checked contradicts it"
    )
