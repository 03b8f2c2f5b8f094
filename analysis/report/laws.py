"""The laws of a study as rows of text: by approach with their verdicts, by FLOP convention, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.fit import D_OPT, L_OPT, N_OPT, Estimate, Fit, Law
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import number as cell
from analysis.pages.cells import shown
from analysis.run_table import CONVENTIONS
from arch.amounts import count

NAMES = {"envelope": "envelope", "isoflop": "isoFLOP", "parametric": "parametric"}
NOT_IDENTIFIED = "not identified"
NO_POWER_LAW = "no power law"
MANY = 0.1  # of the replicates: from this share on a cell says how many failed
MOST_NAMED = 3  # runs that a line names


def approach_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture and approach: exponent, optima at some computes with intervals, and the verdict."""
    rows = []
    for law in fits.laws:
        row = {"architecture": name_of(law.group), "approach": NAMES[law.approach], "a (N_opt exponent)": exponent(law)}
        for at in law.optima:
            c = power_of_ten(at.flops)
            row |= {f"N_opt at {c} FLOP": size_of(at.n_params), f"D_opt at {c} FLOP": size_of(at.n_tokens)}
        rows.append(row | {"verdict": believed(law)})
    for failure in fits.not_fitted:
        rows.append(
            {"architecture": name_of(failure.group), "approach": NAMES[failure.approach], "verdict": "not fitted"}
        )
    return rows


def approach_reasons(fits: StudyFits, not_fitted: bool = True) -> list[str]:
    """The reasons of every verdict, a line a law; and why others are not fitted."""
    lines = [(law.group, law.approach, believed(law), law.verdict.reasons) for law in fits.laws if law.verdict]
    if not_fitted:
        lines += [(failure.group, failure.approach, "not fitted", (failure.reason,)) for failure in fits.not_fitted]
    return [
        f"{name_of(group)}, {NAMES[approach]}: {verdict}. {_sentence(reasons)}"
        for group, approach, verdict, reasons in lines
    ]


def _sentence(reasons: Sequence[str]) -> str:
    joined = "; ".join(reasons)
    return f"{joined[:1].upper()}{joined[1:]}." if joined else ""


def check_rows(fits: StudyFits) -> list[dict[str, str]]:
    """What the verdicts rest on: a row a law and compute, a column a check."""
    rows = []
    for law in fits.laws:
        for claim in law.verdict.claims if law.verdict else ():
            head = {"architecture": name_of(law.group), "approach": NAMES[law.approach]}
            head["N_opt at"] = f"{power_of_ten(claim.c)} FLOP"
            rows.append(head | {check.name: f"{check.state}: {check.words}" for check in claim.checks})
    return rows


def size_of(estimate: Estimate) -> str:
    """N or D of an optimum, with its interval."""
    if estimate.value is None:
        return NOT_IDENTIFIED
    tail = "" if estimate.ends is None else f" [{count(estimate.ends[0])}, {count(estimate.ends[1])}]"
    return cell(f"{count(estimate.value)}{tail}", estimate.value, estimate.ends)


def exponent(law: Fit) -> str:
    """a of N_opt ~ C^a, with its interval."""
    return shown(law.a.value, ".3f", law.a.ends) or NOT_IDENTIFIED


def believed(law: Fit) -> str:
    """The verdict in its words; "" where there is none."""
    return law.verdict.believe if law.verdict else ""


def law_rows(fits: StudyFits, conventions: Sequence[str | None] = CONVENTIONS, digits: int = 4) -> list[dict[str, str]]:
    """The envelope's laws L = beta C^alpha, N_opt ~ C^a, D_opt ~ C^b with their intervals: a row an architecture and
    FLOP convention (None: that of the fits)."""
    rows = []
    for group in fits.groups:
        for convention in conventions:
            fit = fits.envelope(group.name) if convention is None else fits.envelope(group.name, convention)
            row = {"architecture": name_of(group.name)} | ({"C": convention} if convention else {})
            if fit is None:
                rows += [] if group.fitted else [row | {"alpha (L exponent)": "not fitted"}]
                continue
            loss = fit.law(L_OPT)
            row["alpha (L exponent)"] = law_cell(loss, loss.exponent, f".{digits}f")
            row["beta (L at C = 1 FLOP)"] = law_cell(loss, loss.coefficient, f".{digits}g")
            row["a (N_opt exponent)"] = law_cell(fit.law(N_OPT), fit.law(N_OPT).exponent, f".{digits}f")
            row["b (D_opt exponent)"] = law_cell(fit.law(D_OPT), fit.law(D_OPT).exponent, f".{digits}f")
            rows.append(row)
    return rows


def law_cell(law: Law, estimate: Estimate, form: str) -> str:
    """A number of a law with its interval, and what speaks against it."""
    if not law.identified:
        return NOT_IDENTIFIED
    failed = law.replicates_lost / law.replicates if law.replicates_lost and law.replicates else 0.0
    notes = (
        [f"{'' if estimate.interval else 'no interval: '}{failed:.0%} of replicates failed"] if failed >= MANY else []
    )
    return shown(estimate.value, form, estimate.ends, ", ".join([*notes, *([NO_POWER_LAW] if law.curved else [])]))


def law_notes(fits: StudyFits) -> list[str]:
    """What is missing or does not hold in the laws of the envelope, and why; and which runs are in no fit."""
    lines, steep = list(fits.warnings), []
    for group in fits.groups:
        fit, name = fits.envelope(group.name), name_of(group.name)
        if fit is None:
            lines.append(f"{name}: not fitted: {group.reason}")
            continue
        loss, n_opt = fit.law(L_OPT), fit.law(N_OPT)
        for law, exponents in ((loss, "alpha, beta"), (n_opt, "a, b")):
            if not law.identified:
                lines.append(f"{name}: {exponents} not identified: {law.reason}")
        if loss.curved and loss.about_loss is not None:
            off = math.expm1(loss.about_loss.off_line or 0.0)
            lines.append(
                f"{name}: a pure power law does not describe this curve: its points lie {off:.1%} off the line. The "
                f"law has no interval and predicts no loss"
            )
            steep += [group] if loss.about_loss.steep_early and not group.range_stated else []
    if steep:
        keys = ", ".join(dict.fromkeys(f"fit.range.{group.arch}" for group in steep))
        lines.append(
            f"{', '.join(name_of(group.name) for group in steep)}: the loss falls faster at the start of the range. To "
            f"leave that part out, set {keys} in the study file"
        )
    return lines + unused_lines(fits)


def unused_lines(fits: StudyFits) -> list[str]:
    """Runs that enter no curve, those that are so for one reason in one line; and those of which single rows or
    evaluations are left out."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for run in (run for group in fits.groups for run in group.left_out):
        single, several = "enters no curve of its size", "enter no curve of their size"
        if run.state != "done":
            single = f"left out of the fits, its state is {run.state}"
            several = f"are left out of the fits, their state is {run.state}"
        reasons.setdefault((single, several, f": {run.reason}" if run.reason else ""), []).append(run.run_id)
    lines = [
        f"{runs[0]}: {single}{why}" if len(runs) == 1 else f"{len(runs)} runs {several}{why}: {named(runs)}"
        for (single, several, why), runs in reasons.items()
    ]
    return lines + [
        f"{run['run_id']}: single rows or evaluations of it are left out, not the run: {run['why']}"
        for run in fits.skipped
    ]


def named(runs: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(runs) - MOST_NAMED} more (fits.json names all)" if len(runs) > MOST_NAMED else ""
    return ", ".join(runs[:MOST_NAMED]) + more


def sizes_left_out(fits: StudyFits) -> dict[str, list[str]]:
    """The sizes of each group that its parametric law is fitted without (fit.stopped); groups without one are not in
    it."""
    gone = {}
    for law in fits.laws if fits.settings.stopped == "leave_out" else ():
        if law.parametric is None:
            continue
        without = [size.size for size in fits.group(law.group).sizes if size.size not in law.parametric.sizes]
        if law.parametric.sizes and without:
            gone[law.group] = without
    return gone
