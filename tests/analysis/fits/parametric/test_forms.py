"""Over-training and data-constrained forms."""

import numpy as np
import pytest

from analysis.fits.parametric.forms import effective, fit_repeated, over_training
from analysis.fits.parametric.many import LEAST_SQUARES, fit_many
from analysis.fits.parametric.surface import Surface

from .cases import SURFACES, grid, params


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


@pytest.mark.parametrize("objective", ["huber", LEAST_SQUARES])
def test_repeated_data_come_back(objective):
    n, d = grid(6, 6)
    unique = np.where(np.arange(len(n)) % 2, d, np.minimum(d, 1e9))
    loss = SURFACES[0].loss(n, effective(d, unique, 15.4))
    found, r_star = fit_repeated(np.log(n), d, unique, loss, objective=objective, tolerance=1e-6)
    assert r_star == pytest.approx([15.4], rel=1e-5)
    assert params(found.surface)[0] == pytest.approx(params(SURFACES[0]), rel=1e-4)


def test_nothing_repeated_is_the_plain_form():
    n, d = grid()
    loss = SURFACES[0].loss(n, d)
    found, r_star = fit_repeated(np.log(n), d, d, loss)
    assert np.isinf(r_star).all()
    assert np.array_equal(params(found.surface), params(fit_many(np.log(n), np.log(d), loss).surface))
