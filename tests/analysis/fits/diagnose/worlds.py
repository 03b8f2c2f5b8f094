"""Studies like the trial study on books: six sizes, equal tokens, whole curves; most not of the fitted form.

A study is what one researcher has: one run a size, a second seed of the second size, and the noise between seeds known
with four degrees of freedom from four architectures.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.design.worlds import EXTRA, World, paths
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points

SIZES = np.array([0.4e6, 0.8e6, 3.1e6, 6.3e6, 14.2e6, 31.5e6])
TOKENS, WARMUP, SEED_NOISE, SEED_DF = 80e6, 3e6, 0.005, 4
ROWS = 50  # of a curve
MEMORY = 2.0  # of a curve's noise, in log C


def drawn(kind: str, rng: np.random.Generator) -> World:
    """A world of this kind, its surface anywhere."""
    extra = {one: rng.uniform(*ends) for one, ends in EXTRA.items()}.get(kind, 0.0)
    alpha, beta = rng.uniform(0.25, 0.5, 2)
    a, b = rng.uniform(0.1, 0.3, 2)
    return World(kind, rng.uniform(0.6, 1.0), alpha, beta, a, b, float(extra), int(rng.integers(1 << 30)))


def exponent_of(world: World, log_c: float) -> float:
    """Of N_opt under 6 N D, over a factor of 2 of compute around it."""
    low, high = world.log_n_opt(np.array([log_c - 0.35, log_c + 0.35])).tolist()
    return float(high - low) / 0.7


def study(world: World, rng: np.random.Generator) -> tuple[Points, SeedNoise]:
    """One architecture's curves under C = 6 N D, and the noise between seeds as it was measured."""
    off = world.off(len(SIZES))
    parts = []
    for rank, n in enumerate(SIZES):
        for copy in range(2 if rank == 1 else 1):
            tokens = np.geomspace(WARMUP, TOKENS, ROWS)
            loss = world.loss(n, tokens) * np.exp(off[rank] + SEED_NOISE * paths(rng, np.log(tokens), MEMORY))
            parts.append((np.full(ROWS, n), tokens, loss, [f"{n:.3g}-s{copy}"] * ROWS))
    n, d, loss = (np.concatenate([part[i] for part in parts]) for i in range(3))
    run = np.array([name for part in parts for name in part[3]], dtype=object)
    noise = SeedNoise(SEED_NOISE * math.sqrt(rng.chisquare(SEED_DF) / SEED_DF), SEED_DF)
    return Points(n, d, 6 * n * d, loss, run=run), noise
