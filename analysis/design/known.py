"""Whether a simulated study tells the optimal size: exponent and N_opt have narrow intervals, and no one size decides
them. A design promises that; what the study's laws are then believed in is said by analysis.fits.verdicts."""

from __future__ import annotations

import math

import numpy as np

from analysis.design.check import WIDE_A
from analysis.fits.cost import Cost
from analysis.fits.fit import N_OPT, Fit
from analysis.fits.parametric import ParametricFit
from arch.amounts import count, counted

WIDE_N = 1.5  # factor from N_opt to an end of its interval
ONE_SIZE_A, ONE_SIZE_N = 0.07, 1.3  # change of a, and factor of N_opt, when one size is left out


def reasons_unknown(fit: ParametricFit, result: Fit, cost: Cost) -> list[str]:
    """Why the exponent and N_opt in the middle of the range are not known; none where they are."""
    for name, words, one in (("a", "the exponent of N_opt", result.a), ("N_opt", "N_opt", result.n_opt)):
        if one.value is None:
            why = result.law(N_OPT).reason or result.reasons.get(name) or "see the fit"
            return [f"N_opt is not identified: {why}"]
        if one.interval is None:
            why = "; ".join(f"{key}: {reason}" for key, reason in result.reasons.items())
            return [f"{words} has no interval" + (f" ({why})" if why else "")]
    found = []
    low, high = result.a.interval  # type: ignore[misc]
    if not (high - low) / 2 <= WIDE_A:
        found.append(f"the exponent is known to ±{(high - low) / 2:.2f} only (limit {WIDE_A})")
    low, high = result.n_opt.interval  # type: ignore[misc]
    n_opt = result.n_opt.value
    assert n_opt is not None
    factor = max(n_opt / low if low > 0 else math.inf, high / n_opt)
    if not factor <= WIDE_N:
        size = f"a factor of {factor:.2g}" if math.isfinite(factor) else "no factor at all"
        found.append(f"N_opt in the middle of the range is known to {size} only (limit {WIDE_N})")
    return found + _one_size(fit, result, cost)


def _one_size(fit: ParametricFit, result: Fit, cost: Cost) -> list[str]:
    assert result.middle is not None  # a surface has one
    points, middle = fit.points, result.middle.flops
    each = list(dict.fromkeys(points.size.tolist()))
    solution = fit.without([np.zeros(len(points), dtype=bool), *(points.size == size for size in each)])
    with np.errstate(all="ignore"):
        log_n = np.log(np.asarray(solution.surface.n_opt(middle, cost)))
        low, high = float(points.flops.min()), float(points.flops.max())
        a = np.log(np.asarray(solution.surface.n_opt(high, cost) / solution.surface.n_opt(low, cost)))
        a = a / math.log(high / low)
    known = ~solution.unidentified & np.isfinite(log_n) & np.isfinite(a)
    found = []
    if needed := [name for i, name in enumerate(each, 1) if not (known[i] and known[0])]:
        found.append(f"without the size {' or '.join(map(_size, needed))} nothing is identified")
    changes = {
        name: (float(a[i] - a[0]), float(log_n[i] - log_n[0])) for i, name in enumerate(each, 1) if name not in needed
    }
    decisive = {
        name: one for name, one in changes.items() if abs(one[0]) > ONE_SIZE_A or abs(one[1]) > math.log(ONE_SIZE_N)
    }
    if decisive:
        ranked = {name: abs(da) / ONE_SIZE_A + abs(dn) / math.log(ONE_SIZE_N) for name, (da, dn) in decisive.items()}
        most = max(ranked, key=lambda name: ranked[name])
        more = len(decisive) - 1
        others = f", and {counted(more, 'more size decides', 'more sizes decide')} it too" if more else ""
        found.append(
            f"without the size {_size(most)} the exponent changes by {decisive[most][0]:+.2f} and N_opt by a factor "
            f"of {math.exp(decisive[most][1]):.2f} (limits {ONE_SIZE_A} and {ONE_SIZE_N}){others}"
        )
    return found


def _size(label: str) -> str:
    """A size by its name; one that is named by its N as people write it."""
    try:
        return count(float(label))
    except ValueError:
        return label
