"""Studies like the trial study on books: six sizes, equal tokens, whole curves; most not of the fitted form.

A study is what one researcher has: one run a size, a second seed of the second size, and the noise between seeds known
with four degrees of freedom from four architectures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points

from ..worlds import paths

SIZES = np.array([0.4e6, 0.8e6, 3.1e6, 6.3e6, 14.2e6, 31.5e6])
TOKENS, WARMUP, SEED_NOISE, SEED_DF = 80e6, 3e6, 0.005, 4
ROWS = 50  # of a curve
MEMORY = 2.0  # of a curve's noise, in log C
MIDDLE_N, MIDDLE_D = 3e6, 3e7  # about which the terms of a world are scaled


@dataclass(frozen=True)
class World:
    """L = E + joined terms of N and D. kind: `fitted`; `interaction`, joined as (a^(1/r) + b^(1/r))^r; `exponents`, the
    exponent of N is another one below MIDDLE_N than above; `mistuned`, every size loses a share of its own by its rate;
    `saturating`, small sizes stop learning at a loss of their own."""

    kind: str
    e: float
    alpha: float
    beta: float
    a: float  # of the loss at MIDDLE_N
    b: float
    extra: float
    seed: int = 0

    @classmethod
    def draw(cls, kind: str, rng: np.random.Generator) -> World:
        extra = {
            "fitted": 0.0,
            "interaction": rng.uniform(0.6, 0.9),
            "exponents": rng.uniform(0.05, 0.25),
            "mistuned": rng.uniform(0.005, 0.03),
            "saturating": rng.uniform(0.02, 0.15),
        }[kind]
        alpha, beta = rng.uniform(0.25, 0.5, 2)
        a, b = rng.uniform(0.1, 0.3, 2)
        return cls(kind, rng.uniform(0.6, 1.0), alpha, beta, a, b, float(extra), int(rng.integers(1 << 30)))

    def loss(self, n_params: np.ndarray | float, n_tokens: np.ndarray | float) -> np.ndarray:
        """As if every size were tuned."""
        log_n = np.log(np.asarray(n_params, dtype=float) / MIDDLE_N)
        log_d = np.log(np.asarray(n_tokens, dtype=float) / MIDDLE_D)
        term_n, term_d = self.a * np.exp(-self.alpha * log_n), self.b * np.exp(-self.beta * log_d)
        if self.kind == "interaction":
            r = self.extra
            return np.asarray(self.e + (term_n ** (1 / r) + term_d ** (1 / r)) ** r)
        if self.kind == "exponents":  # a smooth bend of the term of N
            term_n = self.a * np.exp(-self.alpha * log_n - self.extra * (np.logaddexp(0, log_n) - math.log(2)))
        if self.kind == "saturating":  # a floor that only small sizes feel
            floor = self.e + term_n * (1 + self.extra * np.exp(-log_n))
            return np.asarray((floor**12 + (self.e + term_n + term_d) ** 12) ** (1 / 12))
        return np.asarray(self.e + term_n + term_d)

    def off(self) -> np.ndarray:
        """[sizes]: log loss lost to wrong rates."""
        if self.kind != "mistuned":
            return np.zeros(len(SIZES))
        return self.extra * np.random.default_rng(self.seed).exponential(1.0, len(SIZES))

    def log_n_opt(self, log_c: float) -> float:
        def loss(log_n: float) -> float:
            return float(self.loss(math.exp(log_n), math.exp(log_c - log_n) / 6))

        grid = np.linspace(8, 25, 500)
        at = grid[np.argmin([loss(x) for x in grid])]
        return float(optimize.minimize_scalar(loss, bounds=(at - 0.05, at + 0.05), method="bounded").x)

    def exponent(self, log_c: float) -> float:
        return (self.log_n_opt(log_c + 0.35) - self.log_n_opt(log_c - 0.35)) / 0.7


def study(world: World, rng: np.random.Generator) -> tuple[Points, SeedNoise]:
    """One architecture's curves under C = 6 N D, and the noise between seeds as it was measured."""
    off = world.off()
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
