"""The laws of the optimum: those of the minima, less their bias on a surface, with replicates for their intervals.

A surface that is known adds nothing uncertain. One that was fitted to the same losses does: joint replicates (module
replicates) carry that, where the losses scatter about the surface as its noise would have them. Where they do not, or
nothing tells that noise, replicates are of the parabolas alone, whose misfit counts as noise, and the intervals
reach out to the value without the correction: the surface may be wrong about the whole of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.isoflop.bias import Bias
from analysis.fits.isoflop.budgets import Readings
from analysis.fits.isoflop.laws import Laws, fit_laws
from analysis.fits.isoflop.replicates import Redrawn, joint

DOUBTED = 0.1  # of either test of the surface's form, below which it is not relied on
KNOWN = "the optimum: the {variant}'s minimum less its bias on the surface that is given as known"
JOINT = (
    "the optimum: the {variant}'s minimum less its bias on the fitted surface; replicates draw losses on that surface "
    "and fit both anew"
)
REACHING = (
    "the optimum: the {variant}'s minimum less its bias on the fitted surface, which is uncertain too: every interval "
    "reaches to the value without that correction, since {why}"
)
NOT_DRAWN = "no replicates of the surface are to be had"
MISSED = "the losses do not lie about the surface as its noise would have them (p = {p:.2g})"
NO_MINIMA = "{share:.2g}% of replicates drawn on the surface have no minimum at one of the budgets"


@dataclass(frozen=True)
class Corrected:
    """laws: N_opt, D_opt and L_opt, the first replicate being the study; joint: whether its replicates are. reaches:
    whether intervals reach to the laws without the correction. tests: of the surface (replicates.Joint) by name, where
    it was fitted."""

    laws: Laws
    estimand: str
    tests: Mapping[str, float]
    joint: bool = False
    reaches: bool = False


def correct(
    readings: Readings,
    used: np.ndarray,
    minima: tuple[np.ndarray, np.ndarray],
    bias: Bias,
    clean: np.ndarray,
    cost: Cost,
    variant: str,
    known: bool,
    redrawn: Redrawn | None,
    level: float,
) -> Corrected | None:
    """None where the surface has no optimum, or no minimum at the sizes, at a used budget. minima: log N and loss
    [1 + r, k] of the study and of the replicates of parabolas alone; clean [p]: the losses of the surface."""
    off, lift = bias.log_n[used], bias.log_loss[used]
    if not np.isfinite(off).all():
        return None
    log_c, (log_n, loss) = readings.log_c[used], minima
    both = joint(readings, clean, bias, redrawn, variant, used, cost) if redrawn is not None and not known else None
    told: dict[str, float] = {}
    why = NOT_DRAWN
    if both is not None:
        told = {"p_agrees": both.p_agrees, "p_scatter": both.p_scatter}
        least, missing = min(told.values()), float((~np.isfinite(both.log_n[1:]).all(1)).mean())
        if least >= DOUBTED and missing < (1 - level) / 2:
            return Corrected(
                fit_laws(log_c, both.log_n, both.loss, cost), JOINT.format(variant=variant), told, joint=True
            )
        why = MISSED.format(p=least) if least < DOUBTED else NO_MINIMA.format(share=100 * missing)
    laws = fit_laws(log_c, log_n - off, loss * np.exp(-lift), cost)
    if known:
        return Corrected(laws, KNOWN.format(variant=variant), told)
    return Corrected(laws, REACHING.format(variant=variant, why=why), told, reaches=True)
