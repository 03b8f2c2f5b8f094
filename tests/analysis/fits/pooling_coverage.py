"""How often intervals of a hold the truth in studies of architectures whose noise differs, by pooling the noise of all
others and that of those which a test does not tell apart: what docs/research/pooled-noise.md has is printed by
`python -m tests.analysis.fits.pooling_coverage 100` and `.. levels`.

A study: four architectures, each L = E + A (N / 288k)^-alpha + B (D / 46M)^-beta at five sizes, whole curves of twelve
points in the last decade of tokens. A run's log loss is off as a whole, by its architecture's noise, and each of its
points by 0.3% more.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from scipy import stats

from analysis.fits.approaches import Options, fit_surface
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points
from analysis.fits.pooling import told_apart
from analysis.fits.seeds import seed_noise_of, seed_noises_of
from analysis.fits.solver import LEAST_SQUARES

SIZES, TOKENS, ROWS, POINT, REPLICATES = (288e3, 814e3, 2.3e6, 6.51e6, 18.4e6), 46e6, 12, 0.003, 99
SURFACES = {  # E, A, alpha, B, beta
    "first": (0.70, 0.45, 0.25, 0.20, 0.45),
    "second": (0.65, 0.50, 0.25, 0.22, 0.50),
    "third": (0.75, 0.40, 0.22, 0.20, 0.50),
    "fourth": (0.60, 0.60, 0.25, 0.25, 0.50),
}
TWO, PILOT = (2, 2, 2, 2, 2), (3, 3, 3, 1, 1)
EVEN, BY_SIZE = (0.004,) * 5, (0.008, 0.004, 0.002, 0.001, 0.0005)


class Case(NamedTuple):
    """Seeds and noise of a run's log loss by size; how many times as much noise the fourth architecture has."""

    seeds: tuple[int, ...]
    noise: tuple[float, ...]
    fourth: float


CASES = {
    "equal, 2 seeds": Case(TWO, EVEN, 1),
    "one 3 times as noisy, 2 seeds": Case(TWO, EVEN, 3),
    "one 10 times as noisy, 2 seeds": Case(TWO, EVEN, 10),
    "one 3 times as noisy, 3, 3, 3, 1, 1 seeds": Case(PILOT, EVEN, 3),
    "smaller sizes noisier, 3, 3, 3, 1, 1 seeds": Case(PILOT, BY_SIZE, 1),
    "both, 3, 3, 3, 1, 1 seeds": Case(PILOT, BY_SIZE, 3),
}


def study(case: Case, seed: int) -> list[Points]:
    """The points of its architectures."""
    rng = np.random.default_rng([seed, 3])
    return [_points(name, case, 1.0 if name != "fourth" else case.fourth, rng) for name in SURFACES]


def _points(name: str, case: Case, times: float, rng: np.random.Generator) -> Points:
    e, a, alpha, b, beta = SURFACES[name]
    d = np.geomspace(TOKENS / 10, TOKENS, ROWS)
    rows = [(rank, k) for rank, seeds in enumerate(case.seeds) for k in range(seeds)]
    losses = [
        (e + a * (SIZES[rank] / SIZES[0]) ** -alpha + b * (d / TOKENS) ** -beta)
        * np.exp(times * case.noise[rank] * rng.standard_normal() + POINT * rng.standard_normal(ROWS))
        for rank, _ in rows
    ]
    n = np.repeat([SIZES[rank] for rank, _ in rows], ROWS)
    tokens = np.tile(d, len(rows))
    run = np.repeat(np.array([f"{name} {rank} {k}" for rank, k in rows], dtype=object), ROWS)
    cell = np.repeat(np.array([f"{rank} {k}" for rank, k in rows], dtype=object), ROWS)
    return Points(n, tokens, 6 * n * tokens, np.concatenate(losses), run=run, cell=cell, group=name)


def interval(points: Points, noise: SeedNoise | None, seed: int) -> tuple[float, float]:
    """Of a, at the level 0.95."""
    options = Options(objective=LEAST_SQUARES, n_replicates=REPLICATES, seed=seed)
    fit = fit_surface(points, options, noise, REPLICATES)
    assert fit.draws is not None
    low, high = fit.draws.interval(fit.exponents(fit.draws.surface)["a"])
    return float(low), float(high)


def cover(case: Case, studies: int) -> dict[str, np.ndarray]:
    """By rule, [studies, architectures, 2]: whether the interval of a holds the truth, and half of its width."""
    found: dict[str, list[list[tuple[float, float]]]] = {"all others": [], "those not told apart": []}
    for seed in range(studies):
        groups = study(case, seed)
        noises = seed_noises_of(groups)
        rows: dict[str, list[tuple[float, float]]] = {rule: [] for rule in found}
        for points in groups:
            every = seed_noise_of([one for one in groups if one is not points])
            alike = noises.of_others(points.group)
            first = interval(points, every, seed)
            second = first if alike == every else interval(points, alike, seed)
            alpha, beta = SURFACES[points.group][2], SURFACES[points.group][4]
            for rule, (low, high) in zip(rows, (first, second), strict=True):
                rows[rule].append((low <= beta / (alpha + beta) <= high, (high - low) / 2))
        for rule, one in rows.items():
            found[rule].append(one)
    return {rule: np.array(one, dtype=float) for rule, one in found.items()}


def cover_by_level(df: float, fourth: float, level: float, draws: int = 1500) -> tuple[float, float, float]:
    """Of intervals of one run's loss, by Student's t of the pooled noise alone, the share that holds the truth: of the
    first three architectures and of the fourth; and the median of half of the first one's, in its own noise. level: of
    the test (`told_apart`)."""
    rng = np.random.default_rng(1)
    s = np.array([1.0, 1.0, 1.0, fourth])
    hits, halves = np.zeros(4), []
    for _ in range(draws):
        variances, off = s**2 * rng.chisquare(df, 4) / df, abs(s * rng.standard_normal(4))
        for part in told_apart(variances.tolist(), [df] * 4, level):
            half = float(np.sqrt(variances[part].mean()) * stats.t.ppf(0.975, df * len(part)))
            hits[part] += off[part] <= half
            halves += [half] if 0 in part else []
    return float(hits[:3].mean() / draws), float(hits[3] / draws), float(np.median(halves))


def main_of_levels() -> None:
    for df in (2, 3, 6):
        for fourth in (1, 3, 10):
            found = [cover_by_level(df, fourth, level) for level in (0.0, 0.05, 0.1, 0.25)]
            print(df, fourth, *(f"| {a:.1%}, {b:.1%}, {half:.1f}" for a, b, half in found), flush=True)


def main(studies: int, wanted: list[str]) -> None:
    for name, case in CASES.items():
        if wanted and name not in wanted:
            continue
        for rule, rows in cover(case, studies).items():
            quiet, fourth = rows[:, :3].reshape(-1, 2), rows[:, 3]
            told = [
                f"{one[:, 0].mean():.1%}, half of the interval {np.median(one[:, 1]):.3f}" for one in (quiet, fourth)
            ]
            print(f"{name}; pooled {rule}: three {told[0]}; the fourth {told[1]}", flush=True)


if __name__ == "__main__":
    main_of_levels() if sys.argv[1] == "levels" else main(int(sys.argv[1]), sys.argv[2:])
