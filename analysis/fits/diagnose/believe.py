"""Whether to believe a law, with the reasons: `believe`, `believe inside the range` or `do not believe`.

What is judged is N_opt and its exponent. A law that is not known well enough to choose a size by, or that rests on one
size, or that another approach contradicts, is not believed. One whose optimum lies where nothing was trained, that
did not foretell the study's own largest runs, that changes with how the curves are read, that misses its points by more
than seeds differ, or that no size left out and no backtest checked, is believed inside the range alone. The thresholds
were chosen on simulated studies of six sizes and equal tokens (docs/research/verdicts.md has the confusion matrix).
"""

from __future__ import annotations

import math

from analysis.fits.diagnose.against import reasons_against
from analysis.fits.diagnose.backtest import RUN, SIZE
from analysis.fits.diagnose.evidence import Evidence, compared_rows, elsewhere
from analysis.fits.diagnose.limits import reasons_to_stay_inside
from analysis.fits.fit import BELIEVE, DO_NOT, INSIDE, Fit, Verdict
from arch.amounts import counted, counted_of


def verdict_on(result: Fit, evidence: Evidence) -> Verdict:
    """The verdict on the N_opt of one law."""
    if against := reasons_against(result, evidence):
        return Verdict(DO_NOT, tuple(against))
    if limits := reasons_to_stay_inside(result, evidence):
        return Verdict(INSIDE, tuple(limits))
    return Verdict(BELIEVE, (_why(result, evidence),))


def _factor(log: float) -> str:
    """exp(log) in two digits, of which one at least tells it from 1."""
    factor = math.exp(log)
    return f"{factor:.2f}" if factor < 1.1 else f"{factor:.2g}"


def _why(result: Fit, evidence: Evidence) -> str:
    """What was checked, and how it came out."""
    low, high = result.a.interval or (-math.inf, math.inf)
    half = (high - low) / 2
    told = [f"the exponent is known to ±{half:.2f}" if half >= 0.005 else f"the exponent is known to ±{half:.1g}"]
    worst = max(evidence.by_size, key=lambda one: abs(one["a"]))
    told.append(f"without any one of {len(evidence.by_size)} sizes it changes by {abs(worst['a']):.2f} or less")
    rows = compared_rows(evidence.backtest)
    cuts, held = len({row.cut for row in rows}), [row.held for row in rows if row.held is not None and row.what == RUN]
    sizes = [abs(row.error or 0.0) for row in rows if row.what == SIZE]
    found = [f"{counted_of(sum(held), len(held), 'interval')} held the losses above"] if held else []
    found += [f"N_opt was off by a factor of {_factor(max(sizes))} or less"] if sizes else []
    found = found or [f"losses were off by {max(abs(row.error or 0.0) for row in rows):.2g} of their logarithm or less"]
    told.append(f"fitted below {counted(cuts, 'cut')} of compute, {' and '.join(found)}")
    if evidence.sensitivity:
        most, several = max(abs(one["a"]) for one in evidence.sensitivity), len(evidence.sensitivity) > 1
        read = f"{len(evidence.sensitivity)} other reading{'s' if several else ''}"
        told.append(f"in {read} of the curves or of C it changes by {most:.2f} or less")
    apart = {other for other, _, _ in elsewhere(result, evidence)}
    for pair in evidence.pairs:
        if result.approach in pair["approaches"]:
            other = next(one for one in pair["approaches"] if one != result.approach)
            if other in apart:
                told.append(f"the {other} approach has N_opt a factor of {pair['factor']:.2g} away and is known worse")
            elif pair["in_errors"] is not None:
                told.append(f"the {other} approach has an exponent {pair['in_errors']:.1f} joint standard errors away")
    return "; ".join(told)
