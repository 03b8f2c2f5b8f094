"""The batched solver: known surfaces, the Chinchilla points, and a one-by-one reference."""

import numpy as np
import pytest
from scipy import optimize

from analysis.fits import solver
from analysis.fits.forms import OUTER_EXPONENT, OVER_TRAINING, PLAIN
from analysis.fits.solver import HUBER, LEAST_SQUARES, OBJECTIVES, fit_surfaces
from analysis.fits.surface import Surface

from .cases import SURFACES, grid, params


@pytest.mark.parametrize("truth", SURFACES, ids=["0.34, 0.28", "0.465, 0.155"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_noise_free_surfaces_come_back(truth, objective):
    n, d = grid()
    result = fit_surfaces(np.log(n), np.log(d), truth.loss(n, d), objective=objective)
    assert params(result.surface)[0] == pytest.approx(params(truth), rel=1e-8)
    assert result.ended_well.all() and not result.at_bound.any()


def noisy(seed=0, r=6, s=0.01):
    n, d = grid()
    rng = np.random.default_rng(seed)
    return np.log(n), np.log(d), SURFACES[0].loss(n, d) * np.exp(s * rng.standard_normal((r, len(n))))


def objective_of(theta, log_n, log_d, loss, weights, objective):
    """From E, log A and log B at the centre, alpha, beta: written down once more, plainly."""
    e, a, b, alpha, beta = theta
    model = e + np.exp(a - alpha * (log_n - log_n.mean())) + np.exp(b - beta * (log_d - log_d.mean()))
    if objective == LEAST_SQUARES:
        return (weights * (loss - model) ** 2).sum()
    off = np.abs(np.log(loss) - np.log(model))
    return (weights * np.where(off < 1e-3, off**2 / 2, 1e-3 * (off - 5e-4))).sum()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_search_one_by_one_finds_less(objective):
    """Nelder-Mead from the batch's answer, and from the truth, never gets lower."""
    log_n, log_d, losses = noisy()
    weights = np.random.default_rng(1).integers(0, 3, losses.shape)
    result = fit_surfaces(log_n, log_d, losses, weights, objective=objective)
    at = np.array([log_n.mean(), log_d.mean()])
    for i, loss in enumerate(losses):
        e, a, b, alpha, beta = params(result.surface)[i]
        theta = np.array([e, *(np.log([a, b]) - [alpha, beta] * at), alpha, beta])
        computed = objective_of(theta, log_n, log_d, loss, weights[i], objective)
        assert result.objective[i] == pytest.approx(computed, rel=1e-9)
        e, a, b, alpha, beta = params(SURFACES[0])
        truth = np.array([e, *(np.log([a, b]) - [alpha, beta] * at), alpha, beta])
        for start in (theta, truth):
            options = {"xatol": 1e-10, "fatol": 1e-16, "maxiter": 4000, "maxfev": 4000}
            searched = optimize.minimize(
                objective_of, start, (log_n, log_d, loss, weights[i], objective), method="Nelder-Mead", options=options
            )
            assert computed <= searched.fun * (1 + 1e-8)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_units_scale_of_weights_order_and_starts_do_not_matter(objective):
    log_n, log_d, losses = noisy(3, 1)
    plain = fit_surfaces(log_n, log_d, losses, objective=objective).surface

    def same(surface, e=1.0, a=1.0):
        changed = params(surface) / [e, e * a ** surface.alpha[0], e, 1, 1]
        assert changed == pytest.approx(np.repeat(params(plain), len(changed), 0), rel=1e-6)

    bits = fit_surfaces(log_n, log_d, losses / np.log(2), objective=objective)
    same(bits.surface, e=1 / np.log(2))
    same(fit_surfaces(log_n - np.log(1e6), log_d, losses, objective=objective).surface, a=1e-6)
    same(fit_surfaces(log_n, log_d, losses, np.full(24, 1 / 24), objective=objective).surface)
    order = np.random.default_rng(0).permutation(24)
    same(fit_surfaces(log_n[order], log_d[order], losses[:, order], objective=objective).surface)
    same(fit_surfaces(log_n, log_d, losses, objective=objective, every_start=True).surface)


def test_weights_of_zero_are_points_left_out_and_whole_weights_are_copies():
    log_n, log_d, losses = noisy(4, 1)
    weights = np.arange(24) % 3
    copies = np.repeat(np.arange(24), weights)
    for objective in OBJECTIVES:
        weighted = fit_surfaces(log_n, log_d, losses, weights, objective=objective)
        other = fit_surfaces(log_n[copies], log_d[copies], losses[:, copies], objective=objective)
        assert params(weighted.surface) == pytest.approx(params(other.surface), rel=1e-6)
        assert weighted.objective == pytest.approx(other.objective, rel=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_given_irreducible_loss_and_tied_exponents(objective):
    n, d = grid()
    log_n, log_d, losses = noisy(5, 3)
    free = fit_surfaces(log_n, log_d, losses, objective=objective)
    given = fit_surfaces(log_n, log_d, losses, objective=objective, irreducible=free.surface.E)
    assert params(given.surface) == pytest.approx(params(free.surface), rel=1e-6)
    off = fit_surfaces(log_n, log_d, losses, objective=objective, irreducible=1.6)
    assert (off.surface.E == 1.6).all() and (off.objective > free.objective).all()
    tied = fit_surfaces(log_n, log_d, losses, objective=objective, form=OVER_TRAINING)
    assert (tied.surface.alpha == tied.surface.beta).all() and (tied.objective >= free.objective).all()
    truth = type(SURFACES[0])(1.69, 406.4, 410.7, 0.3, 0.3)
    same = fit_surfaces(log_n, log_d, truth.loss(n, d), objective=objective, form=OVER_TRAINING)
    assert params(same.surface)[0] == pytest.approx(params(truth), rel=1e-8)


def test_an_exponent_that_nothing_fixes_ends_at_its_bound():
    n, d = grid()
    loss = 2 + 1e9 / d**1.2  # nothing depends on N
    result = fit_surfaces(np.log(n), np.log(d), loss, objective=LEAST_SQUARES)
    assert result.at_bound[0, 0] and not result.at_bound[0, 1]
    assert result.surface.beta[0] == pytest.approx(1.2, rel=1e-6)


def test_no_irreducible_loss_is_zero_not_negative():
    n, d = grid()
    rng = np.random.default_rng(0)
    losses = (406.4 / n**0.34 + 410.7 / d**0.28) * np.exp(0.01 * rng.standard_normal((40, 24)))
    for objective in (HUBER, LEAST_SQUARES):
        result = fit_surfaces(np.log(n), np.log(d), losses, objective=objective)
        assert (result.surface.E >= 0).all() and 0.2 < (result.surface.E == 0).mean() < 0.8
        assert result.ended_well.mean() > 0.95


def resampled_points(s, misfit=0.0, n=1000, seed=0):
    """`n` points with noise `s` beside a surface that bends by `misfit`, and 60 bootstraps of them."""
    rng = np.random.default_rng(seed)
    log_n, log_d = rng.uniform(np.log(1e7), np.log(1e10), n), rng.uniform(np.log(2e8), np.log(2e11), n)
    bend = misfit * np.sin(2 * log_n) + s * rng.standard_normal(n)
    loss = SURFACES[0].loss(np.exp(log_n), np.exp(log_d)) * np.exp(bend)
    return (log_n, log_d, loss), rng.multinomial(n, np.full(n, 1 / n), 60)


@pytest.mark.parametrize("form", [PLAIN, OVER_TRAINING])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("s, misfit", [(0.001, 0.0), (0.01, 0.0), (0.05, 0.0), (0.01, 0.01)])
def test_searches_from_a_fit_of_such_data_end_where_those_from_the_grid_do(form, objective, s, misfit):
    points, weights = resampled_points(s, misfit)
    kind = {"form": form, "objective": objective}
    whole = fit_surfaces(*points, **kind, every_start=True).surface.item()
    far, near = fit_surfaces(*points, weights, **kind), fit_surfaces(*points, weights, **kind, near=whole)
    assert params(near.surface) == pytest.approx(params(far.surface), rel=1e-6)
    assert near.objective == pytest.approx(far.objective, rel=1e-9) and near.ended_well.all()


def test_searches_that_leave_the_fit_they_start_at_start_as_without_it():
    """A replicate of other data, and replicates that end at the end of a range."""
    points, weights = resampled_points(0.01)
    elsewhere = SURFACES[1]
    far, near = fit_surfaces(*points, weights), fit_surfaces(*points, weights, near=elsewhere)
    assert (params(near.surface) == params(far.surface)).all()
    log_n, log_d, _ = points
    flat, kind = (log_n, log_d, 2.0 + 400 * np.exp(-0.3 * log_n)), {"objective": LEAST_SQUARES}  # no term of D
    whole = fit_surfaces(*flat, every_start=True, **kind).surface.item()
    near = fit_surfaces(*flat, weights, near=whole, **kind)
    assert (params(near.surface) == params(fit_surfaces(*flat, weights, **kind).surface)).all()


def test_blocks_of_searches_are_the_searches(monkeypatch):
    """As little as one search at a time, for the memory's sake."""
    points, weights = resampled_points(0.01, n=200)
    whole = fit_surfaces(*points, weights[:2], every_start=True)
    monkeypatch.setattr(solver, "BLOCK", 150)
    parts = fit_surfaces(*points, weights[:2], every_start=True)
    assert params(parts.surface) == pytest.approx(params(whole.surface), rel=1e-9)
    assert parts.starts == pytest.approx(whole.starts, rel=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_outer_exponent(objective):
    """Exact losses give the truth back, whatever its power; no search of scipy gets lower for noisy ones, and the plain
    form is one of this."""
    n, d = grid()
    for gamma in (0.3, 1.0, 2.5):
        truth = Surface(1.7, 400 ** (1 / gamma), 410 ** (1 / gamma), 0.34 / gamma, 0.28 / gamma, gamma=gamma)
        options = {"objective": objective, "form": OUTER_EXPONENT}
        fitted = fit_surfaces(np.log(n), np.log(d), truth.loss(n, d), **options).surface.item()
        assert fitted.to_dict() | {"gamma": fitted.gamma} == pytest.approx(truth.to_dict() | {"gamma": gamma}, rel=1e-6)
        assert fitted.flops_to_reach(fitted.l_opt(1e21)) == pytest.approx(1e21)
    log_n, log_d, losses = noisy()
    result = fit_surfaces(log_n, log_d, losses, every_start=True, **options)
    plain = fit_surfaces(log_n, log_d, losses, objective=objective)
    assert (result.objective <= plain.objective * (1 + 1e-9)).all() and result.ended_well.all()
    at = np.array([log_n.mean(), log_d.mean()])

    def value(theta, loss):
        e, a, b, alpha, beta, gamma = theta
        model = e + (np.exp(a - alpha * (log_n - at[0])) + np.exp(b - beta * (log_d - at[1]))) ** gamma
        off = np.abs(np.log(loss / model)) if e > 0 and gamma > 0 else np.array([1e9])
        return (
            (loss - model) ** 2 if objective == LEAST_SQUARES else np.where(off < 1e-3, off**2 / 2, 1e-3 * (off - 5e-4))
        ).sum()

    for i, loss in enumerate(losses[:3]):
        surface = result.surface.item(i)
        logs = np.log([surface.A, surface.B]) - np.array([surface.alpha, surface.beta]) * at
        theta = np.array([surface.E, *logs, surface.alpha, surface.beta, surface.gamma])
        assert value(theta, loss) == pytest.approx(result.objective[i], rel=1e-8)
        for start in (theta, theta * [0.9, 1, 1, 1.1, 1.1, 0.9]):
            searched = optimize.minimize(
                value, start, (loss,), method="Nelder-Mead", options={"maxiter": 6000, "maxfev": 6000}
            )
            assert result.objective[i] <= searched.fun * (1 + 1e-7)
