"""How far the envelope of a few sizes lies above the loss of a continuous choice of sizes.

Near its minimum log L is a parabola in log N, of a curvature k that the crossings tell: the difference of two
neighbouring curves, a distance h apart in log N, rises by k h a for each e-fold of compute, a the exponent of N_opt. A
size that is u = log N - log N_opt(C) away from the optimum loses k u^2 / 2 of the loss. The steps that this makes
under a straight line look like curvature of L(C): quadratic terms of 0.0003 to 0.001 for six sizes. Where N_opt lies
below the smallest size or above the largest, the envelope is one curve and no envelope: it says nothing about L(C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.fits.crossings import Crossing
from analysis.fits.envelope import Envelope, SizeCurve
from analysis.fits.optimum import InverseLine


@dataclass(frozen=True)
class Steps:
    """Of each point of an envelope [g]: its log loss less that of the optimal size; and whether the optimal size lies
    among the study's sizes, or at most half a step outside."""

    excess: np.ndarray
    inside: np.ndarray


def steps_of(
    curves: Sequence[SizeCurve], envelope: Envelope, crossings: Sequence[Crossing], n_opt: InverseLine | None
) -> Steps | None:
    """The steps of the envelope's first replicate; None where N_opt is not known."""
    if n_opt is None:
        return None
    log_n = np.log([float(curve.n_params) for curve in curves])
    width = np.diff(log_n)
    at = np.array([c.at for c in crossings])
    bent = np.array([max(c.slope(c.at), 0.0) * n_opt.slope / width[c.small] for c in crossings])
    order = np.argsort(at)
    curvature = np.interp(envelope.log_c, at[order], bent[order])
    optimum = n_opt.centre + (envelope.log_c - n_opt.level) / n_opt.slope
    off = log_n[envelope.owner[0]] - optimum
    inside = (optimum >= log_n[0] - width[0] / 2) & (optimum <= log_n[-1] + width[-1] / 2)
    return Steps(np.asarray(curvature * off**2 / 2), np.asarray(inside))
