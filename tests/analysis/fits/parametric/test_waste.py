"""What a wrong choice costs, against the optimum found by brute force."""

import numpy as np
import pytest

from analysis.fits.cost import six_nd
from analysis.fits.surface import Surface
from analysis.fits.waste import of_loss, of_runs, of_sizes

SURFACE = Surface(1.69, 406.4, 410.7, 0.34, 0.28)


def test_the_optimum_wastes_nothing_and_a_wrong_size_does():
    n, d = SURFACE.n_opt(1e20), SURFACE.d_opt(1e20)
    assert of_runs(SURFACE, n, d, six_nd()) == pytest.approx(0, abs=1e-9)
    factors = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    wasted = of_sizes(SURFACE, 1e20, factors, six_nd())
    assert (np.diff(wasted[:3]) < 0).all() and (np.diff(wasted[2:]) > 0).all()
    # by brute force: the least budget on a fine grid whose best loss is no worse
    budgets = np.geomspace(1e19, 1e20, 20001)
    for factor, told in zip(factors, wasted, strict=True):
        loss = SURFACE.loss(factor * n, 1e20 / (6 * factor * n))
        least = budgets[(SURFACE.l_opt(budgets) <= loss).argmax()]
        assert told == pytest.approx(1 - least / 1e20, abs=2e-4)


def test_lost_loss_is_priced_in_compute():
    lost = SURFACE.l_opt(5e19) - SURFACE.l_opt(1e20)
    assert of_loss(SURFACE, 1e20, lost, six_nd()) == pytest.approx(0.5)
    assert of_loss(SURFACE, 1e20, 0.0, six_nd()) == pytest.approx(0, abs=1e-9)
