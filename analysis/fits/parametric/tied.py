"""Whether alpha and beta are one, as the over-training form assumes.

Under 6 N D one exponent is a = beta / (alpha + beta) = 1/2, so the test is whether the interval of a of the plain form,
by the same objective and from replicates of its own, holds 1/2: p is one less the level of the interval that just ends
there. How often those intervals cover is in docs/research/parametric-fits.md; an F test on the sums of squares would
take the rows of a run for independent.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from analysis.fits.parametric.draws import Draws

LEAST_REPLICATES = 399  # the least p is 2 / 400, below the 1% at which a tie is rejected


def p_of_tie(free: Draws) -> float:
    """p of alpha = beta from the replicates of the plain form; at least 2 / (r + 1) before it is widened."""
    a = free.surface.a
    a = a[np.isfinite(a)]
    tail = (min((a <= 0.5).sum(), (a >= 0.5).sum()) + 1) / (len(a) + 1)
    if free.df is not None:  # as Draws.interval widens
        tail = stats.t.sf(stats.norm.isf(tail), free.df)
    return min(1.0, 2 * float(tail))
