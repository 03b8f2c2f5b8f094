"""Which approach's law of the optimal size leads the report: the one that its checks believe most."""

from __future__ import annotations

import re

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.fit import FAILED, Fit
from analysis.fits.study_fits import StudyFits
from analysis.report.laws import NAMES, believed, exponent, size_of
from analysis.report.noise import listed

FAILURES = {  # of the checks of analysis.fits.verdicts
    "inside": "the optimum lies outside what was trained",
    "fits": "the points refute its form",
    "rehearsed": "laws of the smaller runs miss the optimum of the larger ones",
    "stable": "without one of its sizes it is another",
}
ORDER = ("envelope", "parametric", "isoflop")  # of those that are believed alike


def leading_law(fits: StudyFits, group: str) -> Fit | None:
    """The law of the optimal size that is believed most, of those alike the first of ORDER; None where none is."""
    laws = [law for law in fits.of(group) if _reach(law)]
    return min(laws, key=lambda law: (-_reach(law), ORDER.index(law.approach)), default=None)


def drawn_law(fits: StudyFits, group: str) -> Fit | None:
    """The law that figures draw, also where none is believed: of those that know a size the one that is believed most,
    of those alike the first of ORDER. None where that is the envelope's, or where there is none."""
    known = [law for law in fits.of(group) if law.approach == "envelope" or law.curve]
    laws = [law for law in known if law.a.value is not None]
    first = min(laws, key=lambda law: (-_reach(law), ORDER.index(law.approach)), default=None)
    return None if first is None or first.approach == "envelope" else first


def envelope_doubted(fits: StudyFits, group: str) -> bool:
    """Whether checks do not believe the envelope's law of the optimal size; False where none was made."""
    return any(law.approach == "envelope" and not _reach(law) for law in fits.of(group))


def optimum_sentences(fits: StudyFits, group: str) -> list[str]:
    """What the leading law says at the largest compute that all reached, and in a sentence why the others say less;
    none where no approach was tried."""
    laws, name = fits.of(group), name_of(group)
    if not laws:
        return []
    law = leading_law(fits, group)
    if law is None:
        return [f"No approach is believed for the optimal size of {name}. {_reasons(fits, group, laws)}"]
    at = law.optima[0]
    lead = (
        f"The {NAMES[law.approach]} law is believed{_upto(law)}: at C = {power_of_ten(at.flops)} FLOP the optimal "
        f"{name} has N = {size_of(at.n_params)} parameters and trains on D = {size_of(at.n_tokens)} tokens; "
        f"N_opt ~ C^{exponent(law)}."
    )
    less = _reasons(fits, group, [other for other in laws if _reach(other) < _reach(law)])
    return [lead, less] if less else [lead]


def law_sentences(fits: StudyFits) -> list[str]:
    """Of which architectures a law of the optimal size is believed, and how far; and why of the others none is."""
    sentences: dict[str, list[str]] = {}
    unbelieved: dict[str, list[str]] = {}
    for group in dict.fromkeys(law.group for law in fits.laws):
        if law := leading_law(fits, group):
            text = f"The {NAMES[law.approach]} law of the optimal size is believed{_upto(law)} for {{}}."
            sentences.setdefault(text, []).append(name_of(group))
        else:
            laws = {law.approach: law for law in fits.of(group)}
            shown = laws.get("parametric") or next(iter(laws.values()))
            text = f"No law of the optimal size is believed for {{}}; {NAMES[shown.approach]}: {_why_not(shown)}."
            unbelieved.setdefault(text, []).append(name_of(group))
    return [text.format(listed(names)) for text, names in (sentences | unbelieved).items()]


def _why_not(law: Fit) -> str:
    """What the first check says that a law fails at the largest compute, without its numbers: so one sentence holds
    for several architectures. The first reason of a law without such a check."""
    claims = law.verdict.claims if law.verdict else ()
    failed = [check.name for check in claims[0].checks if check.state == FAILED] if claims else []
    return FAILURES[failed[0]] if failed else _reason(law)


def believed_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture with any law of the optimal size: the leading one."""
    rows = []
    for group in dict.fromkeys(law.group for law in fits.laws):
        law = leading_law(fits, group)
        if law is None:
            rows.append({"architecture": name_of(group), "approach": "none is believed"})
            continue
        row = {"architecture": name_of(group), "approach": NAMES[law.approach], "a (N_opt exponent)": exponent(law)}
        for at in law.optima:
            c = power_of_ten(at.flops)
            row |= {f"N_opt at {c} FLOP": size_of(at.n_params), f"D_opt at {c} FLOP": size_of(at.n_tokens)}
        rows.append(row | {"verdict": believed(law)})
    return rows


def _reach(law: Fit) -> float:
    """How many times the largest compute a law is believed up to; 0 where it is not."""
    return law.verdict.reach if law.verdict else 0.0


def _upto(law: Fit) -> str:
    return believed(law).removeprefix("believe")


def _reasons(fits: StudyFits, group: str, laws: list[Fit]) -> str:
    """A sentence each: of these laws the first reason, and why the others could not be fitted. The page lists all."""
    sentences = []
    for law in laws:
        trust = f"is believed{_upto(law)}" if _reach(law) else "is not believed"
        sentences.append(f"The {NAMES[law.approach]} law {trust}: {_reason(law)}.")
    missing = [failure for failure in fits.not_fitted if failure.group == group]
    sentences += [f"The {NAMES[failure.approach]} law is not fitted: {_brief(failure.reason)}." for failure in missing]
    return " ".join(sentences)


def _reason(law: Fit) -> str:
    """The first one of the verdict."""
    return _brief(law.verdict.reasons[0]) if law.verdict else ""


def _brief(reason: str) -> str:
    """A reason without the details behind it, but with the limit that it misses."""
    return re.split(r": |; | \((?!limit)", reason, maxsplit=1)[0]
