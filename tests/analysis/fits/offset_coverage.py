"""How often the interval of the offset between merged and decayed losses holds it, where pairs of a trunk share an
error and where they do not: what docs/research/merged-losses.md has is printed by `python -m
tests.analysis.fits.offset_coverage 1000`.

A world: trunks of sizes from 14k to 393k parameters, tokens in proportion to 1 / N, an offset that may grow with N and
D, noise of 0.2% a pair, of which a share is its trunk's.
"""

from __future__ import annotations

import sys

import numpy as np

from analysis.fits.merged import Calibration, calibrate
from analysis.fits.study_fits import MergedPair

NOISE, OFFSET = 0.002, 0.02
SHARES = (0.48, 0.24, 0.12, 0.06)  # of a size's longest tokens; branches end at these
# trunks a size, pairs of each trunk in turn, slopes in ln N and ln D
DESIGNS = {
    "2 trunks of 3": (2, 1, (3,), (0.0, 0.003)),
    "3 trunks of 3": (3, 1, (3,), (0.002, 0.003)),
    "4 trunks of 3": (4, 1, (3,), (0.002, 0.003)),
    "6 trunks of 4": (6, 1, (4,), (0.002, 0.003)),
    "6 trunks of 4, 2, 1": (6, 1, (4, 2, 1), (0.002, 0.003)),
    "3 sizes, 2 seeds, 2 each": (3, 2, (2,), (0.002, 0.003)),
    "6 trunks of 1": (6, 1, (1,), (0.0, 0.0)),
}


def true_offset(n: float, d: float, slopes: tuple[float, float]) -> float:
    return float(OFFSET + slopes[0] * np.log(n / 7e4) + slopes[1] * np.log(d / 1e6))


def found_in(
    rng: np.random.Generator, design: tuple[int, int, tuple[int, ...], tuple[float, float]], shared: float
) -> Calibration:
    n_sizes, n_seeds, counts, slopes = design
    pairs = []
    for i, n in enumerate(np.geomspace(14e3, 393e3, n_sizes)):
        for seed in range(n_seeds):
            own = NOISE * np.sqrt(shared) * rng.standard_normal()
            for share in SHARES[: counts[(i + seed) % len(counts)]]:
                d = share * 5e11 / n
                noise = own + NOISE * np.sqrt(1 - shared) * rng.standard_normal()
                merged = float(np.exp(true_offset(n, d, slopes) + noise))
                pairs.append(MergedPair(str(n), f"{n}-{seed}", n, d, merged, 1.0))
    found = calibrate(pairs)
    assert found is not None
    return found


def coverage(
    design: tuple[int, int, tuple[int, ...], tuple[float, float]], shared: float, n_worlds: int, seed: int = 0
) -> np.ndarray:
    """Shares of intervals at 95% that hold the offset: in the middle of the trunks, at the smallest and the largest
    size's second longest branch; and the median half width of the last."""
    rng, draws, hits, widths = np.random.default_rng([seed, 1]), 2000, np.zeros(3), []
    normal, by_df = rng.standard_normal((draws, 3)), dict[float, np.ndarray]()
    for _ in range(n_worlds):
        found = found_in(rng, design, shared)
        for df in found.df.tolist():
            by_df.setdefault(df, np.sqrt(df / rng.chisquare(df, draws)))
        drawn = normal * np.column_stack([by_df[df] for df in found.df.tolist()])
        places = [tuple(np.exp(found.center)), *((n, 0.24 * 5e11 / n) for n in (14e3, 393e3))]
        for i, (n, d) in enumerate(places):
            at = np.array([n]), np.array([d])
            half = np.quantile(np.abs(drawn @ found.error(*at)[0]), 0.95)
            hits[i] += abs(found.offset(*at)[0] - true_offset(n, d, design[3])) <= half
        widths.append(half)
    return np.array([*(hits / n_worlds), np.median(widths)])


def main(n_worlds: int) -> None:
    for name, design in DESIGNS.items():
        for shared in (0.0, 0.5, 0.9):
            *held, width = coverage(design, shared, n_worlds)
            told = " | ".join(f"{one:.1%}" for one in held)
            print(f"| {name} | {shared:.0%} | {told} | {width:.2%} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
