"""The laws of N_opt by every approach side by side, with verdicts, reasons and backtests: tables of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from arch.amounts import count

NAMES = {"envelope": "envelope", "isoflop": "isoFLOP", "parametric": "parametric"}
WHAT = {"loss of a run": "loss of a run", "lowest loss": "lowest loss at a compute", "N_opt": "N_opt"}
NOTES = (
    "Envelope: crossings of the curves of neighbouring sizes. IsoFLOP: parabolas in log N through the losses at one "
    "compute, less the parabola's bias on the parametric surface. Parametric: L = E + A / N^alpha + B / D^beta by "
    "least squares on the loss. All read the same runs, so their agreement is weaker evidence than that of three "
    "studies.",
    "The verdict weighs how well exponent and size are known, whether one size decides them, what the other approaches "
    "say, whether the optimum lies within what was trained, and whether the law foretold the study's own largest runs. "
    "In simulated studies of six sizes it let one wrong parametric law of 60 pass, and turned away half of those that "
    "were right.",
)


def approach_rows(approaches: dict[str, Any]) -> list[dict[str, str]]:
    """A row an architecture and approach: exponent, N_opt at two computes with intervals, and the verdict."""
    rows = []
    for law in approaches["laws"]:
        row = {"architecture": name_of(law["group"]), "approach": NAMES[law["approach"]]}
        row["a (N_opt exponent)"] = _value(law["params"].get("a"), law["intervals"].get("a"), ".3f")
        for at in law["diagnostics"].get("optimum") or ():
            row[f"N_opt at {power_of_ten(at['C'])} FLOP"] = _size(at)
        rows.append(row | {"verdict": law["verdict"]["believe"] if law["verdict"] else ""})
    for one in approaches["not_fitted"]:
        rows.append(
            {"architecture": name_of(one["group"]), "approach": NAMES[one["approach"]], "verdict": "not fitted"}
        )
    return rows


def approach_notes(approaches: dict[str, Any]) -> list[str]:
    """The reasons of every verdict, a line a law."""
    lines = [
        f"{name_of(law['group'])}, {NAMES[law['approach']]}: {law['verdict']['believe']}. "
        f"{_sentence(law['verdict']['reasons'])}"
        for law in approaches["laws"]
        if law["verdict"]
    ]
    lines += [
        f"{name_of(one['group'])}, {NAMES[one['approach']]}: not fitted. {_sentence([one['reason']])}"
        for one in approaches["not_fitted"]
    ]
    return [*lines, *NOTES]


def backtest_rows(approaches: dict[str, Any]) -> list[dict[str, str]]:
    """What laws fitted below cuts of compute foretold of the runs above: a row an architecture, approach and quantity,
    over all ratios of extrapolation."""
    rows = []
    for law in approaches["laws"]:
        for one in law["diagnostics"]["checks"]["summary"]:
            low, high = one["ratio"]
            rows.append(
                {
                    "architecture": name_of(law["group"]),
                    "approach": NAMES[law["approach"]],
                    "foretold": WHAT.get(one["what"], one["what"]),
                    "compute beyond the cut": f"{low:.3g} to {high:.3g} times",
                    "predictions": str(one["n"]),
                    "median error": f"{one['error']:.2%}",
                    "largest": f"{one['largest']:.2%}",
                    "intervals that held": "none given"
                    if one["held"] is None
                    else f"{round(one['held'] * one['n_intervals'])} of {one['n_intervals']}",
                }
            )
    return rows


def _size(at: dict[str, Any]) -> str:
    ends = (at.get("intervals") or {}).get("N")
    if at["N"] is None:
        return "not identified"
    tail = "" if ends is None or None in ends else f" [{count(ends[0])}, {count(ends[1])}]"
    return count(at["N"]) + tail


def _value(value: float | None, ends: Sequence[float | None] | None, form: str) -> str:
    if value is None:
        return "not identified"
    tail = "" if ends is None or ends[0] is None or ends[1] is None else f" [{ends[0]:{form}}, {ends[1]:{form}}]"
    return f"{value:{form}}{tail}"


def _sentence(reasons: Sequence[str]) -> str:
    told = "; ".join(reasons)
    return f"{told[:1].upper()}{told[1:]}." if told else ""
