"""Why a law is not believed at all: it is not known well enough to choose a size by, one size decides it, or another
approach or the models' own cost contradicts it."""

from __future__ import annotations

import math

from analysis.fits.diagnose.evidence import Evidence, is_assumed
from analysis.fits.diagnose.side_by_side import ERRORS
from analysis.fits.fit import Fit
from arch.amounts import count, counted

WIDE_A = 0.08  # half of the interval of a: more does not tell how to split 100 times the compute by a factor of 1.4
WIDE_N = 1.5  # factor from N_opt to an end of its interval
ONE_SIZE_A = 0.07  # change of a when one size is left out
ONE_SIZE_N = 1.3  # factor of N_opt when one size is left out
TIED = 0.01  # probability of alpha and beta this far apart, where the form assumes that they are one


def reasons_against(result: Fit, evidence: Evidence) -> list[str]:
    return [*_known(result), *_one_size(evidence), *_contradicted(result, evidence)]


def _known(result: Fit) -> list[str]:
    told = []
    missing = result.reasons
    for name, words, one in (("a", "the exponent of N_opt", result.a), ("N_opt", "N_opt", result.n_opt)):
        if one.value is None:
            why = missing.get("N_opt") or missing.get(name) or "see the fit"
            return [f"N_opt is not identified: {why}"]
        if one.interval is None and not (name == "a" and is_assumed(result)):
            why = "; ".join(f"{key}: {reason}" for key, reason in missing.items())
            if not why:  # where intervals were made at all, `method` says how, else why not
                made = result.intervals.level is not None
                why = "too few of its replicates could be fitted" if made else result.intervals.method
            return [f"{words} has no interval" + (f" ({why})" if why else "")]
    if is_assumed(result):
        p = None if result.parametric is None else result.parametric.p_tied
        if p is None:
            told.append("the form assumes alpha = beta, which was not tested")
        elif p <= TIED:
            told.append(f"the form assumes alpha = beta, which these points reject (p = {p:.2g})")
    else:
        low, high = result.a.interval or (-math.inf, math.inf)
        if not (high - low) / 2 <= WIDE_A:
            told.append(f"the exponent is known to ±{(high - low) / 2:.2f} only (limit {WIDE_A})")
    low, high = result.n_opt.interval or (-math.inf, math.inf)
    n_opt = result.n_opt.value or math.nan
    factor = max(n_opt / low if low > 0 else math.inf, high / n_opt)
    if not factor <= WIDE_N:
        size = f"a factor of {factor:.2g}" if math.isfinite(factor) else "no factor at all"
        told.append(f"N_opt in the middle of the range is known to {size} only (limit {WIDE_N})")
    return told


def _one_size(evidence: Evidence) -> list[str]:
    told = []
    if needed := [one["size"] for one in evidence.by_size if one["a"] is None]:
        told.append(f"without the size {' or '.join(map(_size, needed))} nothing is identified")
    known = [one for one in evidence.by_size if one["a"] is not None]
    decisive = [one for one in known if abs(one["a"]) > ONE_SIZE_A or abs(one["log_n_opt"]) > math.log(ONE_SIZE_N)]
    if decisive:
        most = max(decisive, key=lambda one: abs(one["a"]) / ONE_SIZE_A + abs(one["log_n_opt"]) / math.log(ONE_SIZE_N))
        more = len(decisive) - 1
        others = f", and {counted(more, 'more size decides', 'more sizes decide')} it too" if more else ""
        told.append(
            f"without the size {_size(most['size'])} the exponent changes by {most['a']:+.2f} and N_opt by a factor "
            f"of {math.exp(most['log_n_opt']):.2f} (limits {ONE_SIZE_A} and {ONE_SIZE_N}){others}"
        )
    return told


def _contradicted(result: Fit, evidence: Evidence) -> list[str]:
    told = []
    for pair in evidence.pairs:
        if result.approach in pair["approaches"] and (pair["in_errors"] or 0) > ERRORS:
            other = next(one for one in pair["approaches"] if one != result.approach)
            told.append(
                f"the {other} approach has an exponent {abs(pair['difference']):.2f} away, {pair['in_errors']:.1f} "
                f"joint standard errors (limit {ERRORS:g})"
            )
    if evidence.identities and evidence.identities["off"]:
        told.append("N_opt and D_opt together do not spend the compute that they are optimal for")
    return told


def _size(label: str) -> str:
    """A size by its name; one that is named by its N as people write it."""
    try:
        return count(float(label))
    except ValueError:
        return label
