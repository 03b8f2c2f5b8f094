"""The laws of N_opt by every approach side by side, with verdicts, reasons and checks: tables of the report."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.fit import Estimate, Fit
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import number, shown
from arch.amounts import count

NAMES = {"envelope": "envelope", "isoflop": "isoFLOP", "parametric": "parametric"}
NOT_IDENTIFIED = "not identified"
NOTES = (
    "Envelope: crossings of the curves of neighbouring sizes. IsoFLOP: the lowest loss over N at several computes, "
    "each read from the sizes about it. Parametric: L = E + A / N^alpha + B / D^beta by least squares on the loss. "
    "All read the same runs, so their agreement is weaker evidence than that of three studies.",
    "The verdict is on N_opt at a compute. It rests on four checks: N_opt and D_opt lie near what was trained, the "
    "points do not refute the form, laws fitted below cuts of the data give the optimum above them, and no one size "
    "decides it. A law is believed up to the largest compute at which all hold.",
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


def approach_notes() -> list[str]:
    """What belongs under the table: how the approaches work, and what the verdicts rest on."""
    return list(NOTES)


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


def check_rows(fits: StudyFits) -> list[dict[str, str]]:
    """What the verdicts rest on: a row a law and compute, a column a check."""
    rows = []
    for law in fits.laws:
        for claim in law.verdict.claims if law.verdict else ():
            head = {"architecture": name_of(law.group), "approach": NAMES[law.approach]}
            head["N_opt at"] = f"{power_of_ten(claim.c)} FLOP"
            rows.append(head | {one.name: f"{one.state}: {one.words}" for one in claim.checks})
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
