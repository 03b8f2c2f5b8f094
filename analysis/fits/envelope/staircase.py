"""How far the envelope of a few sizes lies above the loss of a continuous choice of sizes.

Near its minimum log L is a parabola in log N, of a curvature k that the crossings tell: the difference of two
neighbouring curves, a distance h apart in log N, rises by k h a for each e-fold of compute, a the exponent of N_opt. A
size that is u = log N - log N_opt(C) away from the optimum loses k u^2 / 2 of the loss. The steps that this makes
under a straight line look like curvature of L(C): quadratic terms of 0.0003 to 0.001 for six sizes. Where the size that
owns a point is not one of those next to N_opt (it lies beyond the sizes, or the run of the right one has ended), the
point is no point of an envelope: it says nothing about L(C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.fits.envelope.crossings import Crossing, rise
from analysis.fits.envelope.extract import Envelope, SizeCurve
from analysis.fits.fit import InverseLine

NEAR = 0.75  # half would be the envelope's own; noise moves what is known of N_opt


@dataclass(frozen=True)
class Steps:
    """Of each point of an envelope [g]: its log loss less that of the optimal size; and whether its size is near that
    one: no more than NEAR of the distance to the next size away."""

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
    curvature = max(rise(crossings, np.array([width[one.small] for one in crossings])), 0.0) * n_opt.slope
    optimum = n_opt.centre + (envelope.log_c - n_opt.level) / n_opt.slope
    off = log_n[envelope.owner[0]] - optimum
    below, above = np.concatenate([width[:1], width]), np.concatenate([width, width[-1:]])
    owner = envelope.owner[0]
    inside = (off <= NEAR * below[owner]) & (off >= -NEAR * above[owner])
    return Steps(np.asarray(curvature * off**2 / 2), np.asarray(inside))
