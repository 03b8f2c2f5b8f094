"""A world of the fitted form, and costs."""

import numpy as np

from analysis.design.worlds import World
from analysis.fits.cost import Cost, six_nd

WORLD = World("fitted", 0.8, 0.36, 0.34, 0.2, 0.2, 0.0)
SIX = six_nd()
KNOTS = np.geomspace(1e5, 1e9, 40)
REAL = Cost(np.log(KNOTS), np.log(6 * KNOTS + 100 * KNOTS**0.7), "exact")
