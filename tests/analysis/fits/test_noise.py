"""Noise between seeds, pooled by hand and by tests of equality; noise of whole trunks and runs from residuals."""

import math

import numpy as np
import pytest
from scipy import optimize, signal, stats

from analysis.design.worlds import paths
from analysis.fits.noise import (
    CUT,
    Group,
    SeedNoises,
    degrees,
    degrees_text,
    effects_of,
    equal_parts,
    kinds_of,
    pool_seed_noise,
    same_runs,
)


def test_noise_is_pooled_by_degrees_of_freedom():
    three = np.array([[0.0], [1.0], [2.0]]) * np.ones((3, 7))  # variance 1, 2 degrees of freedom
    two = np.array([[0.0], [2.0]]) * np.ones((2, 7))  # variance 2, 1 degree of freedom
    noise = pool_seed_noise(
        [Group("llama", "55k", three), Group("tnl", "55k", two), Group("tnl", "98k", np.zeros((1, 7)))]
    )
    assert noise.df == 3 and noise.s == pytest.approx(math.sqrt((2 * 1 + 1 * 2) / 3)) and noise.correlation == 1.0
    assert [group.n_seeds for group in noise.groups] == [3, 2]
    for nothing in (np.zeros((1, 7)), np.full((2, 7), np.inf)):
        assert pool_seed_noise([Group("llama", "55k", nothing)]) is None


@pytest.mark.parametrize(("memory", "expected"), [(math.inf, 1.0), (1.5, math.exp(-1 / 1.5)), (0.1, 0.01)])
def test_correlation_along_a_curve(memory, expected):
    """200 groups of three seeds over four e-folds; what is hardly correlated counts as 0.01."""
    rng = np.random.default_rng(0)
    at = np.arange(0, 4, 0.05)
    groups = [Group("tnl", f"{i}", 0.01 * np.stack([paths(rng, at, memory) for _ in range(3)])) for i in range(200)]
    noise = pool_seed_noise(groups, 0.05)
    assert noise.s == pytest.approx(0.01, rel=0.06) and noise.correlation == pytest.approx(expected, abs=0.05)


def test_noise_of_points_counts_in_the_mean_of_a_curve_by_its_share():
    """Runs 0.4% apart, their points by 1% more: means of the last decade, 12 of 24 points, differ by less."""
    rng, at = np.random.default_rng(3), np.linspace(0.0, 2 * np.log(10.0) * 23 / 24, 24)
    groups = [
        Group("llama", str(i), 0.004 * rng.standard_normal((3, 1)) + 0.01 * rng.standard_normal((3, 24)), at=at)
        for i in range(400)
    ]
    noise = pool_seed_noise(groups)
    assert noise.s == pytest.approx(np.hypot(0.004, 0.01), rel=0.05)
    assert noise.of_runs == noise.of_means == pytest.approx(np.hypot(0.004, 0.01 / np.sqrt(12)), rel=0.07)


AT = np.arange(0, 3, 0.05)


def sharing(rng, n, seeds, rho, memory=20.0):
    """n architectures whose seeds' curves are correlated by rho between architectures, by exp(-step / memory) along."""
    kept = math.exp(-0.05 / memory)

    def curves():
        steps = rng.standard_normal((seeds, len(AT)))
        steps[:, 1:] *= math.sqrt(1 - kept**2)
        return signal.lfilter([1], [1, -kept], steps, axis=1)

    shared, names = curves(), tuple(map(str, range(seeds)))
    return [
        Group(f"{i}", "55k", math.sqrt(rho) * shared + math.sqrt(1 - rho) * curves(), (), names, AT) for i in range(n)
    ]


def test_architectures_that_read_the_same_batches_count_by_their_correlation():
    rng = np.random.default_rng(0)
    same = sharing(rng, 4, 3, 1.0)
    assert degrees(same) == pytest.approx(2)  # one architecture four times
    apart = [group._replace(batches=(f"{i}a", f"{i}b", f"{i}c")) for i, group in enumerate(same)]
    assert degrees(apart) == 8
    assert 8 / (1 + 3 * 0.8**2) < degrees(sharing(rng, 4, 3, 0.6)) < 8 / (1 + 3 * 0.3**2)
    unknown = [group._replace(at=AT + 10 * i) for i, group in enumerate(sharing(rng, 4, 2, 0.0))]
    assert degrees(unknown) == pytest.approx(1)  # no common points along the run
    half = [group._replace(batches=("0", f"{i}")) for i, group in enumerate(unknown, 1)]
    assert degrees(half) == pytest.approx(16 / (4 + 12 / 4))  # differences that have one seed of two in common
    assert degrees([same[0], same[1]._replace(size="98k")]) == pytest.approx(2)  # sizes read the same text too
    assert [degrees_text(df) for df in (4, 4.0, 2.19, 1.0, 2.0999999999)] == ["4", "4", "2.1", "1", "2.1"]


def covered(n, seeds, rho, memory, draws):
    """Of nominal 95% t intervals, by summed degrees of freedom and by those that are pooled."""
    rng = np.random.default_rng(0)
    hits = np.zeros(2)
    for _ in range(draws):
        noise = pool_seed_noise(sharing(rng, n, seeds, rho, memory), 0.05)
        off = abs(rng.standard_normal())
        hits += [off <= noise.s * stats.t.ppf(0.975, df) for df in (n * (seeds - 1), noise.df)]
    return tuple(hits / draws)


def test_intervals_cover_where_architectures_share_batches():
    summed, pooled = covered(4, 2, 0.9, 20.0, 1000)
    assert summed < 0.92 and pooled > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seeds"), [(4, 2), (3, 3)])
@pytest.mark.parametrize("memory", [1.5, 20.0])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7, 0.9])
def test_coverage_in_2000_draws(n, seeds, memory, rho):
    assert covered(n, seeds, rho, memory, 2000)[1] > 0.95 - 0.01


def seeds_of(arch, s, rng, sizes=4, n=3):
    """Groups of n seeds of `sizes` sizes of one architecture, whose curves lie apart as wholes."""
    return [Group(arch, str(i), s * rng.standard_normal((n, 1)) + np.zeros((n, 7))) for i in range(sizes)]


def test_a_noisy_architecture_is_in_no_pool_of_the_others():
    rng = np.random.default_rng(0)
    quiet = [group for arch in ("llama", "tnl", "hgrn2") for group in seeds_of(arch, 0.004, rng)]
    noises = SeedNoises(tuple(quiet + seeds_of("cosformer2", 0.04, rng)))
    assert [sorted(part) for part in noises.kinds] == [["hgrn2", "llama", "tnl"], ["cosformer2"]]
    assert noises.of("llama") == noises.of("tnl") == pool_seed_noise(quiet)
    assert noises.of("llama").df == 24 and noises.of_others("llama").df == 16
    assert noises.of("cosformer2").df == 8 and noises.of_others("cosformer2") is None
    assert noises.of("cosformer2").s > 5 * noises.of("llama").s
    assert noises.of("mamba2") == noises.of_others("mamba2") == pool_seed_noise(noises.groups)  # no seeds of its own
    assert [part.df for part in noises.every.parts] == [24, 8]
    assert noises.every.of("tnl").df == 24 and noises.every.of("mamba2").df == 32
    assert SeedNoises(()).kinds == [] and SeedNoises(()).of("llama") is None is SeedNoises(()).every


def test_variances_come_in_as_many_parts_as_are_told_apart():
    rng, df = np.random.default_rng(1), (2.0, 4.0, 4.0, 6.0)
    cut = [len(equal_parts(rng.chisquare(df) / df, df)) > 1 for _ in range(2000)]
    assert np.mean(cut) == pytest.approx(CUT, abs=0.02)  # three standard errors
    variances = [100.0, 1.1, 1.0, 9800.0, 110.0]
    assert equal_parts(variances, [30.0] * 5) == [[2, 1], [0, 4], [3]]
    assert equal_parts(variances, [0.5] * 5) == [[2, 1, 0, 4, 3]]
    assert equal_parts([0.0, 1.0, 1.1], [8.0] * 3) == [[0], [1, 2]]  # seeds that end alike
    assert equal_parts([2.0], [1.0]) == [[0]] and equal_parts([], []) == []


def labels(trunks, runs_each, rows_each=1):
    trunk = np.repeat([f"t{i}" for i in range(trunks)], runs_each * rows_each)
    run = np.repeat([f"r{i}" for i in range(trunks * runs_each)], rows_each)
    return trunk, run


def measured(jacobian, kinds, draw):
    """Mean variances of the kinds over 400 draws: the fit's share of them is allowed for."""
    n = len(jacobian)
    maker = np.eye(n) - jacobian @ np.linalg.pinv(jacobian)
    return np.mean([effects_of(maker @ draw(), jacobian, np.ones(n), kinds).s ** 2 for _ in range(400)], 0)


def test_noise_of_trunks_and_of_runs():
    rng = np.random.default_rng(0)
    trunk, run = labels(6, 4)
    jacobian = np.column_stack([np.ones(24), np.repeat(rng.standard_normal(6), 4), rng.standard_normal((24, 2))])
    kinds = kinds_of(trunk, run, np.zeros(24))
    assert [kind.name for kind in kinds] == ["trunk", "run"]
    variances = measured(
        jacobian, kinds, lambda: 2.0 * rng.standard_normal(6)[kinds[0].member] + 0.5 * rng.standard_normal(24)
    )
    assert variances == pytest.approx([4.0, 0.25], rel=0.1)
    effects = effects_of(rng.standard_normal(24), np.ones((24, 1)), np.ones(24), kinds)
    drawn = type(effects)(kinds, np.array([2.0, 0.5]), np.array([1e6, 1e6])).draw(rng, 20_000)
    assert (drawn.T @ drawn / len(drawn))[0, :5] == pytest.approx([4.25, 4, 4, 4, 0], abs=0.15)


def test_a_curve_has_a_level_and_a_slope():
    rng = np.random.default_rng(0)
    log_d = np.tile(np.linspace(0, 2, 10), 8)
    kinds = kinds_of(*labels(8, 1, 10), log_d)
    assert [kind.name for kind in kinds] == ["run", "slope along a run"]
    assert kinds[1].share.reshape(8, 10).std(1) == pytest.approx(1)

    def draw():
        level, slope = 2.0 * rng.standard_normal(8), 0.5 * rng.standard_normal(8)
        return level[kinds[0].member] + slope[kinds[0].member] * kinds[1].share

    assert measured(np.column_stack([np.ones(80), log_d]), kinds, draw) == pytest.approx([4.0, 0.25], rel=0.1)


def test_seed_noise_measured_elsewhere_is_pooled_with_the_residuals():
    rng = np.random.default_rng(0)
    run = np.array([f"r{i}" for i in range(8)])
    jacobian, kinds = rng.standard_normal((8, 5)), kinds_of(run, run, np.zeros(8))
    residual = (np.eye(8) - jacobian @ np.linalg.pinv(jacobian)) @ rng.standard_normal(8)
    alone = effects_of(residual, jacobian, np.ones(8), kinds)
    assert alone.s == pytest.approx([np.sqrt((residual**2).sum() / 3)]) and alone.df == pytest.approx([3])
    pooled = effects_of(residual, jacobian, np.ones(8), kinds, (1.0, 9))
    assert pooled.df == pytest.approx([12]) and pooled.s**2 == pytest.approx((3 * alone.s**2 + 9) / 12)
    misses = effects_of(10 * residual, jacobian, np.ones(8), kinds, (1.0, 9))  # more than seeds do
    assert misses.s == pytest.approx(10 * alone.s) and misses.df == pytest.approx([3])
    full = rng.standard_normal((8, 8))  # leaves no degree of freedom
    assert effects_of(np.zeros(8), full, np.ones(8), kinds) is None
    assert effects_of(np.zeros(8), full, np.ones(8), kinds, (0.5, 4)).s == pytest.approx([0.5])


def test_the_same_runs_measure_the_noise_and_whether_the_surface_fits():
    rng = np.random.default_rng(0)
    n, recipe = np.repeat(np.arange(8.0), 2), np.full(16, "")
    run = np.array([f"r{i}" for i in range(16)])
    jacobian, kinds = np.column_stack([np.ones(16), n]), kinds_of(run, run, np.zeros(16))
    maker, noise = np.eye(16) - jacobian @ np.linalg.pinv(jacobian), 0.1 * rng.standard_normal(16)
    for bend, fits in ((0.0, True), (0.1, False)):
        residual = maker @ (noise + bend * n**2)
        effects = effects_of(residual, jacobian, np.ones(16), kinds)
        result = same_runs(residual, n, np.zeros(16), run, recipe, effects)
        assert result.df == 8 and (result.p_fits > 0.05) == fits
        assert result.s == pytest.approx(np.sqrt(np.diff(noise.reshape(8, 2)) ** 2 / 2).mean(), rel=0.5)
    assert same_runs(residual, n, np.zeros(16), run, np.arange(16).astype(str), effects) is None  # of other recipes


def test_what_a_fit_leaves_of_effects_is_as_the_matrices_say():
    """With the matrices of all runs written out, which effects_of() does without: they would be n by n."""
    rng = np.random.default_rng(0)
    trunk, run = labels(5, 3, 4)
    kinds = kinds_of(trunk, run, np.tile(np.linspace(0, 2, 4), 15) + 0.1 * rng.standard_normal(60))
    jacobian, weights, residual = rng.standard_normal((60, 4)), rng.uniform(0.2, 1, 60), rng.standard_normal(60)
    solve = np.linalg.pinv(jacobian * np.sqrt(weights)[:, None]) * np.sqrt(weights)
    matrices = [kind.matrix().toarray() for kind in kinds]
    averages = [matrix.T / (matrix**2).sum(0)[:, None] for matrix in matrices]
    left = [[mean @ (matrix - jacobian @ solve @ matrix) for matrix in matrices] for mean in averages]
    expected = np.array([[(cell**2).sum() for cell in row] for row in left])
    grams = [row[k].T @ row[k] for k, row in enumerate(left)]
    seen = np.array([((mean @ residual) ** 2).sum() for mean in averages])
    effects = effects_of(residual, jacobian, weights, kinds)
    assert effects.df == pytest.approx([np.trace(gram) ** 2 / (gram**2).sum() for gram in grams])
    scale = np.diag(expected)
    assert effects.s**2 == pytest.approx(optimize.nnls(expected / scale[:, None], seen / scale)[0])
