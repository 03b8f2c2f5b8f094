"""The laws of N_opt by every approach side by side, with verdicts, reasons and backtests: tables of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.fit import Estimate, Fit
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import number, shown, signed
from arch.amounts import count

NAMES = {"envelope": "envelope", "isoflop": "isoFLOP", "parametric": "parametric"}
NOT_IDENTIFIED = "not identified"
WHAT = {"loss of a run": "loss of a run", "lowest loss": "lowest loss at a compute", "N_opt": "N_opt"}
NOTES = (
    "Envelope: crossings of the curves of neighbouring sizes. IsoFLOP: the lowest loss over N at several computes, "
    "each read from the sizes about it. Parametric: L = E + A / N^alpha + B / D^beta by least squares on the loss. "
    "All read the same runs, so their agreement is weaker evidence than that of three studies.",
    "The verdict weighs how well exponent and size are known, whether one size decides them, what the other approaches "
    "say, whether the optimum lies within what was trained, and whether the law foretold the study's own largest runs. "
    "In simulated studies of six sizes it let one wrong parametric law of 60 pass, and turned away half of those that "
    "were right.",
)


def approach_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture and approach: exponent, N_opt at two computes with intervals, and the verdict."""
    rows = []
    for law in fits.laws:
        row = {"architecture": name_of(law.group), "approach": NAMES[law.approach]}
        row["a (N_opt exponent)"] = exponent(law)
        for at in law.optima:
            row[f"N_opt at {power_of_ten(at.flops)} FLOP"] = size_of(at.n_params)
        rows.append(row | {"verdict": believed(law)})
    for one in fits.not_fitted:
        rows.append({"architecture": name_of(one.group), "approach": NAMES[one.approach], "verdict": "not fitted"})
    return rows


def approach_notes(fits: StudyFits) -> list[str]:
    """What belongs under the table: whether the approaches contradict each other, and how they work."""
    return [*disagreements(fits), *NOTES]


def approach_reasons(fits: StudyFits, not_fitted: bool = True) -> list[str]:
    """The reasons of every verdict, a line a law; and why others are not fitted."""
    lines = [
        f"{name_of(law.group)}, {NAMES[law.approach]}: {believed(law)}. {_sentence(law.verdict.reasons)}"
        for law in fits.laws
        if law.verdict
    ]
    return lines + [
        f"{name_of(one.group)}, {NAMES[one.approach]}: not fitted. {_sentence([one.reason])}"
        for one in (fits.not_fitted if not_fitted else ())
    ]


def disagreements(fits: StudyFits) -> list[str]:
    """Of architectures that several approaches fitted: which of these contradict each other, and by how much."""
    lines, agree = [], []
    for group, beside in fits.side_by_side.items():
        apart = []
        for pair in beside["pairs"]:
            names = " and ".join(NAMES[name] for name in pair["approaches"])
            by = [f"N_opt differs by a factor of up to {pair['factor']:.2g}"] if pair["factor"] is not None else []
            if pair["in_errors"] is not None:
                by.append(f"exponents by {abs(pair['difference']):.2f} ({pair['in_errors']:.1f} joint standard errors)")
            if pair["disagree"]:
                apart.append(f"{names}: {', '.join(by)}")
        if apart:
            lines.append(f"{name_of(group)}: the approaches disagree. {'; '.join(apart)}.")
        elif beside["pairs"]:
            agree.append(name_of(group))
    if agree:
        lines.append(f"{', '.join(agree)}: the approaches do not contradict each other.")
    return lines


def reading_rows(fits: StudyFits) -> list[dict[str, str]]:
    """How much the reading of the runs decides: a row a law, a column a reading (count of compute, beginning of the
    curves, smoothing), the change of a and the factor of N_opt in it."""
    laws = [(law, (law.checks or {}).get("sensitivity", ())) for law in fits.laws]
    every = sorted({one["variant"] for _, read in laws for one in read})
    rows = []
    for law, read in laws:
        found = {one["variant"]: one for one in read}
        if found:
            head = {"architecture": name_of(law.group), "approach": NAMES[law.approach]}
            rows.append(head | {name: _change(found.get(name)) for name in every})
    return rows


def _change(one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    if one["a"] is None:
        return NOT_IDENTIFIED
    times = "" if one["log_n_opt"] is None else f", {math.exp(one['log_n_opt']):.2f} times"
    return f"{signed(one['a'], '.2f')}{times}"


def _off(what: str, log_error: float) -> str:
    """Of a size the factor, of a loss the share; errors are of the logarithm."""
    return f"{math.exp(log_error):.2f} times" if what == "N_opt" else f"{math.expm1(log_error):.2%}"


def backtest_rows(fits: StudyFits) -> list[dict[str, str]]:
    """What laws fitted below cuts of compute foretold of the runs above: a row an architecture, approach and quantity,
    over all ratios of extrapolation."""
    rows = []
    for law in fits.laws:
        for one in (law.checks or {}).get("summary", ()):
            low, high = one["ratio"]
            rows.append(
                {
                    "architecture": name_of(law.group),
                    "approach": NAMES[law.approach],
                    "foretold": WHAT.get(one["what"], one["what"]),
                    "compute beyond the cut": f"{low:.3g} to {high:.3g} times",
                    "predictions": str(one["n"]),
                    "median error": _off(one["what"], one["error"]),
                    "largest": _off(one["what"], one["largest"]),
                    "intervals that held": "none given"
                    if one["held"] is None
                    else f"{round(one['held'] * one['n_intervals'])} of {one['n_intervals']}",
                }
            )
    return rows


def size_of(one: Estimate) -> str:
    """N or D of an optimum, with its interval."""
    if one.value is None:
        return NOT_IDENTIFIED
    tail = "" if one.ends is None else f" [{count(one.ends[0])}, {count(one.ends[1])}]"
    return number(f"{count(one.value)}{tail}", one.value, one.ends)


def exponent(law: Fit) -> str:
    """a of N_opt ~ C^a, with its interval."""
    return shown(law.a.value, ".3f", law.a.ends) or NOT_IDENTIFIED


def believed(law: Fit) -> str:
    """The verdict in its words; "" where there is none."""
    return law.verdict.believe if law.verdict else ""


def _sentence(reasons: Sequence[str]) -> str:
    joined = "; ".join(reasons)
    return f"{joined[:1].upper()}{joined[1:]}." if joined else ""
