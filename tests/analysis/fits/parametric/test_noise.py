"""Noise of trunks and runs from residuals."""

import numpy as np
import pytest
from scipy import optimize

from analysis.fits.parametric.noise import kinds_of, measure, replicates


def labels(trunks, runs_each, rows_each=1):
    trunk = np.repeat([f"t{i}" for i in range(trunks)], runs_each * rows_each)
    run = np.repeat([f"r{i}" for i in range(trunks * runs_each)], rows_each)
    return trunk, run


def test_of_single_rows_it_is_the_residual_mean_square():
    rng = np.random.default_rng(0)
    jacobian = rng.standard_normal((12, 5))
    y = rng.standard_normal(12)
    residual = y - jacobian @ np.linalg.lstsq(jacobian, y)[0]
    run = np.array([f"r{i}" for i in range(12)])
    found = measure(residual, jacobian, np.ones(12), kinds_of(run, run, np.zeros(12)))
    assert found.s == pytest.approx([np.sqrt((residual**2).sum() / 7)])
    assert found.df == pytest.approx([7])


def test_noise_of_trunks_and_runs_is_told_apart():
    """Over 400 draws the mean variances are right: the fit's share of them is allowed for."""
    rng = np.random.default_rng(0)
    trunk, run = labels(6, 4)
    jacobian = np.column_stack([np.ones(24), np.repeat(rng.standard_normal(6), 4), rng.standard_normal((24, 2))])
    kinds = kinds_of(trunk, run, np.zeros(24))
    assert [kind.name for kind in kinds] == ["trunk", "run"]
    maker = np.eye(24) - jacobian @ np.linalg.pinv(jacobian)
    variances = []
    for _ in range(400):
        noise = 2.0 * rng.standard_normal(6)[kinds[0].member] + 0.5 * rng.standard_normal(24)
        variances.append(measure(maker @ noise, jacobian, np.ones(24), kinds).s ** 2)
    assert np.mean(variances, 0) == pytest.approx([4.0, 0.25], rel=0.1)


def test_a_curve_has_a_level_and_a_slope():
    rng = np.random.default_rng(0)
    trunk, run = labels(8, 1, 10)
    log_d = np.tile(np.linspace(0, 2, 10), 8)
    kinds = kinds_of(trunk, run, log_d)
    assert [kind.name for kind in kinds] == ["run", "slope along a run"]
    assert kinds[1].share.reshape(8, 10).std(1) == pytest.approx(1)
    jacobian = np.column_stack([np.ones(80), log_d])
    maker = np.eye(80) - jacobian @ np.linalg.pinv(jacobian)
    variances = []
    for _ in range(400):
        level, slope = 2.0 * rng.standard_normal(8), 0.5 * rng.standard_normal(8)
        noise = level[kinds[0].member] + slope[kinds[0].member] * kinds[1].share
        variances.append(measure(maker @ noise, jacobian, np.ones(80), kinds).s ** 2)
    assert np.mean(variances, 0) == pytest.approx([4.0, 0.25], rel=0.1)


def test_draws_have_the_noise_that_was_measured():
    trunk, run = labels(6, 4)
    kinds = kinds_of(trunk, run, np.zeros(24))
    found = measure(np.random.default_rng(0).standard_normal(24), np.ones((24, 1)), np.ones(24), kinds)
    drawn = type(found)(kinds, np.array([2.0, 0.5]), np.array([1e6, 1e6])).draw(np.random.default_rng(0), 20_000)
    covariance = drawn.T @ drawn / len(drawn)
    assert covariance[0, :5] == pytest.approx([4.25, 4, 4, 4, 0], abs=0.15)


def test_seed_noise_measured_elsewhere():
    rng = np.random.default_rng(0)
    run = np.array([f"r{i}" for i in range(8)])
    jacobian, kinds = rng.standard_normal((8, 5)), kinds_of(run, run, np.zeros(8))
    residual = (np.eye(8) - jacobian @ np.linalg.pinv(jacobian)) @ rng.standard_normal(8)
    alone = measure(residual, jacobian, np.ones(8), kinds)
    pooled = measure(residual, jacobian, np.ones(8), kinds, (1.0, 9))
    assert pooled.df == pytest.approx([12])
    assert pooled.s**2 == pytest.approx((3 * alone.s**2 + 9) / 12)
    misses = measure(
        10 * residual, jacobian, np.ones(8), kinds, (1.0, 9)
    )  # more than seeds do: the surface does not fit
    assert misses.s == pytest.approx(10 * alone.s) and misses.df == pytest.approx([3])


def test_without_a_degree_of_freedom_there_is_no_noise_but_that_of_seeds():
    run = np.array([f"r{i}" for i in range(5)])
    jacobian, kinds = np.random.default_rng(0).standard_normal((5, 5)), kinds_of(run, run, np.zeros(5))
    assert measure(np.zeros(5), jacobian, np.ones(5), kinds) is None
    assert measure(np.zeros(5), jacobian, np.ones(5), kinds, (0.5, 4)).s == pytest.approx([0.5])


def test_runs_of_one_cell_tell_the_noise_and_whether_the_surface_fits():
    rng = np.random.default_rng(0)
    n = np.repeat(np.arange(8.0), 2)
    run = np.array([f"r{i}" for i in range(16)])
    jacobian, kinds = np.column_stack([np.ones(16), n]), kinds_of(run, run, np.zeros(16))
    maker, noise = np.eye(16) - jacobian @ np.linalg.pinv(jacobian), 0.1 * rng.standard_normal(16)
    for bend, fits in ((0.0, True), (0.1, False)):
        residual = maker @ (noise + bend * n**2)
        found = replicates(residual, n, np.zeros(16), run, measure(residual, jacobian, np.ones(16), kinds))
        assert found.df == 8 and found.s == pytest.approx(
            np.sqrt(np.diff(noise.reshape(8, 2)) ** 2 / 2).mean(), rel=0.5
        )
        assert (found.p_fits > 0.05) == fits
    assert replicates(residual[::2], n[::2], np.zeros(8), run[::2], None) is None


def test_what_a_fit_leaves_of_effects_is_as_the_matrices_say():
    """With the matrices of all runs written out, which measure() does without: they would be n by n."""
    rng = np.random.default_rng(0)
    trunk, run = labels(5, 3, 4)
    log_d = np.tile(np.linspace(0, 2, 4), 15) + 0.1 * rng.standard_normal(60)
    kinds = kinds_of(trunk, run, log_d)
    jacobian, weights, residual = rng.standard_normal((60, 4)), rng.uniform(0.2, 1, 60), rng.standard_normal(60)
    solve = np.linalg.pinv(jacobian * np.sqrt(weights)[:, None]) * np.sqrt(weights)
    matrices = [kind.matrix().toarray() for kind in kinds]
    averages = [one.T / (one**2).sum(0)[:, None] for one in matrices]
    left = [[mean @ (one - jacobian @ solve @ one) for one in matrices] for mean in averages]
    expected = np.array([[(one**2).sum() for one in row] for row in left])
    grams = [row[k].T @ row[k] for k, row in enumerate(left)]
    df = [np.trace(gram) ** 2 / (gram**2).sum() for gram in grams]
    seen = np.array([((mean @ residual) ** 2).sum() for mean in averages])
    found = measure(residual, jacobian, weights, kinds)
    assert found.df == pytest.approx(df)
    scale = np.diag(expected)
    assert found.s**2 == pytest.approx(optimize.nnls(expected / scale[:, None], seen / scale)[0])
