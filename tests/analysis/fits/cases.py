"""Data that several tests fit: the Chinchilla points, and grids on known surfaces."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.fits.points import Points
from analysis.fits.surface import PARAMS, Surface

CSV = Path(__file__).resolve().parents[4] / "shared" / "data" / "chinchilla" / "svg_extracted_data.csv"
SURFACES = [Surface(1.69, 406.4, 410.7, 0.34, 0.28), Surface(1.69, 406.4, 410.7, 0.465, 0.155)]


def chinchilla():
    """The 245 points that Besiroglu et al. read off Hoffmann et al.'s figure 4, without the five highest losses."""
    if not CSV.is_file():
        pytest.skip("no shared/data/chinchilla beside the repository")
    table = pd.read_csv(CSV).sort_values("loss").iloc[:-5]
    n, c = table["Model Size"].to_numpy(), table["Training FLOP"].to_numpy()
    return Points(n, c / 6 / n, c, table["loss"].to_numpy())


def grid(sizes=6, amounts=4, low=1e7):
    """N and D of a grid, from `low` parameters over two decades, 20 to 2000 tokens for each of the smallest."""
    n = np.repeat(np.geomspace(low, 100 * low, sizes), amounts)
    return n, np.tile(np.geomspace(20 * low, 2000 * low, amounts), sizes)


def params(surface):
    return np.stack([np.broadcast_to(getattr(surface, k), np.shape(surface.E)) for k in PARAMS], -1)
