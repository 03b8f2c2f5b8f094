"""Data that several tests fit: the Chinchilla points, and grids on known surfaces."""

import numpy as np

from analysis.fits.surface import PARAMS, Surface

SURFACES = [Surface(1.69, 406.4, 410.7, 0.34, 0.28), Surface(1.69, 406.4, 410.7, 0.465, 0.155)]


def grid(sizes=6, amounts=4, low=1e7):
    """N and D of a grid, from `low` parameters over two decades, 20 to 2000 tokens for each of the smallest."""
    n = np.repeat(np.geomspace(low, 100 * low, sizes), amounts)
    return n, np.tile(np.geomspace(20 * low, 2000 * low, amounts), sizes)


def params(surface):
    return np.stack([np.broadcast_to(getattr(surface, k), np.shape(surface.E)) for k in PARAMS], -1)
