"""What says when not to believe an architecture's laws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.fits.envelope.crossings import Crossing, Missing
from analysis.fits.envelope.extract import UNCOVERED, WARMUP, Envelope, SizeCurve
from analysis.fits.envelope.optimum import interval_at
from analysis.fits.powerlaw import fit_power_law
from analysis.fits.smooth import read_at

SLACK = 1 + 1e-9  # of a stored end of a range, after its round trip through a logarithm
NEAR = 1.01  # a compute this near to the end of a range is still in it
MOST_LOG = 700.0  # of a float
FLAT = 0.005  # sizes within this fraction of the minimal loss count as equally good


def diagnostics_of(
    curves: Sequence[SizeCurve],
    envelope: Envelope,
    laws: dict[str, Any],
    crossings: Sequence[Crossing],
    missing: Sequence[Missing],
) -> dict[str, Any]:
    """Counts, owners, how far the loss falls, how flat the minimum is, and whether N_opt D_opt make the compute."""
    code, owner, log_c = envelope.code[0], envelope.owner[0], envelope.log_c
    covered = code != UNCOVERED
    owners = [
        {
            "size": curve.size,
            "n_params": curve.n_params,
            "n_points": int((covered & (owner == rank)).sum()),
            "n_uncensored": int(((code == 0) & (owner == rank)).sum()),
        }
        for rank, curve in enumerate(curves)
    ]
    at = [one.at for one in crossings]
    result: dict[str, Any] = {
        "n_points": int(covered.sum()),
        "n_uncovered": int((~covered).sum()),
        "n_in_warmup": int((code == WARMUP).sum()),
        "fraction_censored": float((code[covered] != 0).mean()) if covered.any() else None,
        "owners": owners,
        "n_crossings": len(crossings),
        "n_crossings_missing": len(missing),
        "n_crossings_extrapolated": sum(one.beyond > 0 for one in crossings),
        "n_crossings_disordered": sum(later < earlier for earlier, later in pairwise(at)),
        "decades": math.log10(rests_on[1] / rests_on[0]) if (rests_on := laws["loss"].get("range")) else 0.0,
        "flatness": _flatness(curves, envelope),
        "a_plus_b": None,
        "cost_identity": None,
        "compute_identity": None,
    }
    if covered.any():
        loss = envelope.log_loss[0, covered]
        result["loss_first_last"] = [float(np.exp(loss[0])), float(np.exp(loss[-1]))]
    if rests_on:
        # over the points of L(C) alone, so that it is at most `decades`
        used = covered & (code != WARMUP)
        used &= (np.exp(log_c) >= rests_on[0] / SLACK) & (np.exp(log_c) <= rests_on[1] * SLACK)
        loss, at = envelope.log_loss[0, used], log_c[used]
        result["falling_decades"] = float((at[loss.argmin()] - at[0]) / math.log(10))
    n_opt, d_opt = laws["n_opt"], laws["d_opt"]
    if n_opt["identified"] and d_opt["identified"]:
        growth = cost_growth(curves, n_opt["range"], n_opt)
        result["cost_growth"] = growth
        result["a_plus_b"] = n_opt["exponent"] + d_opt["exponent"]
        result["cost_identity"] = n_opt["exponent"] * growth + d_opt["exponent"] - 1
        ends = n_opt["range"]
        result["compute_identity"] = [
            6 * predict(n_opt, end) * predict(d_opt, end) / end  # r(C) = 6 N_opt D_opt / C
            for end in ends
        ]
    return result


def predict(law: dict[str, Any], c: float) -> float:
    """An identified law's value at C in FLOP."""
    return float(law["centre"][1] * (c / law["centre"][0]) ** law["exponent"])


def interval_of_law(law: dict[str, Any], c: float) -> tuple[float, float] | None:
    """Of an identified law at C in FLOP; None where it has none: laws through points have one in their range alone."""
    if law["interval"] is None:
        return None
    if "line" in law:
        low, high = interval_at(law, math.log(c))
        return (math.exp(low), math.exp(high)) if max(abs(low), abs(high)) < MOST_LOG else None
    band, grid = law["band"], np.log(law["band"]["c"])
    if not math.log(NEAR) > max(grid[0] - math.log(c), math.log(c) - grid[-1]):
        return None
    low, high = (float(np.exp(np.interp(math.log(c), grid, np.log(band[end])))) for end in ("low", "high"))
    return low, high


def cost_growth(curves: Sequence[SizeCurve], stretch: Sequence[float], n_opt: dict[str, Any]) -> float:
    """p of a token's training cost ~ N^p, by least squares over the sizes nearest to N_opt in `stretch` [FLOP] and all
    between; 1 for C = 6 N D."""
    n_params = np.array([float(curve.n_params) for curve in curves])
    low, high = (predict(n_opt, end) for end in stretch)
    first = max(int(np.searchsorted(n_params, low, side="right")) - 1, 0)
    last = min(int(np.searchsorted(n_params, high)), len(curves) - 1)
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
