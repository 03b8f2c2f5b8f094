"""Architectures compared: what the joint fit finds, how pairing narrows differences, and what is refused."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from analysis.fits.comparison.compare import (
    Compared,
    compare_architectures,
    interval,
    log_gain,
    surfaces_of,
    token_savings,
)
from analysis.fits.comparison.draws import corrected, fit_paired, p_value_of_one_e
from analysis.fits.comparison.joint import fit, gather, unpack
from analysis.fits.comparison.pairs import describe_pairs
from analysis.fits.comparison.views import across
from analysis.fits.cost import Cost
from analysis.fits.surface import Surface
from arch.errors import InputError

from .worlds import NEAR, ONE, OTHER_TEXT, curves, study

NOISE = (0.005, 0.001)  # of cells and of runs, in log loss


def gain_of(one, other, loss):
    return float(np.log(one.flops_to_reach(loss) / other.flops_to_reach(loss)))


@pytest.fixture(scope="module")
def compared():
    return compare_architectures(study([ONE, NEAR], *NOISE, seed=3), n_replicates=199)


@pytest.mark.parametrize("shared", [True, False])
def test_without_noise_all_parameters_are_found(shared):
    points = gather(study([ONE, NEAR], 0, 0, seed=0))
    found, fine = unpack(points, fit(points, shared)[0][None], shared)
    assert fine.all()
    for surface, one in zip((ONE, NEAR), found.values(), strict=True):
        for name in ("E", "A", "alpha", "B", "beta"):
            assert getattr(one, name)[0] == pytest.approx(getattr(surface, name), rel=1e-7)


def test_the_solver_ends_where_scipys_does():
    data = gather(study([ONE, NEAR], *NOISE, seed=5))
    theta, total = fit(data)
    found = optimize.least_squares(
        lambda at: data.log_loss - data.predict(at[None], True)[0], theta * 1.05, xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    assert total == pytest.approx(2 * found.cost, rel=1e-9)
    np.testing.assert_allclose(theta, found.x, rtol=1e-5)


def test_a_term_that_vanished_stops_no_step():
    """Where size tells nothing, A of an architecture goes to nothing, and its columns with it."""
    flat = Surface(1.69, 1e-9, 410.7, 0.34, 0.28)
    points = gather(study([ONE, flat], 0.001, 0.0005, seed=0))
    theta, total = fit(points)
    alone, _ = fit(points, shared=False)
    surfaces, _ = unpack(points, theta[None], True)
    assert np.isfinite(theta).all() and np.isfinite(alone).all() and total < 40 * 0.002**2
    assert surfaces["b"].beta == pytest.approx([0.28], rel=0.05) and pytest.approx([406.4], rel=0.3) == surfaces["a"].A


def test_residuals_are_corrected_to_the_noise_they_had():
    """(1 - H)^(-1/2) of blocks: over many draws of noise the corrected residuals have its variance again."""
    rng = np.random.default_rng(0)
    slope, cell = rng.standard_normal((24, 5)), np.repeat(np.arange(12), 2)
    q, _ = np.linalg.qr(slope)
    noise = rng.standard_normal((4000, 24))
    left = noise - noise @ q @ q.T
    assert (left**2).mean() == pytest.approx(19 / 24, abs=0.02)
    assert np.mean([corrected(slope, one, cell) ** 2 for one in left]) == pytest.approx(1, abs=0.02)


def test_the_two_noises_are_told_apart():
    fitted = [fit_paired(gather(study([ONE, NEAR], *NOISE, seed=seed))) for seed in range(20)]
    assert np.mean([one.noise.cell**2 for one in fitted]) ** 0.5 == pytest.approx(NOISE[0], rel=0.15)
    assert np.mean([one.noise.run**2 for one in fitted]) ** 0.5 == pytest.approx(NOISE[1], rel=0.15)
    assert 9 <= fitted[0].df <= 16  # 40 runs, 9 parameters, most of 20 cells' means


def test_pairing_makes_the_interval_of_a_gain_three_times_narrower(compared):
    data = gather(study([ONE, NEAR], *NOISE, seed=3))
    alone = fit_paired(data, paired=False)
    surfaces, fine = surfaces_of(data, alone, 199, 0)
    unpaired = replace(compared, fine=fine, surfaces=surfaces)
    for loss in (2.7, 3.2, 4.0):
        widths = []
        for one in (compared, unpaired):
            low, high = interval(log_gain(one, "a", "b", loss), one)
            widths.append(high - low)
        assert widths[1] > 3 * widths[0]


def test_what_is_read_off_a_comparison(compared):
    told = describe_pairs(compared)
    (pair,) = told["pairs"]
    assert told["shared_e"] and told["share_of_draws"] > 0.99
    assert (pair["reference"], pair["other"]) == ("b", "a") and told["archs"] == ["b", "a"]
    for row in pair["gains"]:
        truth = gain_of(NEAR, ONE, row["loss"])
        assert np.log(row["gain"]) == pytest.approx(truth, abs=0.06)
        assert row["joint"][0] < row["interval"][0] < row["gain"] < row["interval"][1] < row["joint"][1]
        assert row["p_other_ahead"] == 0.0
    assert pair["crossing"]["c"] is None and pair["crossing"]["share"] < 0.05
    assert pair["exponents"]["alpha"]["interval"][0] < 0 < pair["exponents"]["alpha"]["interval"][1]
    saved = pair["savings"]
    assert saved["value"] == pytest.approx(
        NEAR.tokens_to_reach(saved["loss"], saved["n_params"]) / ONE.tokens_to_reach(saved["loss"], saved["n_params"]),
        rel=0.1,
    )
    assert token_savings(compared, "a", "b", 1.75, 1e6)["value"] == "unreachable"


def test_laws_that_cross_do_so_where_they_should():
    late = Surface(1.69, 430.0, 470.0, 0.345, 0.287)
    grid = np.geomspace(1e13, 1e21, 4000)
    truth = grid[np.abs(late.l_opt(grid) / ONE.l_opt(grid) - 1).argmin()]
    found = describe_pairs(compare_architectures(study([ONE, late], 0.003, 0.0003, seed=1), n_replicates=199))["pairs"][
        0
    ]["crossing"]
    assert found["share"] > 0.95 and found["interval"][0] < truth < found["interval"][1]
    assert found["c"] == pytest.approx(truth, rel=0.5)


def test_texts_of_other_entropy_are_not_given_one_e():
    found = compare_architectures(study([ONE, OTHER_TEXT], 0.002, 0.0005, seed=1), n_replicates=19)
    assert found.p_one_e < 0.01 and not found.fitted.shared


def test_the_order_of_rows_and_architectures_changes_nothing(compared):
    groups = study([ONE, NEAR], *NOISE, seed=3)
    turned = compare_architectures([one.take(np.arange(len(one))[::-1]) for one in groups[::-1]], n_replicates=19)
    assert log_gain(turned, "a", "b", 3.0)[0] == pytest.approx(log_gain(compared, "a", "b", 3.0)[0], rel=1e-7)


def test_gains_follow_the_real_cost():
    """Twice the cost of a token is twice the compute for every loss."""
    groups = study([ONE, NEAR], 0, 0, seed=0)
    knots = np.log([1e5, 1e7, 1e9])
    cost = Cost(knots, np.log(6) + np.array([1.2, 1.0, 0.9]) * (knots - knots[1]) + knots[1], "exact")
    found = [
        compare_architectures(groups, {"a": cost, "b": other}, 3)
        for other in (cost, replace(cost, log_cost=cost.log_cost + np.log(2)))
    ]
    gains = [log_gain(one, "a", "b", 3.0)[0] for one in found]
    assert gains[0] - gains[1] == pytest.approx(np.log(2), rel=1e-6)


def test_a_draw_that_needs_no_compute_for_a_loss_gives_no_warning(compared):
    """Draws at a bound of the fit may have it: no interval reads them, and their logarithm is no news to a user."""
    tiny = Surface(*(np.array([value]) for value in (0.0, 1.0, 1e-200, 0.3, 0.217)))
    found = replace(compared, surfaces=compared.surfaces | {"a": tiny})
    assert found.flops_to_reach("a", 3.0)[0] == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert log_gain(found, "b", "a", 3.0)[0] == np.inf


def test_a_verdict_stands_only_under_all_views():
    groups = study([ONE, NEAR], *NOISE, seed=3)
    dear = [groups[0], replace(groups[1], flops=groups[1].flops * 1.5)]  # b's token costs half as much again
    views = {"6nd": groups, "GPU-seconds": dear}
    both = {(row["beyond"]): row for row in across(views, 199)["pairs"]}
    assert not both[False]["stands"] and both[False]["by_view"] == {"6nd": "b", "GPU-seconds": "a"}
    (same, _) = across({"6nd": groups, "exact": groups}, 199)["pairs"]
    assert same["stands"] and same["ahead"] == "b"
    missing = across({"6nd": groups, "exact": groups[:1], "GPU-seconds": "no hardware is recorded"}, 19)
    reasons = [missing["views"][name]["reason"] for name in ("exact", "GPU-seconds")]
    assert reasons == ["a comparison needs two architectures, there is 1", "no hardware is recorded"]
    inside = missing["pairs"][0]
    assert inside["by_view"] == {"6nd": "b", "exact": None, "GPU-seconds": None} and not inside["stands"]


def test_what_cannot_be_compared_is_refused(compared):
    one, other = study([ONE, NEAR], *NOISE, seed=0)
    for groups, message in (
        ([one], "needs two architectures"),
        ([one, replace(other, convention="exact")], "one convention, there are 6nd, exact"),
        ([one, replace(other, loss_unit="bits/byte")], "one loss unit"),
        ([one, replace(other, loss_of="corpus c4")], "one kind of loss, there are unstated, corpus c4"),
        ([one, other.take(np.arange(5))], "b: L = E .* these points have 2"),
        ([one, other.take(np.flatnonzero(other.n_params == other.n_params[0]))], "b: .* needs 3 or more different N"),
        ([one, replace(other, n_tokens=20 * other.n_params)], "b: .*D follows N"),
    ):
        with pytest.raises(InputError, match=message):
            compare_architectures(groups, n_replicates=3)
    apart = Compared(**{**vars(compared), "spans": {"a": (1e15, 1e16), "b": (1e18, 1e19)}})
    with pytest.raises(InputError, match="no compute was reached by all"):
        describe_pairs(apart)


def test_a_fit_that_ends_at_a_bound_tells_nothing(compared):
    with pytest.raises(InputError, match="nothing is identified"):
        describe_pairs(replace(compared, fine=np.concatenate([[False], compared.fine[1:]])))


def test_noise_between_seeds_is_the_least_noise_of_a_run():
    data = gather(study([ONE, NEAR], *NOISE, seed=3))
    plain, floored = fit_paired(data), fit_paired(data, seed_noise=0.02)
    assert floored.noise.run == pytest.approx((0.02**2 - floored.noise.cell**2) ** 0.5, rel=0.02)
    assert plain.noise.run < 0.002 and fit_paired(data, seed_noise=0.001).noise == plain.noise


def test_the_test_of_one_e_errs_as_often_as_it_says_and_finds_other_texts():
    """Under one E its p values are uniform; a difference of 0.15 nats is found."""
    same = [p_value_of_one_e(data, fit_paired(data, shared=False)) for data in drawn_studies(ONE, NEAR, 80)]
    assert 0.35 < np.mean(np.array(same) < 0.5) < 0.65 and np.mean(np.array(same) < 0.05) < 0.15
    other = replace(NEAR, E=NEAR.E + 0.15)
    told = [p_value_of_one_e(data, fit_paired(data, shared=False)) for data in drawn_studies(ONE, other, 20)]
    assert np.mean(np.array(told) < 0.01) > 0.8
    ladders = [gather(curves([ONE, NEAR], 0.0, 0.005, seed)) for seed in range(40)]
    assert np.mean([p_value_of_one_e(data, fit_paired(data, shared=False)) < 0.01 for data in ladders]) < 0.05
    ladders = [gather(curves([ONE, other], 0.004, 0.001, seed)) for seed in range(10)]
    assert np.mean([p_value_of_one_e(data, fit_paired(data, shared=False)) < 0.01 for data in ladders]) > 0.8


def drawn_studies(one, other, count):
    return (gather(study([one, other], *NOISE, seed=seed)) for seed in range(count))
