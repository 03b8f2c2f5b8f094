"""Pairs of architectures with known surfaces, and studies of them whose runs share the noise of their batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.fits.points import Points
from analysis.fits.surface import Surface

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


def curves(
    surfaces: Sequence[Surface], cell_noise: float, own_noise: float, seed: int, flops: float = 2e17, n_points: int = 5
) -> list[Points]:
    """A ladder: six sizes, all trained to `flops`, the third with two more seeds; `n_points` along every run's last
    decade. Noise moves a run as a whole; runs of one size and seed share the noise of a cell."""
    rng = np.random.default_rng(seed)
    runs = [(n, k) for i, n in enumerate(SIZES) for k in range(3 if i == 2 else 1)]
    shared = cell_noise * rng.standard_normal(len(runs))
    result = []
    for name, surface in zip("abcdefg", surfaces, strict=False):
        own = own_noise * rng.standard_normal(len(runs))
        n = np.repeat([n for n, _ in runs], n_points)
        d = np.concatenate([flops / 6 / n_params * np.geomspace(0.1, 1, n_points) for n_params, _ in runs])
        loss = surface.loss(n, d) * np.exp(np.repeat(shared + own, n_points))
        label = np.repeat([f"{n_params:.0f}-{k}" for n_params, k in runs], n_points)
        result.append(Points(n, d, 6 * n * d, loss, run=np.char.add(f"{name}-", label), cell=label, group=name))
    return result
