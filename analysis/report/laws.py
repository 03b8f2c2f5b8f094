"""Laws of the optimal size by three approaches: which one is believed most, their tables, and what speaks against
them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.fit import D_OPT, FAILED, L_OPT, N_OPT, Check, Estimate, Fit, Law
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import shown
from analysis.report.section import Section, Table
from analysis.report.words import NAMES, NOT_IDENTIFIED, believed, exponent, listed, optimum_cells, size_of

NO_POWER_LAW = "no power law"
MANY = 0.1  # of the replicates: from this share on a cell says how many failed
FAILURES = {  # of the checks of analysis.fits.verdicts
    "inside": "the optimum lies outside the sizes and tokens that were trained",
    "fits": "the losses refute its form",
    "rehearsed": "laws of the smaller runs miss the optimum of the larger ones",
    "stable": "the optimum changes too much when one size is left out",
}
ORDER = ("envelope", "parametric", "isoflop")  # of those that are believed alike


def reach(law: Fit) -> float:
    """How many times the largest compute a law is believed up to; 0 where it is not."""
    return law.verdict.reach if law.verdict else 0.0


def _trust(law: Fit) -> tuple[float, int]:
    """The smaller the more a law is believed, of those alike by ORDER."""
    return -reach(law), ORDER.index(law.approach)


def leading_law(fits: StudyFits, group: str) -> Fit | None:
    """The law of the optimal size that is believed most, of those alike the first of ORDER; None where none is."""
    return min((law for law in fits.of(group) if reach(law)), key=_trust, default=None)


def drawn_law(fits: StudyFits, group: str) -> Fit | None:
    """The law that figures draw, also where none is believed: of those that know a size the one that is believed most,
    of those alike the first of ORDER. None where that is the envelope's, or where there is none."""
    laws = [law for law in fits.of(group) if law.a.value is not None and (law.approach == "envelope" or law.curve)]
    first = min(laws, key=_trust, default=None)
    return None if first is None or first.approach == "envelope" else first


def doubted(fits: StudyFits, approach: str) -> list[str]:
    """The groups whose law by an approach has a verdict and is not believed."""
    return [law.group for law in fits.laws if law.approach == approach and not reach(law)]


def law_sentences(fits: StudyFits) -> list[str]:
    """How far the optimal size of each architecture is known, and why that of the others is not: those of which the
    same holds in one sentence, an architecture alone with its numbers."""
    known: dict[str, list[Fit]] = {}
    unknown: dict[str, list[Fit]] = {}
    for group in dict.fromkeys(law.group for law in fits.laws):
        if law := leading_law(fits, group):
            times = f"{reach(law):.3g} times " if reach(law) > 1 else ""
            known.setdefault(f"{times}the largest compute ({NAMES[law.approach]} law)", []).append(law)
        else:
            laws = {law.approach: law for law in fits.of(group)}
            first = laws.get("parametric") or next(iter(laws.values()))
            unknown.setdefault(f"{NAMES[first.approach]}: {_why(first)}", []).append(first)
    return [
        *(f"The optimal size of {_names(laws)} is known up to {text}{_optimum(laws)}." for text, laws in known.items()),
        *(
            f"No law of the optimal size is believed for {_names(laws)}; {_numbers(laws) or text}."
            for text, laws in unknown.items()
        ),
    ]


def _names(laws: Sequence[Fit]) -> str:
    return listed([name_of(law.group) for law in laws])


def _optimum(laws: Sequence[Fit]) -> str:
    """Of one law alone, the largest size that it is believed to give, and its exponent."""
    far = [at for at in laws[0].optima if at.flops <= reach(laws[0]) * laws[0].range[1] * (1 + 1e-9)]
    if len(laws) > 1 or not far:
        return ""
    at = max(far, key=lambda at: at.flops)
    return f": {size_of(at.n_params)} parameters at {power_of_ten(at.flops)} FLOP, growing as C^{exponent(laws[0])}"


def _failed(law: Fit) -> Check | None:
    """The first check that a law fails at the largest compute."""
    claims = law.verdict.claims if law.verdict else ()
    return next((check for check in claims[0].checks if check.state == FAILED), None) if claims else None


def _why(law: Fit) -> str:
    """Without numbers, so that one sentence holds for several architectures."""
    if check := _failed(law):
        return FAILURES[check.name]
    return law.verdict.reasons[0].partition(":")[0] if law.verdict else ""


def _numbers(laws: Sequence[Fit]) -> str:
    """Of one law alone, the check that it fails with its numbers."""
    check = _failed(laws[0]) if len(laws) == 1 else None
    return f"{NAMES[laws[0].approach]}: {check.words}" if check else ""


def laws_section(fits: StudyFits) -> Section:
    return Section(
        "The optimal size by three approaches, and whether to believe it",
        tables=[
            Table("approaches", approach_rows(fits)),
            Table("checks", check_rows(fits), "What the verdicts rest on: the checks of each law at each compute"),
        ],
        notes=not_fitted_lines(fits),
        more_title="The reasons of every verdict",
        more=approach_reasons(fits),
    )


def approach_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture and approach: exponent, optima at some computes with intervals, and the verdict."""
    return [
        {"architecture": name_of(law.group), "approach": NAMES[law.approach]}
        | optimum_cells(law)
        | {"verdict": believed(law)}
        for law in fits.laws
    ]


def approach_reasons(fits: StudyFits) -> list[str]:
    """The reasons of every verdict, a line a law."""
    lines = []
    for law in fits.laws:
        reasons = "; ".join(law.verdict.reasons if law.verdict else ())
        text = f"{reasons[:1].upper()}{reasons[1:]}." if reasons else ""
        lines.append(f"{name_of(law.group)}, {NAMES[law.approach]}: {believed(law)}. {text}")
    return lines


def not_fitted_lines(fits: StudyFits) -> list[str]:
    """Which approaches are not fitted and why, a line a reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for failure in fits.not_fitted:
        groups.setdefault((NAMES[failure.approach], failure.reason), []).append(name_of(failure.group))
    return [f"{approach}: not fitted for {listed(names)}: {why}" for (approach, why), names in groups.items()]


def check_rows(fits: StudyFits) -> list[dict[str, str]]:
    """What the verdicts rest on: a row a law and compute, a column a check."""
    rows = []
    for law in fits.laws:
        for claim in law.verdict.claims if law.verdict else ():
            head = {"architecture": name_of(law.group), "approach": NAMES[law.approach]}
            head["N_opt at"] = f"{power_of_ten(claim.c)} FLOP"
            rows.append(head | {check.name: f"{check.state}: {check.words}" for check in claim.checks})
    return rows


def envelope_section(fits: StudyFits) -> Section:
    if fits.settings.is_of_ends:  # no curves
        return Section("", notes=fits.warnings)
    return Section("Laws of the envelope", tables=[Table("envelope", law_rows(fits))], notes=law_notes(fits))


def law_rows(fits: StudyFits) -> list[dict[str, str]]:
    """The envelope's laws L = beta C^alpha, N_opt ~ C^a, D_opt ~ C^b with their intervals, a row an architecture."""
    rows = []
    for group in fits.groups:
        row, fit = {"architecture": name_of(group.name)}, fits.envelope(group.name)
        if fit is None:
            rows.append(row | {"alpha (L exponent)": "not fitted"})
            continue
        loss = fit.law(L_OPT)
        row["alpha (L exponent)"] = law_cell(loss, loss.exponent, ".3f")
        row["beta (L at C = 1 FLOP)"] = law_cell(loss, loss.coefficient, ".3g")
        row["a (N_opt exponent)"] = law_cell(fit.law(N_OPT), fit.law(N_OPT).exponent, ".3f")
        row["b (D_opt exponent)"] = law_cell(fit.law(D_OPT), fit.law(D_OPT).exponent, ".3f")
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
    """What is missing or does not hold in the laws of the envelope, and why."""
    lines, curved, steep = list(fits.warnings), [], []
    for group in fits.groups:
        fit, name = fits.envelope(group.name), name_of(group.name)
        if fit is None:
            lines.append(f"{name}: not fitted: {group.reason}")
            continue
        loss, n_opt = fit.law(L_OPT), fit.law(N_OPT)
        for law, exponents in ((loss, "alpha, beta"), (n_opt, "a, b")):
            if not law.identified and (law is loss or fit.verdict is None):  # a verdict has it among its reasons
                lines.append(f"{name}: {exponents} not identified: {law.reason}")
        if loss.curved and loss.about_loss is not None:
            curved.append(f"{name} ({math.expm1(loss.about_loss.off_line or 0.0):.1%} off the line)")
            steep += [group] if loss.about_loss.steep_early and not group.range_stated else []
    if curved:
        lines.append(
            f"A pure power law does not describe the losses of {listed(curved)}: these laws have no interval and "
            f"predict no loss"
        )
    if steep:
        keys = ", ".join(dict.fromkeys(f"fit.range.{group.arch}" for group in steep))
        lines.append(
            f"{', '.join(name_of(group.name) for group in steep)}: the loss falls faster at the start of the range. To "
            f"leave that part out, set {keys} in the study file"
        )
    return lines


def sizes_left_out(fits: StudyFits) -> dict[str, list[str]]:
    """The sizes of each group that its parametric law is fitted without (fit.stopped); groups without one are not in
    it."""
    gone: dict[str, list[str]] = {}
    for law in fits.laws if fits.settings.stopped == "leave_out" else ():
        if law.parametric is not None and law.parametric.sizes:
            without = [size.size for size in fits.group(law.group).sizes if size.size not in law.parametric.sizes]
            gone |= {law.group: without} if without else {}
    return gone
