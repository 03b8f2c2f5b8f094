"""Over-training and data-constrained forms: published numbers, derivatives, noise-free recovery, what is counted."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.forms import BOTH, DATA_CONSTRAINED, OVER_TRAINING, PLAIN, Data, Form, Joint, over_training
from analysis.fits.parametric.fit import fit_parametric
from analysis.fits.parametric.results import parametric_result
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES, OBJECTIVES, fit_surfaces
from analysis.fits.surface import Surface, effective, unique_params
from arch.errors import InputError

from .cases import SURFACES, grid, params

# huggingface/datablations, README, "Parametric Fit": the constants of arXiv 2305.16264 to all digits
PUBLISHED = Surface(np.exp(0.6254804), np.exp(6.255414), np.exp(7.3049974), 0.3526596, 0.3526596)
R_D, R_N = 15.387756, 5.309743
BOTH_STARS = replace(PUBLISHED, r_d=R_D, r_n=R_N)


def repeated(sizes=6, low=5e7):
    """30 runs of 1 to 40 epochs, some with more parameters than their unique tokens need."""
    n = np.repeat(np.geomspace(low, 100 * low, sizes), 5)
    unique = np.tile([2e10, 1e10, 2e9, 1e9, 5e8], sizes)
    return n, unique * np.tile([1, 3, 8, 20, 40], sizes), unique


def fitted(n, d, unique, loss, form, objective, **options):
    return fit_surfaces(
        np.log(n), np.log(d), loss, log_unique=np.log(unique), form=form, objective=objective, **options
    )


def test_gadres_form_is_the_plain_one_with_equal_exponents():
    surface = Surface(1.7, 300.0, 500.0, 0.3, 0.3)
    n, d = grid()
    c, m, form = 6 * n * d, d / n, over_training(surface)
    told = surface.E + (form["a"] * m ** form["eta"] + form["b"] * m ** -form["eta"]) * c ** -form["eta"]
    assert told == pytest.approx(surface.loss(n, d), rel=1e-12)


def test_effective_tokens():
    assert effective(np.array([1e9, 2e9]), np.array([1e9, 5e9]), 15.0).tolist() == [1e9, 2e9]  # nothing twice
    assert effective(np.array([4e9]), np.array([1e9]), np.inf) == pytest.approx([4e9])
    assert effective(np.array([4e9]), np.array([1e9]), 15.4) == pytest.approx(
        [1e9 + 1e9 * 15.4 * (1 - np.exp(-3 / 15.4))], rel=1e-12
    )
    assert effective(np.array([1e15]), np.array([1e9]), 15.4) == pytest.approx([16.4e9])  # worth no more than that


def test_the_published_losses():
    """The two models of their figure 1 as their repository prints them, and appendix A's rounded equation."""
    assert BOTH_STARS.loss(6.34e9, 242e9, 25e9) == pytest.approx(2.2256440889984477, rel=1e-14)
    assert BOTH_STARS.loss(8.67e9, 178e9, 25e9) == pytest.approx(2.2269634075087867, rel=1e-14)
    assert [round(PUBLISHED.A), round(PUBLISHED.B), round(PUBLISHED.E, 2)] == [521, 1488, 1.87]
    assert unique_params(PUBLISHED, 1.0) == pytest.approx(0.051, abs=5e-4)  # U_N = 0.051 U_D


def test_unique_parameters_are_the_optimum_for_tokens_read_once():
    surface = SURFACES[0]
    c = np.array([1e19, 1e21, 1e23])
    assert unique_params(surface, surface.d_opt(c)) == pytest.approx(surface.n_opt(c), rel=1e-9)
    without = replace(surface, r_d=R_D)
    both = replace(without, r_n=R_N)
    n, d = surface.n_opt(c), surface.d_opt(c)
    assert both.loss(n, d) == pytest.approx(surface.loss(n, d))  # so the optimum has no excess
    assert (both.loss(10 * n, d) > without.loss(10 * n, d)).all()


@pytest.mark.parametrize("form", [PLAIN, OVER_TRAINING, DATA_CONSTRAINED, BOTH, "joint", "joint, one E"])
def test_first_and_second_derivatives(form):
    rng = np.random.default_rng(0)
    x, y, times = rng.uniform(-2, 2, (1, 30)), rng.uniform(-2, 2, (1, 30)), rng.uniform(1, 30, (1, 30))
    data, weights = (
        Data(x, y, np.ones((1, 30)), np.ones((1, 30)), unique=y - np.log(times)),
        rng.standard_normal((2, 30)),
    )
    theta = np.array([[1.0, -1.0, -1.2, 0.4, 0.3, np.log(5), np.log(3)], [0.8, -0.5, -1.2, 0.3, 0.35, 4.0, -0.7]])
    if form.startswith("joint"):
        model = Joint(np.arange(30) % 3, shared=form.endswith("one E"))
        theta = np.concatenate([theta[:, : model.n_e], *(np.repeat(theta[:, i : i + 1], 3, 1) for i in range(1, 5))], 1)
        theta = theta + 0.1 * rng.standard_normal(theta.shape)
    else:
        model = Form(form)
        theta = theta[:, : model.k]
    step = 1e-6 * np.eye(theta.shape[1])

    def gradient(at):
        loss, slopes = model.slopes(at, data)
        return (slopes * (loss * weights)[:, None]).sum(-1)

    loss, slopes = model.slopes(theta, data)
    assert loss == pytest.approx(model.loss(theta, data), rel=1e-12)
    first = np.stack([(model.loss(theta + h, data) - model.loss(theta - h, data)) / 2e-6 for h in step], 1)
    second = np.stack([(gradient(theta + h) - gradient(theta - h)) / 2e-6 for h in step], 1)
    assert slopes * loss[:, None] == pytest.approx(first, abs=1e-6)
    bend = model.bend(theta, data, loss, slopes, weights * loss)
    assert bend == pytest.approx(second, abs=1e-5 * np.abs(second).max())


@pytest.mark.parametrize("surface", [PUBLISHED, SURFACES[0]], ids=["published", "0.34, 0.28"])
@pytest.mark.parametrize("r_n", [None, R_N], ids=["D'", "D' and N'"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_noise_free_surfaces_come_back(surface, r_n, objective):
    n, d, unique = repeated()
    loss = replace(surface, r_d=R_D, r_n=r_n).loss(n, d, unique)
    found = fitted(n, d, unique, loss, DATA_CONSTRAINED if r_n is None else BOTH, objective)
    assert params(found.surface)[0] == pytest.approx(params(surface), rel=1e-6)
    assert found.surface.r_d == pytest.approx([R_D], rel=1e-6)
    assert found.surface.r_n is None if r_n is None else found.surface.r_n == pytest.approx([R_N], rel=1e-6)
    assert found.ended_well.all() and not found.at_bound.any()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_fixed_r_star_fits_better(objective):
    """The least over a dense grid of R* of plain fits in D' is not below the joint fit, and close to it."""
    n, d, unique = repeated()
    noise = np.exp(0.005 * np.random.default_rng(0).standard_normal(len(n)))
    loss = replace(SURFACES[0], r_d=R_D).loss(n, d, unique) * noise
    found = fitted(n, d, unique, loss, DATA_CONSTRAINED, objective, every_start=True)
    grids = np.geomspace(2, 200, 300)
    log_d = np.log(effective(d, unique, grids[:, None]))
    least = fit_surfaces(np.log(n), log_d, loss, objective=objective).objective
    assert found.objective[0] <= least.min() * (1 + 1e-9)
    assert found.objective[0] == pytest.approx(least.min(), rel=1e-2)
    assert found.surface.r_d[0] == pytest.approx(grids[least.argmin()], rel=0.03)


def test_nothing_repeated_is_the_plain_form():
    n, d = grid()
    loss = SURFACES[0].loss(n, d) * np.exp(0.003 * np.random.default_rng(0).standard_normal(len(n)))
    found = fitted(n, d, d, loss, DATA_CONSTRAINED, LEAST_SQUARES)
    assert np.isinf(found.surface.r_d).all() and found.at_bound[0, 2] and not found.unidentified.any()
    plain = fit_surfaces(np.log(n), np.log(d), loss, objective=LEAST_SQUARES)
    assert params(found.surface) == pytest.approx(params(plain.surface), rel=1e-5)
    assert found.objective == pytest.approx(plain.objective, rel=1e-9)


def test_published_form_end_to_end():
    n, d, unique = repeated()
    noise = np.exp(0.002 * np.random.default_rng(1).standard_normal(len(n)))
    loss = BOTH_STARS.loss(n, d, unique) * noise
    points = Points(n, d, 6 * n * d, loss, unique_tokens=unique)
    fit = fit_parametric(points, form=BOTH, objective=LEAST_SQUARES, n_replicates=99)
    found = parametric_result(fit)
    assert found.parameters["R_star"].interval[0] < R_D < found.parameters["R_star"].interval[1]
    assert found.parameters["R_N_star"].interval[0] < R_N < found.parameters["R_N_star"].interval[1]
    assert fit.n_free == 7 and fit.effects.df == pytest.approx([23], abs=0.2)
    assert fit.surface.loss(n, d, unique) == pytest.approx(loss, rel=0.02)
    assert "N_opt is U_N, where N counts in full" in found.parametric.assumes
    alone = parametric_result(fit_parametric(points, form=DATA_CONSTRAINED, objective=LEAST_SQUARES, n_replicates=0))
    assert found.objective.value < alone.objective.value and "R_N_star" not in alone.parameters


def test_noise_counts_the_parameters_that_are_free():
    """Residual degrees of freedom are runs less free parameters: a tie, E = 0 and R* change them."""
    n, d = grid()
    rng = np.random.default_rng(0)
    noise = np.exp(0.003 * rng.standard_normal(len(n)))
    points = Points(n, d, 6 * n * d, Surface(1.7, 400.0, 400.0, 0.3, 0.3).loss(n, d) * noise)
    without_e = Points(n, d, 6 * n * d, Surface(0.0, 40.0, 40.0, 0.3, 0.2).loss(n, d) * noise)
    half = replace(points, unique_tokens=np.where(np.arange(24) % 2, d, d / 8))
    options = {"objective": LEAST_SQUARES, "n_replicates": 0}
    for one, form, free in ((points, PLAIN, 5), (points, OVER_TRAINING, 4), (half, DATA_CONSTRAINED, 6)):
        fit = fit_parametric(one, form=form, **options)
        at_end = int(form == DATA_CONSTRAINED and fit.solution.at_bound[0, 2])
        assert fit.n_free == free - at_end and fit.effects.df == pytest.approx([24 - fit.n_free], abs=0.2)
    zero = fit_parametric(without_e, **options)
    assert zero.n_free == (5 if zero.surface.E > 0 else 4)
    tied = fit_parametric(points, form=OVER_TRAINING, n_replicates=0)  # Huber losses: all rows weigh the same
    residual = np.log(points.loss / tied.surface.loss(n, d))
    assert tied.effects.s == pytest.approx([np.sqrt((residual**2).sum() / 20)], rel=1e-6)
    draws = fit_parametric(points, form=OVER_TRAINING, objective=LEAST_SQUARES, n_replicates=99).draws
    assert draws.df == 20


def test_forms_without_repeats_tell_of_text_that_is_read_again():
    n, d = grid()
    unique = d / np.tile([1.0, 4.0, 4.1, 20.0], 6)
    points = Points(n, d, 6 * n * d, SURFACES[0].loss(n, d), unique_tokens=unique)

    def notes(form, table=points):
        return parametric_result(fit_parametric(table, form=form, n_replicates=0)).notes

    assert notes(PLAIN) == (
        "12 of 24 points read their text more than 4 times: a plain law takes repeated text for new; "
        "--form data-constrained tells them apart",
    )
    assert "an over-training law takes" in notes(OVER_TRAINING)[0]
    assert notes(DATA_CONSTRAINED) == notes(PLAIN, replace(points, unique_tokens=d / 4)) == ()


def test_text_that_all_runs_read_as_often_tells_nothing_of_repeats():
    n, d = grid()
    points = Points(n, d, 6 * n * d, SURFACES[0].loss(n, d), unique_tokens=d / 2)
    with pytest.raises(InputError, match="all points read their text 2 times"):
        fit_parametric(points, form=DATA_CONSTRAINED)


def test_a_form_with_more_parameters_needs_more_points():
    n = np.array([1e7, 1e7, 1e8, 1e8, 1e9, 1e9])
    d = np.array([1e9, 1e10, 2e9, 2e10, 4e9, 4e10])
    points = Points(n, d, 6 * n * d, SURFACES[0].loss(n, d), unique_tokens=d / 2)
    with pytest.raises(InputError, match="with repeated data needs 8 or more different"):
        fit_parametric(points, form=BOTH)
