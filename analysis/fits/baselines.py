"""What a forecast of a larger run should beat: rules that need no surface."""

from __future__ import annotations

import numpy as np

from analysis.fits.fit import L_OPT, Fit
from analysis.fits.points import Points

NO_CHANGE, OF_MINIMA, LAST_SLOPE = "no change", "E + A C^-g of isoFLOP minima", "slope of the last two budgets"


def baselines(points: Points, isoflop: Fit | None, c: float) -> dict[str, float]:
    """The lowest loss at C FLOP by rules that need no surface: the lowest that was fitted, and of isoFLOP minima, where
    there are some, the law E + A C^-g and the line of log loss over log C through the last two."""
    losses = {NO_CHANGE: float(points.loss.min())}
    if isoflop is None or isoflop.isoflop is None:
        return losses
    law, minima = isoflop.law(L_OPT), sorted(isoflop.isoflop.used, key=lambda minimum: minimum.c)[-2:]
    if law.identified and (loss := law.at(c).value) is not None:
        losses[OF_MINIMA] = loss
    if len(minima) == 2:
        log_c, log_loss = (np.log([getattr(minimum, name) for minimum in minima]) for name in ("c", "loss"))
        slope = (log_loss[1] - log_loss[0]) / (log_c[1] - log_c[0])
        losses[LAST_SLOPE] = float(np.exp(log_loss[1] + slope * (np.log(c) - log_c[1])))
    return losses
