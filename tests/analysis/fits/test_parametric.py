"""The parametric approach: points in, laws with intervals out."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.cost import Cost, six_nd
from analysis.fits.draws import quantiles
from analysis.fits.forms import DATA_CONSTRAINED, OVER_TRAINING, PLAIN
from analysis.fits.parametric import (
    Draws,
    _p_of_tie,
    check_design,
    fit_parametric,
    parametric_result,
    rows_of,
)
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES, OBJECTIVES
from analysis.fits.surface import Surface, effective
from arch.errors import InputError

from .cases import SURFACES, grid, params

TRUTH = SURFACES[0]
TIED = Surface(1.69, 400.0, 400.0, 0.3, 0.3)
QUICK = {"objective": LEAST_SQUARES, "n_replicates": 0}


def study(sizes=6, amounts=4, s=0.005, surface=TRUTH, per_token=6.0, loss=None, **labels):
    """A grid of runs on a surface (or of these losses) with noise s."""
    n, d = grid(sizes, amounts)
    noise = np.exp(s * np.random.default_rng(0).standard_normal(len(n)))
    return Points(n, d, per_token * n * d, (surface.loss(n, d) if loss is None else loss) * noise, **labels)


def result(points, at=(), predict=(), **options):
    return parametric_result(fit_parametric(points, **{"n_replicates": 99} | options), at=at, predict=predict)


def width(estimate):
    return estimate.high - estimate.low


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_intervals_hold_the_truth_of_this_study(objective):
    computed = result(study(), objective=objective, n_replicates=199)
    for name, value in (TRUTH.to_dict() | {"a": TRUTH.a, "b": 1 - TRUTH.a}).items():
        estimate = computed.parameters[name]
        assert estimate.low < value < estimate.high and estimate.low < estimate.value < estimate.high, name
    assert computed.middle.n_params.value == pytest.approx(TRUTH.n_opt(computed.middle.flops), rel=0.1)
    assert not computed.reasons


def test_replicates_are_of_the_seed_and_the_order_of_rows_does_not_matter():
    points = study()
    order = np.random.default_rng(1).permutation(len(points))
    first, again, moved = (fit_parametric(rows, n_replicates=99) for rows in (points, points, points.take(order)))
    other = fit_parametric(points, n_replicates=99, seed=1)
    assert np.array_equal(first.draws.surface.alpha, again.draws.surface.alpha)
    assert not np.isclose(first.draws.surface.alpha, other.draws.surface.alpha, rtol=1e-3).all()
    assert np.std(first.draws.surface.alpha) > 0.001
    assert params(moved.surface) == pytest.approx(params(first.surface), rel=1e-6)


def test_few_runs_widen_the_interval_and_seed_noise_narrows_it():
    nine, eighteen = (fit_parametric(study(sizes, 3), n_replicates=199) for sizes in (3, 6))
    wide = width(parametric_result(nine).a)
    assert wide > 2 * width(parametric_result(eighteen).a)
    computed = fit_parametric(study(3, 3), n_replicates=199, noise=(0.005, 30))
    assert computed.effects.df == pytest.approx([34], abs=0.5) and width(parametric_result(computed).a) < wide
    n, d = np.repeat([1e7, 1e8, 1e9], 2), np.array([1e9, 1e10, 2e9, 2e10, 4e9, 4e10])
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(6))  # leaves a degree of freedom
    assert width(result(Points(n, d, 6 * n * d, TRUTH.loss(n, d) * noise), n_replicates=199).a) > 0.2


def test_runs_of_one_trunk_are_drawn_together():
    trunk, run = np.repeat([f"t{i}" for i in range(6)], 4), np.array([f"r{i}" for i in range(24)])
    branched = fit_parametric(study(run=run, trunk=trunk), n_replicates=99)
    assert branched.draws.over == "6 trunks" and "trunks" in branched.draws.method
    assert [kind.name for kind in branched.effects.kinds] == ["trunk", "run"]
    assert fit_parametric(study(run=run), n_replicates=19).draws.method.startswith("bootstrap over 24 runs")


def test_whole_curves_count_as_runs():
    n, d = grid(6, 30)
    run = np.repeat([f"r{i}" for i in range(6)], 30)
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(6)).repeat(30)
    fit = fit_parametric(
        Points(n, d, 6 * n * d, TRUTH.loss(n, d) * noise, run), n_replicates=99, objective=LEAST_SQUARES
    )
    computed = parametric_result(fit)
    assert computed.n_runs == 6 and fit.effects.df[0] == pytest.approx(3, abs=0.3)
    assert "rows before 0.1 of their run" in computed.left_out[0]
    alpha = computed.parameters["alpha"]
    assert alpha.low < TRUTH.alpha < alpha.high


def test_runs_weigh_the_same_and_a_long_curve_becomes_fewer_rows_of_the_same_surface():
    d = np.concatenate([np.arange(1, 9) * 1e8, [5e8]])
    run = np.array(["a"] * 8 + ["b"], dtype=object)
    rows = rows_of(Points(np.full(9, 1e6), d, d, 2 + 1e8 / d, run), first_share=0.25)
    assert rows.points.n_tokens.tolist() == [*np.arange(2, 9) * 1e8, 5e8] and rows.weights.tolist() == [1 / 7] * 7 + [1]
    assert rows.left_out == {"rows before 0.25 of their run": 1}
    n, d = np.repeat([1e6, 2e6], [5000, 10]), np.concatenate([np.linspace(1e8, 1e10, 5000), np.geomspace(1e9, 9e9, 10)])
    names = np.repeat(["a", "b"], [5000, 10]).astype(object)
    rows = rows_of(Points(n, d, 6 * n * d, TRUTH.loss(n, d), names), first_share=0.0)
    kept = rows.points
    assert (kept.run == "a").sum() == 64 and (kept.run == "b").sum() == 10 and rows.weights.sum() == pytest.approx(2)
    assert kept.loss == pytest.approx(TRUTH.loss(kept.n_params, kept.n_tokens), rel=2e-5)
    assert kept.flops == pytest.approx(6 * kept.n_params * kept.n_tokens) and list(rows.left_out.values()) == [4936]


@pytest.mark.parametrize(
    ("n", "d", "why"),
    [
        ([1e6], [1e8], "3 or more different N; these points have 1"),
        (np.geomspace(1e6, 1e8, 6), [1e8] * 6, "3 or more different D; these points have 1"),
        (np.geomspace(1e6, 1e8, 4), [1e8, 1.002e8, 1.004e8, 1.009e8], "3 or more different D; these points have 1"),
        ([1e6, 2e6, 4e6], [1e8, 3e8, 2e8], "6 or more different \\(N, D\\); 3 given"),
        (np.geomspace(1e6, 1e8, 8), 20 * np.geomspace(1e6, 1e8, 8), "D follows N"),
    ],
)
def test_designs_that_identify_nothing_are_refused(n, d, why):
    n, d = np.array(n), np.array(d)
    with pytest.raises(InputError, match=why):
        fit_parametric(Points(n, d, 6 * n * d, 2 + 1e-3 * np.arange(len(n))))


def test_a_grid_is_enough_and_a_dense_curve_is_many_amounts_of_tokens():
    check_design(*map(np.log, grid(3, 3)))
    check_design(np.log(np.repeat([1e6, 2e6, 4e6], 2000)), np.log(np.tile(np.geomspace(1e8, 1e9, 2000), 3)))


def test_optima_under_other_costs():
    bent = np.where(grid()[0] > 1e8, 6 * (grid()[0] / 1e8) ** 0.2, 6.0)
    points = study(s=1e-9, per_token=bent, convention="exact")
    fit = fit_parametric(points, n_replicates=19)
    assert fit.optimum(1e19).n_params.value == pytest.approx(TRUTH.n_opt(1e19, fit.cost), rel=1e-5)
    computed = parametric_result(fit)
    assert computed.conventions["C"] == "exact" and computed.a.value < TRUTH.a
    assert result(points, cost=six_nd()).a.value == pytest.approx(TRUTH.a)
    n, d = grid()
    cost = Cost(np.log([1e6, 1e9]), np.log([6e6, 6e6 * 1000**1.3]), "exact")
    power = result(Points(n, d, cost.per_token(n) * d, TRUTH.loss(n, d), convention="exact"), cost=cost)
    ends = np.log([getattr(TRUTH, name)(np.array([1e18, 1e20]), cost) for name in ("n_opt", "d_opt")])
    assert [power.a.value, power.b.value] == pytest.approx(np.diff(ends)[:, 0] / np.log(100), rel=1e-6)
    assert power.a.value * 1.3 + power.b.value == pytest.approx(1)


def test_fits_without_a_size():
    fit = fit_parametric(study(), n_replicates=0)
    sizes = list(dict.fromkeys(fit.points.size))
    computed = fit.without([fit.points.size == size for size in sizes]).surface.a
    alone = [fit_parametric(study().take(study().size != size), n_replicates=0).surface.a for size in sizes]
    assert computed == pytest.approx(alone, rel=1e-6)
    assert parametric_result(fit).parametric.sizes == tuple(sizes)


def test_an_exponent_at_the_end_of_its_range_has_no_interval():
    computed = result(study(s=0.001, loss=2 + 1e9 / grid()[1] ** 1.2), at=[1e20])
    assert "alpha" in computed.reasons and computed.optima[0].n_params.interval is None
    assert all(computed.parameters[name].interval is None for name in ("alpha", "A", "a", "b", "N_opt", "D_opt"))


def test_no_replicates_are_no_intervals_and_unknown_names_are_refused():
    computed = result(study(), at=[1e20], predict=[(1e9, 1e10)], n_replicates=0)
    assert not any(estimate.interval for estimate in computed.parameters.values())
    assert "no replicates were asked for" in computed.intervals.method
    for options, why in (
        ({"objective": "mse"}, "objective mse: one of huber, least_squares"),
        ({"form": "bent"}, "form: 'bent'.* plain, over-training, data-constrained"),
    ):
        with pytest.raises(InputError, match=why):
            fit_parametric(study(), **options)


def test_quantiles_are_of_r_plus_one():
    values = np.arange(1.0, 200.0)  # 199: the 5th lowest and highest leave 2.5% of 200 outside
    assert quantiles(values, 0.025).tolist() == [5, 195]
    assert quantiles(np.append(values, np.nan), 0.025).tolist() == [5, 195]
    assert quantiles(np.append(values[:-10], [np.inf] * 10), 0.025).tolist() == [5, np.inf]
    wider = Draws(TRUTH, "", "", (0.0, 0.0), df=15.0).interval(values)
    assert wider[0] < 5 and wider[1] > 195


def test_text_that_is_read_again():
    n, d = grid(6, 6)
    unique = np.minimum(d, 1e9)
    loss = TRUTH.loss(n, effective(d, unique, 15.4)) * np.exp(0.001 * np.random.default_rng(0).standard_normal(36))
    points = Points(n, d, 6 * n * d, loss, unique_tokens=unique)
    fit = fit_parametric(points, form=DATA_CONSTRAINED, objective=LEAST_SQUARES, n_replicates=49)
    computed = parametric_result(fit)
    star = computed.parameters["R_star"]
    assert star.low < 15.4 < star.high and computed.parametric.assumes.startswith("N_opt, D_opt and L_opt are of text")
    fresh, again = fit.surface.loss(1e9, 4e9), fit.surface.loss(1e9, 4e9, 1e9)
    assert fresh == pytest.approx(TRUTH.loss(1e9, 4e9), rel=1e-2) and again > fresh
    low, high = fit.loss_interval(1e9, 4e9, 1e9)[:, 0]
    assert low < again < high
    with pytest.raises(InputError, match="with repeated data needs 7 or more different"):
        fit_parametric(points.take([0, 1, 7, 8, 14, 15]), form=DATA_CONSTRAINED)
    with pytest.raises(InputError, match="all points read their text 2 times"):
        fit_parametric(replace(points, unique_tokens=d / 2), form=DATA_CONSTRAINED)
    once = result(replace(points, unique_tokens=d), form=DATA_CONSTRAINED, n_replicates=0)
    assert once.reasons["R_star"] == "no point has repeated tokens"


def test_forms_without_repeats_note_text_that_is_read_again():
    points = study(s=0.0, unique_tokens=grid()[1] / np.tile([1.0, 4.0, 4.1, 20.0], 6))

    def notes(form, table=points):
        return result(table, form=form, n_replicates=0).notes

    assert notes(PLAIN) == (
        "12 of 24 points read their text more than 4 times: a plain law takes repeated text for new; "
        "--form data-constrained tells them apart",
    )
    assert "an over-training law takes" in notes(OVER_TRAINING)[0]
    assert notes(DATA_CONSTRAINED) == notes(PLAIN, replace(points, unique_tokens=grid()[1] / 4)) == ()


@pytest.mark.parametrize(
    ("surface", "objective", "rejected"),
    [(TIED, "huber", False), (TIED, LEAST_SQUARES, False), (TRUTH, "huber", True)],
)
def test_an_exponent_that_the_form_assumes_has_no_interval_and_is_tested(surface, objective, rejected):
    computed = result(study(6, 6, 0.003, surface), at=[1e20], form=OVER_TRAINING, objective=objective, n_replicates=49)
    assert computed.parameters["alpha"].value == computed.parameters["beta"].value and computed.a.value == 0.5
    assert computed.a.interval is None and computed.b.interval is None
    assert computed.reasons == {"a": "assumed: alpha = beta"} and computed.b.reason == computed.a.reason
    assert computed.middle.n_params.interval and computed.optima[0].n_params.interval
    assert (computed.parametric.p_tied <= 0.01) == rejected
    assert computed.parametric.over_training["eta"].value == computed.parameters["alpha"].value / 2


def test_five_points_determine_the_over_training_form():
    """Gadre et al. 2024 publish a protocol of five: four unknowns, and one degree of freedom. Whether alpha = beta is
    not tested then, and the plain form needs six."""
    n = np.array([1e7, 8e7, 1.5e8, 4e8, 1e7])
    d = np.array([2e8, 1.6e9, 3e9, 8e9, 3.2e9])
    points = Points(n, d, 6 * n * d, TIED.loss(n, d))
    fit = fit_parametric(points, form=OVER_TRAINING, n_replicates=99)
    assert fit.surface.to_dict() == pytest.approx(TIED.to_dict(), rel=1e-6) and fit.p_tied is None
    with pytest.raises(InputError, match=r"with alpha = beta needs 5 or more different \(N, D\); 4 given"):
        fit_parametric(points.take(np.arange(1, 5)), form=OVER_TRAINING)
    with pytest.raises(InputError, match="needs 6 or more"):
        fit_parametric(points)


def test_the_test_of_a_tie_is_of_the_interval_of_a():
    """p is one less the level of the interval that ends at one half."""
    alpha = np.linspace(0.2, 0.41, 999)
    for df in (None, 15.0):
        draws = Draws(Surface(alpha, alpha, alpha, alpha, np.full(999, 0.4)), "", "", (0.0, 0.0), df=df)
        assert draws.interval(draws.surface.a, 1 - _p_of_tie(draws))[0] == pytest.approx(0.5, abs=1e-3)


def test_noise_counts_the_parameters_that_are_free():
    """Residual degrees of freedom are runs less free parameters: a tie, E = 0 and R* change them."""
    points = study(s=0.003, surface=TIED)
    d = points.n_tokens
    half = replace(points, unique_tokens=np.where(np.arange(24) % 2, d, d / 8))
    for table, form, free in ((points, PLAIN, 5), (points, OVER_TRAINING, 4), (half, DATA_CONSTRAINED, 6)):
        fit = fit_parametric(table, form=form, **QUICK)
        at_end = int(form == DATA_CONSTRAINED and fit.solution.at_bound[0, 2])
        assert fit.n_free == free - at_end and fit.effects.df == pytest.approx([24 - fit.n_free], abs=0.2)
    zero = fit_parametric(study(s=0.003, surface=Surface(0.0, 40.0, 40.0, 0.3, 0.2)), **QUICK)
    assert zero.n_free == (5 if zero.surface.E > 0 else 4)
    tied = fit_parametric(points, form=OVER_TRAINING, n_replicates=0)  # Huber losses: all rows weigh the same
    assert tied.effects.s == pytest.approx([np.sqrt((tied.misses**2).sum() / 20)], rel=1e-6)
    assert fit_parametric(points, form=OVER_TRAINING, objective=LEAST_SQUARES, n_replicates=99).draws.df == 20
