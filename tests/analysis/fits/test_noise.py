"""Seed noise: pooling by hand, and how far it remembers itself along a curve."""

import math

import numpy as np
import pytest
from scipy import signal, stats

from analysis.design.worlds import paths
from analysis.fits.noise import Group, degrees, degrees_text, pool_seed_noise


def test_noise_is_pooled_by_degrees_of_freedom() -> None:
    three = np.array([[0.0], [1.0], [2.0]]) * np.ones((3, 7))  # variance 1, 2 degrees of freedom
    two = np.array([[0.0], [2.0]]) * np.ones((2, 7))  # variance 2, 1 degree of freedom
    lonely = np.zeros((1, 7))
    noise = pool_seed_noise([Group("llama", "55k", three), Group("tnl", "55k", two), Group("tnl", "98k", lonely)])
    assert noise is not None
    assert noise.df == 3
    assert noise.s == pytest.approx(math.sqrt((2 * 1 + 1 * 2) / 3))
    assert [group.n_seeds for group in noise.groups] == [3, 2]


def test_no_replicates_no_noise() -> None:
    assert pool_seed_noise([Group("llama", "55k", np.zeros((1, 7)))]) is None
    assert pool_seed_noise([Group("llama", "55k", np.full((2, 7), np.inf))]) is None


@pytest.mark.parametrize(("memory", "expected"), [(math.inf, 1.0), (1.5, math.exp(-1 / 1.5)), (0.1, 0.01)])
def test_correlation_along_a_curve(memory: float, expected: float) -> None:
    """200 groups of three seeds over four e-folds; what is hardly correlated counts as 0.01."""
    rng = np.random.default_rng(0)
    at = np.arange(0, 4, 0.05)
    groups = [Group("tnl", f"{i}", 0.01 * np.stack([paths(rng, at, memory) for _ in range(3)])) for i in range(200)]
    noise = pool_seed_noise(groups, 0.05)
    assert noise is not None
    assert noise.s == pytest.approx(0.01, rel=0.06)
    assert noise.correlation == pytest.approx(expected, abs=0.05)


def test_a_stretch_too_short_for_a_correlation_counts_as_correlated() -> None:
    noise = pool_seed_noise([Group("tnl", "a", np.random.default_rng(0).standard_normal((3, 10)))], 0.05)
    assert noise is not None and noise.correlation == 1.0


AT = np.arange(0, 3, 0.05)


def sharing(rng, n, seeds, rho, memory=20.0, batches=True):
    """n architectures whose seeds' curves are correlated by rho between architectures, by exp(-step / memory) along."""
    kept = math.exp(-0.05 / memory)

    def curves():
        steps = rng.standard_normal((seeds, len(AT)))
        steps[:, 1:] *= math.sqrt(1 - kept**2)
        return signal.lfilter([1], [1, -kept], steps, axis=1)

    shared, names = curves(), tuple(map(str, range(seeds))) if batches else ()
    return [
        Group(f"{i}", "55k", math.sqrt(rho) * shared + math.sqrt(1 - rho) * curves(), (), names, AT) for i in range(n)
    ]


def test_architectures_that_read_the_same_batches_count_by_their_correlation() -> None:
    rng = np.random.default_rng(0)
    same = sharing(rng, 4, 3, 1.0)
    assert degrees(same) == pytest.approx((2.0, 1.0))  # one architecture four times
    apart = [one._replace(batches=(f"{i}a", f"{i}b", f"{i}c")) for i, one in enumerate(same)]
    assert degrees(apart) == (8.0, None)
    df, rho = degrees(sharing(rng, 4, 3, 0.6))
    assert rho is not None and 0.3 < rho < 0.8 and df == pytest.approx(8 / (1 + 3 * rho**2))
    unknown = [one._replace(at=AT + 10 * i) for i, one in enumerate(sharing(rng, 4, 2, 0.0))]
    assert degrees(unknown) == pytest.approx((1.0, 1.0))  # no common points along the run
    half = [one._replace(batches=("0", f"{i}")) for i, one in enumerate(unknown, 1)]
    assert degrees(half) == pytest.approx((16 / (4 + 12 / 4), 1.0))  # differences that have one seed of two in common
    other = [same[0], same[1]._replace(size="98k")]
    assert degrees(other) == pytest.approx((2.0, 1.0))  # sizes read the same text too


def test_degrees_are_told_rounded_down() -> None:
    assert [degrees_text(df) for df in (4, 4.0, 2.19, 1.0, 2.0999999999)] == ["4", "4", "2.1", "1", "2.1"]


def covered(n: int, seeds: int, rho: float, memory: float, draws: int) -> tuple[float, float]:
    """Of nominal 95% t intervals, by summed degrees of freedom and by those that are pooled."""
    rng = np.random.default_rng(0)
    hits = np.zeros(2)
    for _ in range(draws):
        noise = pool_seed_noise(sharing(rng, n, seeds, rho, memory), 0.05)
        assert noise is not None
        off = abs(rng.standard_normal())
        hits += [off <= noise.s * stats.t.ppf(0.975, df) for df in (n * (seeds - 1), noise.df)]
    return tuple(hits / draws)


def test_intervals_cover_where_architectures_share_batches() -> None:
    summed, pooled = covered(4, 2, 0.9, 20.0, 1000)
    assert summed < 0.92 and pooled > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seeds"), [(4, 2), (3, 3)])
@pytest.mark.parametrize("memory", [1.5, 20.0])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7, 0.9])
def test_coverage_in_2000_draws(n: int, seeds: int, memory: float, rho: float) -> None:
    assert covered(n, seeds, rho, memory, 2000)[1] > 0.95 - 0.01


def test_noise_of_points_counts_in_the_mean_of_a_curve_by_its_share():
    """Runs 0.4% apart, their points by 1% more: means of the last decade, 12 of 24 points, differ by less."""
    rng, at = np.random.default_rng(3), np.linspace(0.0, 2 * np.log(10.0) * 23 / 24, 24)
    groups = [
        Group("llama", str(i), 0.004 * rng.standard_normal((3, 1)) + 0.01 * rng.standard_normal((3, 24)), at=at)
        for i in range(400)
    ]
    noise = pool_seed_noise(groups)
    assert noise is not None and noise.of_means is not None
    assert noise.s == pytest.approx(np.hypot(0.004, 0.01), rel=0.05)
    assert noise.of_means == pytest.approx(np.hypot(0.004, 0.01 / np.sqrt(12)), rel=0.07)
