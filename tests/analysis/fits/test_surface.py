"""The surface and its forms: published numbers, derivatives, noise-free recovery, optima against searches, waste."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from analysis.fits.cost import Cost, six_nd
from analysis.fits.forms import DATA_CONSTRAINED, FORMS, OVER_TRAINING, PLAIN, Data, Joint
from analysis.fits.solver import LEAST_SQUARES, OBJECTIVES, fit_surfaces
from analysis.fits.surface import Surface, effective
from arch.errors import InputError

from .cases import SURFACES, grid, params

CHINCHILLA = Surface(1.69, 406.4, 410.7, 0.34, 0.28)
# huggingface/datablations, README, "Parametric Fit": the constants of arXiv 2305.16264 to all digits
MUENNIGHOFF = Surface(np.exp(0.6254804), np.exp(6.255414), np.exp(7.3049974), 0.3526596, 0.3526596)
R_D = 15.387756
BENT = Cost(np.log([1e6, 1e7, 1e8]), np.log([20e6, 90e6, 700e6]), "exact")
FALLING = Cost(np.log([1e6, 1e7, 3e7, 1e8]), np.log([20e6, 90e6, 80e6, 700e6]), "odd")  # two minima at some C
COSTS = pytest.mark.parametrize("cost", [six_nd(), BENT, FALLING], ids=["6nd", "bent", "falling"])


def searched(surface, flops, cost):
    """log N of the lowest loss at C by brute force, then by a bounded search around it."""
    nodes = np.linspace(0, 40, 4001)

    def loss(log_n):
        return surface.loss(np.exp(log_n), flops / cost.per_token(np.exp(log_n)))

    middle = nodes[np.argmin(loss(nodes))]
    return optimize.minimize_scalar(loss, bounds=(middle - 0.01, middle + 0.01), method="bounded").x


def test_the_optimum_under_6nd_is_the_papers_closed_form():
    c, (_, A, B, alpha, beta) = np.geomspace(1e15, 1e25, 5), CHINCHILLA.to_dict().values()
    G, a, b = (alpha * A / (beta * B)) ** (1 / (alpha + beta)), beta / (alpha + beta), alpha / (alpha + beta)
    for surface in (CHINCHILLA, replace(CHINCHILLA, r_d=R_D)):  # of text that is read once
        assert surface.n_opt(c) == pytest.approx(G * (c / 6) ** a, rel=1e-12)
        assert surface.d_opt(c) == pytest.approx((c / 6) ** b / G, rel=1e-12)
        assert surface.l_opt(c) == pytest.approx(CHINCHILLA.loss(CHINCHILLA.n_opt(c), CHINCHILLA.d_opt(c)), rel=1e-12)
    assert CHINCHILLA.a == pytest.approx(a, rel=1e-15)


@COSTS
def test_the_optimum_is_the_lowest_loss_over_all_sizes(cost):
    for c in np.geomspace(1e12, 1e24, 25):
        log_n = np.log(CHINCHILLA.n_opt(c, cost))
        best = searched(CHINCHILLA, c, cost)
        lowest, wanted = (CHINCHILLA.loss(np.exp(x), c / cost.per_token(np.exp(x))) for x in (log_n, best))
        assert lowest <= wanted * (1 + 1e-12) and log_n == pytest.approx(best, abs=1e-4)
        assert CHINCHILLA.l_opt(c, cost) == lowest


@COSTS
def test_the_compute_to_reach_a_loss_undoes_the_lowest_loss(cost):
    c = np.geomspace(1e12, 1e24, 25)
    assert CHINCHILLA.flops_to_reach(CHINCHILLA.l_opt(c, cost), cost) == pytest.approx(c, rel=1e-9)
    assert np.isinf(CHINCHILLA.flops_to_reach([1.0, 1.69], cost)).all()


def test_many_surfaces_at_once_are_each_alone():
    rng = np.random.default_rng(0)
    many = Surface(*(np.array(list(CHINCHILLA.to_dict().values()))[:, None] * rng.uniform(0.9, 1.1, (5, 4))))
    c = np.geomspace(1e15, 1e24, 3)
    for name in ("n_opt", "d_opt", "l_opt"):
        together = getattr(many.column(), name)(c, BENT)
        assert together.shape == (4, 3)
        assert together == pytest.approx(np.stack([getattr(many.item(i), name)(c, BENT) for i in range(4)]), rel=1e-12)
    losses = many.column().l_opt(c, BENT)
    assert many.column().flops_to_reach(losses, BENT) == pytest.approx(np.tile(c, (4, 1)), rel=1e-9)
    for a, b in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)):  # without a term
        surface, row = Surface(1.0, a, b, 0.3, 0.3), Surface(*np.array([[1.0], [a], [b], [0.3], [0.3]]))
        assert surface.n_opt(1e18, BENT) == pytest.approx(row.column().n_opt(1e18, BENT).item(), nan_ok=True)


def test_a_cost_that_does_not_grow_is_refused():
    with pytest.raises(InputError, match="does not grow with N from 10M to 100M"):
        CHINCHILLA.n_opt(1e18, Cost(np.log([1e6, 1e7, 1e8]), np.log([20e6, 90e6, 80e6]), "exact"))


def test_gadres_form_is_the_plain_one_with_equal_exponents():
    surface = Surface(1.7, 300.0, 500.0, 0.3, 0.3)
    n, d = grid()
    c, m, form = 6 * n * d, d / n, FORMS[OVER_TRAINING].over_training(surface)
    own = surface.E + (form["a"] * m ** form["eta"] + form["b"] * m ** -form["eta"]) * c ** -form["eta"]
    assert own == pytest.approx(surface.loss(n, d), rel=1e-12)


def test_effective_tokens():
    assert effective(np.array([1e9, 2e9]), np.array([1e9, 5e9]), 15.0).tolist() == [1e9, 2e9]  # nothing twice
    assert effective(np.array([4e9]), np.array([1e9]), np.inf) == pytest.approx([4e9])
    worth = 1e9 + 1e9 * 15.4 * (1 - np.exp(-3 / 15.4))
    assert effective(np.array([4e9, 1e15]), np.array([1e9]), 15.4) == pytest.approx([worth, 16.4e9])


@pytest.mark.parametrize("form", [*FORMS, "joint", "joint, one E"])
def test_first_and_second_derivatives(form):
    rng = np.random.default_rng(0)
    x, y, times = rng.uniform(-2, 2, (1, 30)), rng.uniform(-2, 2, (1, 30)), rng.uniform(1, 30, (1, 30))
    data = Data(x, y, np.ones((1, 30)), np.ones((1, 30)), unique=y - np.log(times))
    weights = rng.standard_normal((2, 30))
    theta = np.array([[1.0, -1.0, -1.2, 0.4, 0.3, np.log(5)], [0.8, -0.5, -1.2, 0.3, 0.35, 4.0]])
    if form.startswith("joint"):
        model = Joint(np.arange(30) % 3, shared=form.endswith("one E"))
        theta = np.concatenate([theta[:, : model.n_e], *(np.repeat(theta[:, i : i + 1], 3, 1) for i in range(1, 5))], 1)
        theta = theta + 0.1 * rng.standard_normal(theta.shape)
    else:
        model = FORMS[form]
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


def repeated(sizes=6, low=5e7):
    """N, D and unique tokens of 30 runs of 1 to 40 epochs."""
    n = np.repeat(np.geomspace(low, 100 * low, sizes), 5)
    unique = np.tile([2e10, 1e10, 2e9, 1e9, 5e8], sizes)
    return n, unique * np.tile([1, 3, 8, 20, 40], sizes), unique


def constrained(n, d, unique, loss, objective, **options):
    more = {"form": DATA_CONSTRAINED, "objective": objective, "log_unique": np.log(unique)}
    return fit_surfaces(np.log(n), np.log(d), loss, **more, **options)


@pytest.mark.parametrize("surface", [MUENNIGHOFF, SURFACES[0]], ids=["published", "0.34, 0.28"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_noise_free_surfaces_of_repeated_text_come_back(surface, objective):
    n, d, unique = repeated()
    fit = constrained(n, d, unique, replace(surface, r_d=R_D).loss(n, d, unique), objective)
    assert params(fit.surface)[0] == pytest.approx(params(surface), rel=1e-6)
    assert fit.surface.r_d == pytest.approx([R_D], rel=1e-6)
    assert fit.ended_well.all() and not fit.at_bound.any()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_fixed_r_star_fits_better(objective):
    """The least over a dense grid of R* of plain fits in D' is not below the joint fit, and close to it."""
    n, d, unique = repeated()
    noise = np.exp(0.005 * np.random.default_rng(0).standard_normal(len(n)))
    loss = replace(SURFACES[0], r_d=R_D).loss(n, d, unique) * noise
    fit = constrained(n, d, unique, loss, objective, every_start=True)
    stars = np.geomspace(2, 200, 300)
    least = fit_surfaces(np.log(n), np.log(effective(d, unique, stars[:, None])), loss, objective=objective).objective
    assert fit.objective[0] <= least.min() * (1 + 1e-9)
    assert fit.objective[0] == pytest.approx(least.min(), rel=1e-2)
    assert fit.surface.r_d[0] == pytest.approx(stars[least.argmin()], rel=0.03)


def test_nothing_repeated_is_the_plain_form():
    n, d = grid()
    loss = SURFACES[0].loss(n, d) * np.exp(0.003 * np.random.default_rng(0).standard_normal(len(n)))
    fit = constrained(n, d, d, loss, LEAST_SQUARES)
    assert np.isinf(fit.surface.r_d).all() and fit.at_bound[0, 2] and not fit.unidentified.any()
    plain = fit_surfaces(np.log(n), np.log(d), loss, objective=LEAST_SQUARES)
    assert params(fit.surface) == pytest.approx(params(plain.surface), rel=1e-5)


@COSTS
def test_how_n_opt_moves_with_the_unknowns(cost):
    """By small steps of each, at a compute whose optimum lies between two knots of the cost."""
    c, step = 3e19, 1e-6
    scaled = [replace(CHINCHILLA, **{name: getattr(CHINCHILLA, name) * (1 + step)}) for name in ("E", "A", "B")]
    moved = [*scaled, replace(CHINCHILLA, alpha=0.34 + step), replace(CHINCHILLA, beta=0.28 + step)]
    wanted = [np.log(surface.n_opt(c, cost) / CHINCHILLA.n_opt(c, cost)) / step for surface in moved]
    slopes = FORMS[PLAIN].slopes_of_n_opt(CHINCHILLA, c, cost)
    assert slopes == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert FORMS[OVER_TRAINING].slopes_of_n_opt(CHINCHILLA, c, cost)[3] == pytest.approx(slopes[3] + slopes[4])
    assert FORMS[DATA_CONSTRAINED].slopes_of_n_opt(CHINCHILLA, c, cost) == pytest.approx([*slopes, 0])
