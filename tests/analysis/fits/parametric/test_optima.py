"""The optimum of every form under real costs: against a fine grid of sizes, and where it must be the surface's."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.cost import Cost, six_nd
from analysis.fits.fit import QUANTITIES
from analysis.fits.forms import BOTH
from analysis.fits.parametric.fit import fit_parametric
from analysis.fits.parametric.results import parametric_result
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES
from analysis.fits.surface import Surface, unique_params

from .cases import SURFACES

MUENNIGHOFF = Surface(1.87, 521.0, 1488.0, 0.353, 0.353)
STARS = {"r_d": 15.4, "r_n": 5.3}
KNOTS = np.log([1e7, 1e8, 1e9, 1e10])


def power(growth):
    """A token's FLOP as N^growth, 6 N at 1e9 parameters."""
    log_n = np.log([1.0, 1e12])
    return Cost(log_n, np.log(6e9) + growth * (log_n - np.log(1e9)), "exact")


BENT = Cost(KNOTS, np.log(6e9) + np.cumsum([0.0, *(np.array([0.5, 0.75, 1.1]) * np.diff(KNOTS))]), "exact")


def optimum(surface, c, cost):
    return {name: np.asarray(getattr(surface, name)(c, cost)) for name in ("n_opt", "d_opt", "l_opt")}


def searched(surface, c, cost):
    """N, D and L of the lowest loss over a grid of sizes, twice finer around the best."""
    low, high = np.log(1e2), np.log(1e15)
    for _ in range(3):
        log_n = np.linspace(low, high, 20001)
        n = np.exp(log_n)
        loss = surface.loss(n, c / cost.per_token(n))
        best = int(loss.argmin())
        low, high = log_n[max(best - 50, 0)], log_n[min(best + 50, len(n) - 1)]
    return n[best], c / cost.per_token(n[best]), loss[best]


@pytest.mark.parametrize("surface", [MUENNIGHOFF, SURFACES[1]], ids=["published", "0.465, 0.155"])
@pytest.mark.parametrize("r_n", [0.3, 5.3, 800.0])
@pytest.mark.parametrize("cost", [power(1.0), power(0.8), power(0.6), power(0.25), power(1.2), BENT], ids=str)
def test_against_a_grid_of_sizes(surface, r_n, cost):
    surface = replace(surface, r_d=15.4, r_n=r_n)
    c = np.array([1e18, 1e21, 1e24])
    found = optimum(surface, c, cost)
    for i, one in enumerate(c):
        n, d, loss = searched(surface, one, cost)
        assert found["n_opt"][i] == pytest.approx(n, rel=1e-4)
        assert found["d_opt"][i] == pytest.approx(d, rel=1e-4)
        assert found["l_opt"][i] == pytest.approx(loss, rel=1e-9)
    if cost.growth(np.log(found["n_opt"]))[0] < 1:
        assert found["n_opt"][0] > unique_params(surface, found["d_opt"][0])


def test_numbers_that_a_search_found_elsewhere():
    """N_opt and L_opt of the form, and N_opt of its surface alone, at C = 1e21."""
    for growth, alone, n, loss in ((0.8, 2.88e9, 2.38e9, 2.3141), (0.6, 5.69e9, 3.53e9, None)):
        found = optimum(replace(SURFACES[0], **STARS), 1e21, power(growth))
        assert found["n_opt"] == pytest.approx(n, rel=2e-3)
        assert loss is None or found["l_opt"] == pytest.approx(loss, abs=5e-5)
        assert SURFACES[0].n_opt(1e21, power(growth)) == pytest.approx(alone, rel=2e-3)


def test_many_at_once_are_each_alone():
    rng = np.random.default_rng(0)
    alpha, beta = rng.uniform(0.2, 0.5, (2, 40))
    e, a, b = rng.uniform(1, 2, 40), np.exp(rng.uniform(5, 7, 40)), np.exp(rng.uniform(5, 8, 40))
    many = Surface(e, a, b, alpha, beta, np.full(40, 15.0), np.append(np.geomspace(0.1, 1e4, 39), np.inf))
    c = np.array([1e19, 1e22])
    for cost in (power(0.7), BENT):
        found = optimum(many.column(), c, cost)
        for i in range(40):
            alone = optimum(many.one(i), c, cost)
            for name, values in found.items():
                assert values[i] == pytest.approx(alone[name], rel=1e-12)
        assert many.n_opt(c[0], cost) == pytest.approx(found["n_opt"][:, 0], rel=1e-12)


def test_where_there_is_no_excess_the_optimum_is_the_surfaces():
    c = np.array([1e19, 1e22])
    forms = {}, {"r_d": 15.4}, {"r_d": 15.4, "r_n": np.inf}
    for cost in (six_nd(), power(0.7), BENT):
        told = [MUENNIGHOFF.n_opt(c, cost), MUENNIGHOFF.d_opt(c, cost), MUENNIGHOFF.l_opt(c, cost)]
        for stars in forms:
            again = optimum(replace(MUENNIGHOFF, **stars), c, cost)
            assert np.array(list(again.values())) == pytest.approx(np.array(told), 1e-12)
    published = replace(MUENNIGHOFF, **STARS)
    assert published.n_opt(c) == pytest.approx(MUENNIGHOFF.n_opt(c), rel=1e-12)
    assert published._excess(1 - 1e-9) == pytest.approx(0.0, abs=1e-8)


def test_published_form_under_a_cost_that_grows_slowly():
    """Everything that is reported is of the form itself: optima, a, intervals, fits without one size."""
    n = np.repeat(np.geomspace(5e7, 5e9, 6), 5)
    unique = np.tile([2e10, 1e10, 2e9, 1e9, 5e8], 6)
    d = unique * np.tile([1, 3, 8, 20, 40], 6)
    noise = np.exp(0.001 * np.random.default_rng(0).standard_normal(30))
    for cost in (power(0.6), BENT):
        points = Points(
            n, d, cost.per_token(n) * d, replace(MUENNIGHOFF, **STARS).loss(n, d, unique) * noise, unique_tokens=unique,
            convention="exact",
        )  # fmt: skip
        fit = fit_parametric(points, form=BOTH, objective=LEAST_SQUARES, n_replicates=49, cost=cost)
        found = parametric_result(fit, at=[1e21])
        for c, told in ((1e21, found.optima[0]), (found.middle.flops, found.middle)):
            expected = searched(fit.surface, c, cost)
            assert [told.of(name).value for name in QUANTITIES] == pytest.approx(expected, rel=1e-4)
        truth = searched(replace(MUENNIGHOFF, **STARS), 1e21, cost)[0]
        low, high = found.optima[0].n_params.interval
        assert low < truth < high < 1.3 * truth
        assert MUENNIGHOFF.n_opt(1e21, cost) > high  # the surface's own is another
        ends = points.flops.min(), points.flops.max()
        first, last = (searched(fit.surface, c, cost)[0] for c in ends)
        assert found.parameters["a"].value == pytest.approx(np.log(last / first) / np.log(ends[1] / ends[0]), abs=1e-4)
        low, high = found.parametric.without_sizes.ranges["N_opt"]
        assert low <= found.parameters["N_opt"].value <= high <= MUENNIGHOFF.n_opt(found.middle.flops, cost)
        assert "N_opt is above U_N" in found.parametric.assumes
