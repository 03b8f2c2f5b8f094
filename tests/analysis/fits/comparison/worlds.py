"""Pairs of architectures with known surfaces, and studies of them whose runs share the noise of their batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.fits.parametric.surface import Surface
from analysis.fits.points import Points

ONE = Surface(1.69, 406.4, 410.7, 0.34, 0.28)
NEAR = Surface(1.69, 390.0, 410.7, 0.34, 0.281)  # needs 18 to 23% less compute
OTHER_TEXT = Surface(2.0, 390.0, 410.7, 0.34, 0.281)
SIZES = 1e6 * 2.0 ** np.arange(6)
CELLS = np.array([(n, 20 * n * times) for n in SIZES for times in (0.25, 1, 4, 16)])


def study(
    surfaces: Sequence[Surface],
    cell_noise: float,
    own_noise: float,
    seed: int,
    n_cells: int = 20,
    uneven: float = 1.0,
    cells: np.ndarray = CELLS,
) -> list[Points]:
    """One run of every architecture in each of `n_cells` cells, the same cells for a seed's studies; noise in standard
    deviations of log loss, that of the smallest size `uneven` times that of the largest."""
    rng = np.random.default_rng(seed)
    n, d = cells[np.sort(np.random.default_rng(0).choice(len(cells), n_cells, replace=False))].T
    scale = uneven ** (1 - np.log(n / n.min()) / np.log(SIZES[-1] / SIZES[0]))
    shared = cell_noise * rng.standard_normal(len(n))
    return [
        Points(
            n,
            d,
            6 * n * d,
            surface.loss(n, d) * np.exp(scale * (shared + own_noise * rng.standard_normal(len(n)))),
            run=np.array([f"{name}-{i}" for i in range(len(n))]),
            cell=np.arange(len(n)).astype(str),
            group=name,
        )
        for name, surface in zip("abcdefg", surfaces, strict=False)
    ]
