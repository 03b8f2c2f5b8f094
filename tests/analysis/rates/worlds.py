"""Sweeps of a known law: ln loss = level + k (ln rate - ln best)^2 + cubic (..)^3 + noise, seeds paired."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.rates.cell import RatePoint

HERE = Path(__file__).parent


def points_of(*names: str) -> list[RatePoint]:
    """Of the tables of runs in this folder, which have the columns of RatePoint."""
    return points_in(pd.concat([pd.read_csv(HERE / name) for name in names]))


def points_in(frame: pd.DataFrame) -> list[RatePoint]:
    return [RatePoint(**row) for row in frame[list(RatePoint.__dataclass_fields__)].to_dict("records")]


@dataclass(frozen=True)
class World:
    """ln best = c0 + c_n ln(N / 1e6) + c_d ln(D / 2e7) + c_b ln(B / 65536), and a scatter of each cell's own."""

    c: tuple[float, float, float, float] = (-6.0, -0.35, -0.12, 0.3)
    k: float = 0.03
    cubic: float = 0.0
    noise: float = 0.004
    scatter: float = 0.0
    sizes: tuple[int, ...] = (400_000, 1_000_000, 2_500_000)
    horizons: tuple[float, ...] = (10, 40)
    batches: tuple[int, ...] = (65_536,)
    seeds: tuple[int, ...] = (0, 1)
    factor: float = 2.0
    count: int = 5
    archs: tuple[str, ...] = ("llama",)

    def ln_best(self, n: float, d: float, b: float) -> float:
        c0, c_n, c_d, c_b = self.c
        return c0 + c_n * math.log(n / 1e6) + c_d * math.log(d / 2e7) + c_b * math.log(b / 65_536)

    def excess(self, n: float, d: float, b: float, lr: float, offset: float = 0.0) -> float:
        x = math.log(lr) - self.ln_best(n, d, b) - offset
        return self.k * x**2 + self.cubic * x**3

    def sweep(self, random: np.random.Generator) -> list[RatePoint]:
        """Rates of a cell are centred on the best of its size and batch at 20 tokens a parameter, rounded to a rung, as
        a user's guess would be."""
        points = []
        for arch in self.archs:
            for n in self.sizes:
                for times in self.horizons:
                    for b in self.batches:
                        guess = self.factor ** round(self.ln_best(n, 20 * n, b) / math.log(self.factor))
                        d, offset = int(times * n), self.scatter * random.standard_normal()
                        for seed in self.seeds:
                            level = 1.0 + 0.01 * random.standard_normal()
                            for step in range(self.count):
                                lr = guess * self.factor ** (step - self.count // 2)
                                noise = self.noise * random.standard_normal()
                                loss = math.exp(level + self.excess(n, d, b, lr, offset) + noise)
                                points.append(RatePoint(arch, f"n{n}", n, d, b, seed, lr, loss))
        return points
