"""Optima of the surface in closed form against searches over N."""

import numpy as np
import pytest
from scipy import optimize

from analysis.fits.cost import Cost, six_nd
from analysis.fits.surface import Surface
from arch.errors import InputError

CHINCHILLA = Surface(1.69, 406.4, 410.7, 0.34, 0.28)
BENT = Cost(np.log([1e6, 1e7, 1e8]), np.log([20e6, 90e6, 700e6]), "exact")
FALLING = Cost(np.log([1e6, 1e7, 3e7, 1e8]), np.log([20e6, 90e6, 80e6, 700e6]), "odd")  # two minima at some C


def searched(surface, flops, cost):
    """log N of the lowest loss at C by brute force, then by a bounded search around it."""
    nodes = np.linspace(0, 40, 4001)

    def loss(log_n):
        return surface.loss(np.exp(log_n), flops / cost.per_token(np.exp(log_n)))

    middle = nodes[np.argmin(loss(nodes))]
    return optimize.minimize_scalar(loss, bounds=(middle - 0.01, middle + 0.01), method="bounded").x


def test_the_optimum_under_6nd_is_the_papers_closed_form():
    c = np.geomspace(1e15, 1e25, 5)
    assert CHINCHILLA.n_opt(c) == pytest.approx(CHINCHILLA.G * (c / 6) ** CHINCHILLA.a, rel=1e-12)
    assert CHINCHILLA.d_opt(c) == pytest.approx((c / 6) ** CHINCHILLA.b / CHINCHILLA.G, rel=1e-12)
    assert 6 * CHINCHILLA.n_opt(c) * CHINCHILLA.d_opt(c) == pytest.approx(c, rel=1e-12)
    assert CHINCHILLA.a + CHINCHILLA.b == pytest.approx(1, rel=1e-15)


@pytest.mark.parametrize("cost", [six_nd(), BENT, FALLING], ids=["6nd", "bent", "falling"])
def test_the_optimum_is_the_lowest_loss_over_all_sizes(cost):
    for c in np.geomspace(1e12, 1e24, 25):
        log_n = np.log(CHINCHILLA.n_opt(c, cost))
        best = searched(CHINCHILLA, c, cost)
        found, wanted = (CHINCHILLA.loss(np.exp(x), c / cost.per_token(np.exp(x))) for x in (log_n, best))
        assert found <= wanted * (1 + 1e-12)
        assert log_n == pytest.approx(best, abs=1e-4)
        assert CHINCHILLA.l_opt(c, cost) == found


@pytest.mark.parametrize("cost", [six_nd(), BENT, FALLING], ids=["6nd", "bent", "falling"])
def test_the_compute_to_reach_a_loss_undoes_the_lowest_loss(cost):
    c = np.geomspace(1e12, 1e24, 25)
    assert CHINCHILLA.flops_to_reach(CHINCHILLA.l_opt(c, cost), cost) == pytest.approx(c, rel=1e-9)
    assert np.isinf(CHINCHILLA.flops_to_reach([1.0, 1.69], cost)).all()


def test_the_tokens_to_reach_a_loss():
    n, d = 1e9, np.geomspace(1e8, 1e13, 6)
    assert CHINCHILLA.tokens_to_reach(CHINCHILLA.loss(n, d), n) == pytest.approx(d, rel=1e-9)
    floor = 1.69 + 406.4 / n**0.34
    assert np.isinf(CHINCHILLA.tokens_to_reach([floor, floor - 0.01, 1.0], n)).all()


def test_many_surfaces_at_once_are_one_at_a_time():
    rng = np.random.default_rng(0)
    many = Surface(*(np.array(list(CHINCHILLA.to_dict().values()))[:, None] * rng.uniform(0.9, 1.1, (5, 4))))
    c = np.geomspace(1e15, 1e24, 3)
    assert len(many) == 4
    for name in ("n_opt", "d_opt", "l_opt"):
        together = getattr(many.column(), name)(c, BENT)
        assert together.shape == (4, 3)
        assert together == pytest.approx(np.stack([getattr(many.take(i), name)(c, BENT) for i in range(4)]), rel=1e-12)
    losses = many.column().l_opt(c, BENT)
    assert many.column().flops_to_reach(losses, BENT) == pytest.approx(np.tile(c, (4, 1)), rel=1e-9)


def test_large_integers_do_not_overflow():
    n, d = np.array([7_000_000_000]), np.array([300_000_000_000])
    assert CHINCHILLA.loss(n, d) == pytest.approx(CHINCHILLA.loss(7e9, 3e11), rel=1e-15)


def test_a_cost_that_does_not_grow_is_refused():
    with pytest.raises(InputError, match="does not grow with N from 10M to 100M"):
        CHINCHILLA.n_opt(1e18, Cost(np.log([1e6, 1e7, 1e8]), np.log([20e6, 90e6, 80e6]), "exact"))


def test_a_surface_without_a_term_is_one_of_many():
    for a, b in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)):
        one, many = Surface(1.0, a, b, 0.3, 0.3), Surface(*np.array([[1.0], [a], [b], [0.3], [0.3]]))
        assert one.n_opt(1e18, BENT) == pytest.approx(many.column().n_opt(1e18, BENT).item(), nan_ok=True)
