"""Seed-noise intervals: pooling by hand, coverage near the nominal level, determinism, speed."""

import math
import time

import numpy as np
import pytest

from analysis.fits.envelope import SizeCurve, extract
from analysis.fits.intervals import Lines, SeedNoise, bootstrap, fit_envelopes, percentiles, pool_seed_noise

from .synthetic import SIZES, power_world

GRID = np.linspace(math.log(5e10), math.log(5e12), 40)


def world(shifts: np.ndarray) -> list[SizeCurve]:
    """The six sizes of the synthetic world, each moved in log loss; the third has three seeds."""
    curves = []
    for (size, n), shift in zip(SIZES.items(), shifts, strict=True):
        tokens = np.geomspace(2e4, 8e12 / 6 / n, 200)
        log_loss = np.log(power_world(n, tokens)) + shift
        seeds = 3 if size == "55k" else 1
        curves.append(SizeCurve(size, n, 6.0 * n, 20_000, seeds, np.log(6 * n * tokens), log_loss))
    return curves


def test_noise_is_pooled_by_degrees_of_freedom() -> None:
    three = np.array([[0.0], [1.0], [2.0]]) * np.ones((3, 7))  # variance 1, 2 degrees of freedom
    two = np.array([[0.0], [2.0]]) * np.ones((2, 7))  # variance 2, 1 degree of freedom
    lonely = np.zeros((1, 7))
    noise = pool_seed_noise([("llama", "55k", three), ("tnl", "55k", two), ("tnl", "98k", lonely)])
    assert noise is not None
    assert noise.df == 3
    assert noise.s == pytest.approx(math.sqrt((2 * 1 + 1 * 2) / 3))
    assert [group["n_seeds"] for group in noise.groups] == [3, 2]


def test_no_replicates_no_noise() -> None:
    assert pool_seed_noise([("llama", "55k", np.zeros((1, 7)))]) is None
    assert pool_seed_noise([("llama", "55k", np.full((2, 7), np.inf))]) is None


@pytest.mark.parametrize("s", [0.003, 0.01])
def test_intervals_cover_the_noiseless_laws(s: float) -> None:
    """120 studies: alpha, a within their 95% intervals between 88% and all of the time (binomial: 3.3 sigma)."""
    still = world(np.zeros(6))
    truth = fit_envelopes(still, extract(still, GRID))
    assert truth.loss and truth.n_opt
    rng = np.random.default_rng(7)
    hits = np.zeros(2)
    widths = []
    for study in range(120):
        curves = world(rng.standard_normal(6) * s / np.sqrt([1, 1, 3, 1, 1, 1]))
        seeds = [(arch, "55k", rng.standard_normal((3, 1)) * s * np.ones((3, 5))) for arch in "wxyz"]
        noise = pool_seed_noise(seeds)
        assert noise is not None
        replicates = bootstrap(curves, GRID, noise, 300, [study])
        for i, (mine, true) in enumerate(((replicates.loss, truth.loss), (replicates.n_opt, truth.n_opt))):
            assert mine is not None
            interval = percentiles(mine[0], 0.95)
            assert interval is not None
            hits[i] += interval[0] <= true[0][0] <= interval[1]
            widths.append(interval[1] - interval[0])
    assert min(widths) > 0
    assert (hits >= 0.88 * 120).all(), hits


@pytest.mark.parametrize(("s", "least", "most"), [(0.003, 0.88, 1), (0.025, 0.6, 0.88)])
def test_the_level_of_a_noisy_study_lies_too_low(s: float, least: float, most: float) -> None:
    """Why the notes warn: the share of 120 bands of L that cover the noiseless law at the middle of the range."""
    middle = GRID.mean()

    def level(lines: Lines | None) -> np.ndarray:
        assert lines is not None
        slope, intercept, centre = lines
        return np.asarray(intercept + slope * (middle - centre))

    still = world(np.zeros(6))
    truth = level(fit_envelopes(still, extract(still, GRID)).loss)[0]
    rng = np.random.default_rng(7)
    covered, found = 0, []
    for study in range(120):
        curves = world(rng.standard_normal(6) * s / np.sqrt([1, 1, 3, 1, 1, 1]))
        found.append(level(fit_envelopes(curves, extract(curves, GRID)).loss)[0])
        drawn = level(bootstrap(curves, GRID, SeedNoise(s, 8, ()), 300, [study]).loss)
        interval = percentiles(drawn, 0.95)
        assert interval is not None
        covered += interval[0] <= truth <= interval[1]
    assert np.mean(found) < truth
    assert least <= covered / 120 <= most


def test_width_grows_with_noise_and_repeats_with_the_seed() -> None:
    curves = world(np.zeros(6))

    def width(s: float, seed: int) -> float:
        noise = pool_seed_noise([("a", "55k", np.array([[-s], [0.0], [s]]) * np.ones((3, 2)))])
        assert noise is not None
        loss = bootstrap(curves, GRID, noise, 300, [seed]).loss
        assert loss is not None
        interval = percentiles(loss[0], 0.95)
        assert interval is not None
        return interval[1] - interval[0]

    assert width(0.002, 1) == width(0.002, 1) != width(0.002, 2)
    assert width(0.02, 1) > 3 * width(0.002, 1)


def test_four_architectures_take_seconds() -> None:
    noise = pool_seed_noise([("a", "55k", np.array([[0.0], [0.01]]))])
    assert noise is not None
    begin = time.perf_counter()
    for seed in range(4):
        bootstrap(world(np.zeros(6)), GRID, noise, 1000, [seed])
    assert time.perf_counter() - begin < 5


def test_percentiles_need_half_of_the_replicates() -> None:
    assert percentiles(np.array([1.0, 2.0, np.nan]), 0.5) == [1.25, 1.75]
    assert percentiles(np.array([1.0, np.nan, np.nan]), 0.5) is None
