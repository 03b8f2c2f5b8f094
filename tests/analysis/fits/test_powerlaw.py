"""Power laws: exact recovery, conditioning, masks, and the identity of exponents on common points."""

import numpy as np
import pytest

from analysis.fits.powerlaw import fit_lines, fit_power_law


@pytest.mark.parametrize("low,high", [(1e10, 1e12), (1e20, 1e22)])
def test_recovers_an_exact_law(low: float, high: float) -> None:
    c = np.geomspace(low, high, 40)
    law = fit_power_law(c, 132.5 * c**-0.0798)
    assert law.exponent == pytest.approx(-0.0798, rel=1e-11)
    assert law.coef == pytest.approx(132.5, rel=1e-10)
    assert law.r2 == pytest.approx(1, abs=1e-12)
    assert law(c) == pytest.approx(132.5 * c**-0.0798, rel=1e-12)


def test_masked_lines_equal_polyfit_on_the_kept_points() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(25, 2, 30), rng.normal(0, 1, (5, 30))
    keep = rng.random((5, 30)) < 0.6
    slope, intercept, centre = fit_lines(x, y, keep)
    for r in range(5):
        expected = np.polyfit(x[keep[r]], y[r][keep[r]], 1)
        assert slope[r] == pytest.approx(expected[0], rel=1e-8)
        assert intercept[r] - slope[r] * centre[r] == pytest.approx(expected[1], rel=1e-7)


def test_too_few_points_are_nan() -> None:
    x = np.array([1.0, 2.0, 2.0])
    keep = np.array([[True, False, False], [False, True, True], [False, False, False]])
    assert np.isnan(fit_lines(x, np.ones((3, 3)), keep)[0]).all()


def test_exponents_sum_to_one_where_c_is_6nd() -> None:
    """Least squares is linear in the response, whatever the scatter of N."""
    rng = np.random.default_rng(1)
    c = np.geomspace(1e10, 1e13, 25)
    n = 0.1 * c**0.5 * np.exp(rng.normal(0, 0.4, 25))
    assert fit_power_law(c, n).exponent + fit_power_law(c, c / (6 * n)).exponent == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("x,y", [([1, 2], [1, -1]), ([1, 2], [1, np.nan]), ([0, 2], [1, 1]), ([2, 2], [1, 1])])
def test_refuses_what_is_no_law(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError):
        fit_power_law(np.array(x), np.array(y))
