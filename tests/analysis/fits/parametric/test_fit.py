"""The public fit: points in, result with intervals out."""

import json

import numpy as np
import pytest

from analysis.fits.cost import Cost, six_nd
from analysis.fits.fit import Fit
from analysis.fits.forms import DATA_CONSTRAINED, OVER_TRAINING
from analysis.fits.parametric.draws import Draws, quantiles
from analysis.fits.parametric.fit import fit_parametric
from analysis.fits.parametric.results import parametric_result
from analysis.fits.parametric.tied import p_of_tie
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES, OBJECTIVES
from analysis.fits.surface import Surface, effective
from arch.errors import InputError

from .cases import SURFACES, chinchilla, grid, params

TRUTH = SURFACES[0]


def study(sizes=6, amounts=4, s=0.005, seed=0, per_token=6.0, **labels):
    n, d = grid(sizes, amounts)
    noise = np.exp(s * np.random.default_rng(seed).standard_normal(len(n)))
    return Points(n, d, per_token * n * d, TRUTH.loss(n, d) * noise, **labels)


def test_the_chinchilla_points_end_to_end():
    found = parametric_result(fit_parametric(chinchilla()), at=[5.76e23], predict=[(70e9, 1.4e12)])
    assert found.parameters["a"].value == pytest.approx(0.51390, rel=1e-4)
    assert found.parameters["a"].interval == pytest.approx((0.480, 0.557), abs=0.01)
    assert found.objective.value == pytest.approx(0.00101827, rel=1e-4)
    assert found.objective.worst == pytest.approx(found.objective.value) and found.objective.abnormal == 0
    assert found.intervals.method == "bootstrap over 240 runs, percentile interval"
    one = found.optima[0]
    assert one.n_params.value * one.n_tokens.value * 6 == pytest.approx(5.76e23)
    assert one.n_params.low < one.n_params.value < one.n_params.high
    again = Fit.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found and again.parameters["E"].value == pytest.approx(1.817218, rel=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_intervals_hold_the_truth_of_this_study(objective):
    found = parametric_result(fit_parametric(study(), objective=objective, n_replicates=199), at=[1e20])
    truth = TRUTH.to_dict() | {"a": TRUTH.a, "b": TRUTH.b}
    for name, value in truth.items():
        one = found.parameters[name]
        assert one.low < value < one.high and one.low < one.value < one.high, name
    assert found.parameters["N_opt"].value == pytest.approx(TRUTH.n_opt(found.middle.flops), rel=0.1)
    assert not found.reasons


def test_large_integers_do_not_overflow():
    n, d = (np.round(values * 1000).astype(np.int64) for values in grid())
    assert n.max() * 6 > 5e12 and n.dtype == d.dtype == np.int64
    loss = TRUTH.loss(n, d)
    found = fit_parametric(Points(n, d, 6.0 * n * d, loss), n_replicates=19)
    assert params(found.surface) == pytest.approx(params(TRUTH), rel=1e-8)
    assert found.surface.loss(np.array([7_000_000_000]), np.array([300_000_000_000])) == pytest.approx(
        TRUTH.loss(7e9, 3e11)
    )


def test_the_same_seed_is_the_same_interval_and_the_order_of_rows_does_not_matter():
    points = study()
    order = np.random.default_rng(1).permutation(len(points))
    one, again, other = (fit_parametric(p, n_replicates=99) for p in (points, points, points.take(order)))
    assert np.array_equal(one.draws.surface.alpha, again.draws.surface.alpha)
    assert params(other.surface) == pytest.approx(params(one.surface), rel=1e-6)


def test_the_same_run_twice_is_one():
    points = study(4, 3)
    twice = points.take(np.tile(np.arange(12), 2))
    one, both = (parametric_result(fit_parametric(p, n_replicates=99)) for p in (points, twice))
    for name, mine in both.parameters.items():
        assert mine.value == pytest.approx(one.parameters[name].value), name
    assert both.a.interval == pytest.approx(one.a.interval) and both.left_out == ("12 rows given twice",)


def test_few_runs_widen_the_interval_and_too_few_have_none():
    widths = {}
    for sizes, amounts in ((6, 3), (3, 3)):
        low, high = parametric_result(fit_parametric(study(sizes, amounts), n_replicates=199)).parameters["a"].interval
        widths[sizes * amounts] = high - low
    assert widths[9] > 2 * widths[18]
    for points in (study().take([3]), study().take([0, 7, 14]), study(1, 8)):
        with pytest.raises(InputError, match=r"needs [36] or more different"):
            fit_parametric(points)


def test_six_points_leave_one_degree_of_freedom():
    n = np.array([1e7, 1e7, 1e8, 1e8, 1e9, 1e9])
    d = np.array([1e9, 1e10, 2e9, 2e10, 4e9, 4e10])
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(6))
    found = parametric_result(fit_parametric(Points(n, d, 6 * n * d, TRUTH.loss(n, d) * noise), n_replicates=199))
    low, high = found.parameters["a"].interval
    assert high - low > 0.2


def test_five_points_determine_the_over_training_form():
    """Gadre et al. 2024 publish a protocol of five: four unknowns, and one degree of freedom. Whether alpha = beta is
    not tested then, and the plain form needs six."""
    n = np.array([1e7, 8e7, 1.5e8, 4e8, 1e7])
    d = np.array([2e8, 1.6e9, 3e9, 8e9, 3.2e9])
    one = Surface(1.69, 400.0, 400.0, 0.3, 0.3)
    points = Points(n, d, 6 * n * d, one.loss(n, d))
    found = fit_parametric(points, form=OVER_TRAINING, n_replicates=99)
    assert found.surface.to_dict() == pytest.approx(one.to_dict(), rel=1e-6) and found.p_tied is None
    with pytest.raises(InputError, match=r"with alpha = beta needs 5 or more different \(N, D\); 4 given"):
        fit_parametric(points.take(np.arange(1, 5)), form=OVER_TRAINING)
    with pytest.raises(InputError, match="needs 6 or more"):
        fit_parametric(points)


def test_seed_noise_measured_elsewhere_narrows_the_interval_of_few_runs():
    points = study(3, 3, 0.003)
    alone, told = (fit_parametric(points, n_replicates=199, noise=noise) for noise in (None, (0.003, 30)))
    assert told.effects.df == pytest.approx([34], abs=0.5)
    narrow, wide = (parametric_result(one).parameters["a"].interval for one in (told, alone))
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_runs_of_one_trunk_are_drawn_together():
    trunk = np.repeat([f"t{i}" for i in range(6)], 4)
    run = np.array([f"r{i}" for i in range(24)])
    branched = fit_parametric(study(run=run, trunk=trunk), n_replicates=99)
    assert branched.draws.over == "6 trunks" and "trunks" in branched.draws.method
    assert [kind.name for kind in branched.effects.kinds] == ["trunk", "run"]
    assert fit_parametric(study(run=run), n_replicates=99).draws.method.startswith("bootstrap over 24 runs")


def test_whole_curves_count_as_runs():
    n, d = grid(6, 30)
    run = np.repeat([f"r{i}" for i in range(6)], 30)
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(6)).repeat(30)
    points = Points(n, d, 6 * n * d, TRUTH.loss(n, d) * noise, run)
    fit = fit_parametric(points, n_replicates=99, objective=LEAST_SQUARES)
    found = parametric_result(fit)
    assert found.n_runs == 6 and fit.effects.df[0] == pytest.approx(3, abs=0.3)
    assert "rows before 0.1 of their run" in found.left_out[0]
    assert found.parameters["alpha"].interval[0] < TRUTH.alpha < found.parameters["alpha"].interval[1]


def test_optima_under_another_cost():
    bent = np.where(grid()[0] > 1e8, 6 * (grid()[0] / 1e8) ** 0.2, 6.0)
    points = study(s=1e-9, per_token=bent, convention="exact")
    found = fit_parametric(points, n_replicates=19)
    assert found.optimum(1e19)["n_opt"] == pytest.approx(TRUTH.n_opt(1e19, found.cost), rel=1e-5)
    told = parametric_result(found)
    assert told.conventions["C"] == "exact" and told.parameters["a"].value < TRUTH.a
    other = parametric_result(fit_parametric(points, cost=six_nd(), n_replicates=19))
    assert other.a.value == pytest.approx(TRUTH.a)


def test_leaving_a_size_out():
    found = parametric_result(fit_parametric(study(), n_replicates=19)).parametric.without_sizes
    assert len(found.left_out) == 6 and not found.impossible
    points = study()
    others = [fit_parametric(points.take(points.size != name), n_replicates=1).surface.a for name in found.left_out]
    assert found.ranges["a"] == pytest.approx((min(others), max(others)), rel=1e-6)
    three = parametric_result(fit_parametric(study(3, 4), n_replicates=19)).parametric.without_sizes
    assert not three.left_out and "3 or more different N" in next(iter(three.impossible.values()))


def test_an_exponent_at_the_end_of_its_range_has_no_interval():
    n, d = grid()
    noise = np.exp(0.001 * np.random.default_rng(0).standard_normal(len(n)))
    nothing = Points(n, d, 6 * n * d, (2 + 1e9 / d**1.2) * noise)
    found = parametric_result(fit_parametric(nothing, n_replicates=99), at=[1e20])
    assert "alpha" in found.reasons
    assert all(found.parameters[name].interval is None for name in ("alpha", "A", "a", "b", "N_opt", "D_opt"))
    assert found.optima[0].n_params.interval is None


def test_forms():
    n, d = grid(6, 6)
    unique = np.minimum(d, 1e9)
    noise = np.exp(0.001 * np.random.default_rng(0).standard_normal(len(n)))
    repeated = Points(n, d, 6 * n * d, TRUTH.loss(n, effective(d, unique, 15.4)) * noise, unique_tokens=unique)
    fit = fit_parametric(repeated, form=DATA_CONSTRAINED, objective=LEAST_SQUARES, n_replicates=49)
    found = parametric_result(fit)
    assert found.parameters["R_star"].interval[0] < 15.4 < found.parameters["R_star"].interval[1]
    fresh, again = fit.surface.loss(1e9, 4e9), fit.surface.loss(1e9, 4e9, 1e9)
    assert fresh == pytest.approx(TRUTH.loss(1e9, 4e9), rel=1e-2) and again > fresh
    low, high = fit.loss_interval(1e9, 4e9, 1e9)[:, 0]
    assert low < again < high
    tied = parametric_result(fit_parametric(study(), form=OVER_TRAINING, n_replicates=49))
    assert tied.parameters["alpha"].value == tied.parameters["beta"].value and tied.parameters["a"].value == 0.5
    assert found.parametric.assumes and not tied.parametric.assumes
    assert tied.parametric.over_training["eta"].value == tied.parameters["alpha"].value / 2


def test_an_exponent_that_the_form_assumes_has_no_interval_and_is_tested():
    n, d = grid(6, 6)
    one = Surface(1.69, 400.0, 400.0, 0.3, 0.3)
    for surface, objective, rejected in ((one, "huber", False), (one, LEAST_SQUARES, False), (TRUTH, "huber", True)):
        noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(len(n)))
        points = Points(n, d, 6 * n * d, surface.loss(n, d) * noise)
        tied = parametric_result(
            fit_parametric(points, form=OVER_TRAINING, objective=objective, n_replicates=49), at=[1e20]
        )
        assert tied.parameters["a"].interval is None and tied.parameters["b"].interval is None
        assert tied.reasons == {"a": "assumed: alpha = beta"} and tied.b.reason == tied.a.reason
        assert tied.parameters["N_opt"].interval and tied.optima[0].n_params.interval
        assert "a" not in tied.parametric.without_sizes.ranges
        assert (tied.parametric.p_tied <= 0.01) == rejected


def test_the_test_of_a_tie_is_of_the_interval_of_a():
    """p is one less the level of the interval that ends at one half."""
    alpha = np.linspace(0.2, 0.41, 999)
    for df in (None, 15.0):
        draws = Draws(Surface(alpha, alpha, alpha, alpha, np.full(999, 0.4)), "", "", (0.0, 0.0), df=df)
        ends = draws.interval(draws.surface.a, 1 - p_of_tie(draws))
        assert ends[0] == pytest.approx(0.5, abs=1e-3)


def test_the_exponents_under_a_cost_that_is_a_power_of_n():
    n, d = grid()
    cost = Cost(np.log([1e6, 1e9]), np.log([6e6, 6e6 * 1000**1.3]), "exact")
    points = Points(n, d, cost.per_token(n) * d, TRUTH.loss(n, d), convention="exact")
    fit = fit_parametric(points, cost=cost, n_replicates=19)
    n_opt, d_opt = (getattr(TRUTH, name)(np.array([1e18, 1e20]), cost) for name in ("n_opt", "d_opt"))
    slopes = [np.log(one[1] / one[0]) / np.log(100) for one in (n_opt, d_opt)]
    found = fit.exponents(fit.surface)
    assert [found["a"], found["b"]] == pytest.approx(slopes, rel=1e-6)
    assert found["a"] * 1.3 + found["b"] == pytest.approx(1)


def test_no_replicates_are_no_intervals():
    found = parametric_result(fit_parametric(study(), n_replicates=0), at=[1e20], predict=[(1e9, 1e10)])
    assert not any(one.interval for one in found.parameters.values())
    assert "no replicates were asked for" in found.intervals.method
    tied = parametric_result(fit_parametric(study(3, 4), form=OVER_TRAINING, n_replicates=0))
    assert tied.parametric.p_tied is None


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="objective mse: one of huber, least_squares"):
        fit_parametric(study(), objective="mse")
    with pytest.raises(InputError, match="form bent: one of plain, over_training, data_constrained"):
        fit_parametric(study(), form="bent")


def test_quantiles_are_of_r_plus_one():
    values = np.arange(1.0, 200.0)  # 199: the 5th lowest and highest leave 2.5% of 200 outside
    assert quantiles(values, 0.025).tolist() == [5, 195]
    assert quantiles(np.append(values, np.nan), 0.025).tolist() == [5, 195]
    assert quantiles(np.append(values[:-10], [np.inf] * 10), 0.025).tolist() == [5, np.inf]
    wider = Draws(TRUTH, "", "", (0.0, 0.0), df=15.0).interval(values)
    assert wider[0] < 5 and wider[1] > 195
