"""What says when not to believe an envelope's laws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.fits.envelope.crossings import Crossing, Missing
from analysis.fits.envelope.extract import UNCOVERED, WARMUP, Envelope, SizeCurve
from analysis.fits.fit import L_OPT, N_OPT, Law, Owner
from analysis.fits.powerlaw import fit_power_law
from analysis.fits.smooth import read_at
from arch.amounts import count

SLACK = 1 + 1e-9  # of a stored end of a range, after its round trip through a logarithm
BESIDE = 1.5  # times the sizes with a curve: an optimum there is hardly lower than the nearest of them
FLAT = 0.005  # sizes within this fraction of the minimal loss count as equally good


def diagnostics_of(
    curves: Sequence[SizeCurve],
    envelope: Envelope,
    loss: Law,
    n_opt: Law,
    d_opt: Law,
    crossings: Sequence[Crossing],
    missing: Sequence[Missing],
) -> dict[str, Any]:
    """Fields of `EnvelopePart`: counts, owners, how far the loss falls, how flat the minimum is, and whether N_opt
    D_opt make the compute."""
    code, owner, log_c = envelope.code[0], envelope.owner[0], envelope.log_c
    covered = code != UNCOVERED
    at = [one.at for one in crossings]
    result: dict[str, Any] = {
        "n_points": int(covered.sum()),
        "n_uncovered": int((~covered).sum()),
        "n_in_warmup": int((code == WARMUP).sum()),
        "fraction_censored": float((code[covered] != 0).mean()) if covered.any() else None,
        "owners": tuple(
            Owner(
                curve.size,
                curve.n_params,
                int((covered & (owner == rank)).sum()),
                int(((code == 0) & (owner == rank)).sum()),
            )
            for rank, curve in enumerate(curves)
        ),
        "n_crossings": len(crossings),
        "n_crossings_missing": len(missing),
        "n_crossings_extrapolated": sum(one.beyond > 0 for one in crossings),
        "n_crossings_disordered": sum(later < earlier for earlier, later in pairwise(at)),
        "decades": math.log10(loss.range[1] / loss.range[0]) if loss.range else 0.0,
        "flatness": _flatness(curves, envelope),
    }
    if covered.any():
        losses = envelope.log_loss[0, covered]
        result["loss_first_last"] = (float(np.exp(losses[0])), float(np.exp(losses[-1])))
    if loss.range:
        # over the points of L(C) alone, so that it is at most `decades`
        used = covered & (code != WARMUP)
        used &= (np.exp(log_c) >= loss.range[0] / SLACK) & (np.exp(log_c) <= loss.range[1] * SLACK)
        losses, places = envelope.log_loss[0, used], log_c[used]
        result["falling_decades"] = float((places[losses.argmin()] - places[0]) / math.log(10))
    a, b = n_opt.exponent.value, d_opt.exponent.value
    if a is not None and b is not None and n_opt.range:
        ends = [(n_opt.at(c).value or math.nan, d_opt.at(c).value or math.nan, c) for c in n_opt.range]
        growth = cost_growth(curves, (ends[0][0], ends[1][0]))
        (low, high) = (6 * n * d / c for n, d, c in ends)  # r(C) = 6 N_opt D_opt / C
        result |= {"cost_growth": growth, "a_plus_b": a + b, "cost_identity": a * growth + b - 1}
        result["compute_identity"] = low, high
    return result


def cost_growth(curves: Sequence[SizeCurve], sizes: tuple[float, float]) -> float:
    """p of a token's training cost ~ N^p, by least squares over the sizes nearest to `sizes` and all between; 1 for
    C = 6 N D."""
    n_params = np.array([float(curve.n_params) for curve in curves])
    first = max(int(np.searchsorted(n_params, sizes[0], side="right")) - 1, 0)
    last = min(int(np.searchsorted(n_params, sizes[1])), len(curves) - 1)
    used = curves[first : max(last, first + 1) + 1]
    cost = np.array([curve.flops_per_token for curve in used])
    return fit_power_law(n_params[first : first + len(used)], cost).exponent


def _flatness(curves: Sequence[SizeCurve], envelope: Envelope) -> float | None:
    """Median over the uncensored points of N_max / N_min among the sizes within 0.5% of the minimal loss."""
    free = envelope.code[0] == 0
    if not free.any():
        return None
    table = np.stack([read_at(curve.log_c, curve.log_loss, envelope.log_c[free]) for curve in curves])
    near = table <= envelope.log_loss[0, free] + math.log1p(FLAT)
    n_params = np.array([float(curve.n_params) for curve in curves])[:, None]
    widest = np.where(near, n_params, 0).max(0) / np.where(near, n_params, np.inf).min(0)
    return float(np.median(widest))


def refuted(
    curves: Sequence[SizeCurve], c: float, n_opt: float | None, l_opt: float | None, slack: float
) -> dict[str, str]:
    """What the curves say against an optimum at C [FLOP] among them, by quantity, by more than `slack` of log loss:

    N_opt: of the sizes with a curve there, one that lies between it and the best of them is worse than that;
    L_opt: a run had a lower loss after less compute; or the optimal size is among those, at most BESIDE times beyond
    them, and none of them has a loss as low."""
    log_c, found = math.log(c), {}
    began = [curve for curve in curves if curve.settled_from <= log_c]
    here = [curve for curve in began if log_c <= curve.log_c[-1] + 1e-9]
    losses = [float(np.interp(log_c, curve.log_c, curve.log_loss)) for curve in here]
    best = int(np.argmin(losses)) if losses else 0
    if n_opt is not None and here:
        low, high = sorted((float(here[best].n_params), n_opt))
        for curve, loss in zip(here, losses, strict=True):
            if low < curve.n_params < high and loss > losses[best] + slack:
                found[N_OPT] = (
                    f"there N = {count(curve.n_params)} has {math.exp(loss):.4g}, and N = {count(here[best].n_params)} "
                    f"{math.exp(losses[best]):.4g}"
                )
    if l_opt is not None and began:
        lows = [float(curve.log_loss[curve.log_c <= log_c + 1e-9].min(initial=math.inf)) for curve in began]
        if min(lows) < math.log(l_opt) - slack:
            lowest = began[int(np.argmin(lows))]
            found[L_OPT] = f"N = {count(lowest.n_params)} had {math.exp(min(lows)):.4g} by then"
        elif (
            n_opt is not None
            and here
            and here[0].n_params / BESIDE <= n_opt <= here[-1].n_params * BESIDE
            and losses[best] > math.log(l_opt) + slack
        ):
            found[L_OPT] = f"the best size there, N = {count(here[best].n_params)}, has {math.exp(losses[best]):.4g}"
    return found
