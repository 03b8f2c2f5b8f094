"""A power law above an irreducible loss: exact on its own curves, beside scipy's; pure where E = 0."""

import numpy as np
import pytest
from scipy import optimize

from analysis.fits.irreducible import fit_irreducible

LOG_C = np.log(np.geomspace(1e18, 1e22, 9))


@pytest.mark.parametrize(("e", "alpha"), [(1.69, -0.154), (0.5, -0.05), (2.0, -0.5)])
def test_recovers_its_own_curve(e: float, alpha: float) -> None:
    loss = e + 1.5 * np.exp(alpha * (LOG_C - LOG_C.mean()))
    fit = fit_irreducible(LOG_C, np.stack([loss, 2 * loss]))
    assert fit.floor == pytest.approx([e, 2 * e], rel=1e-5)
    assert fit.exponent == pytest.approx([alpha, alpha], rel=1e-5)
    assert fit.at(LOG_C)[0] == pytest.approx(loss, rel=1e-8)


def test_a_pure_power_law_has_no_floor() -> None:
    loss = 3 * np.exp(-0.1 * (LOG_C - LOG_C.mean()))
    bent = loss * np.exp(-0.002 * (LOG_C - LOG_C.mean()) ** 2)  # concave: no floor makes this
    fit = fit_irreducible(LOG_C, np.stack([loss, bent]))
    assert fit.exponent[0] == pytest.approx(-0.1, rel=1e-4) and fit.floor[0] == pytest.approx(0, abs=1e-3)
    assert fit.floor[1] == 0
    assert fit.exponent[1] == pytest.approx(np.polyfit(LOG_C, np.log(bent), 1)[0], rel=0.02)


def test_beside_scipys_least_squares() -> None:
    rng = np.random.default_rng(0)
    clean = 1.7 + 1.2 * np.exp(-0.2 * (LOG_C - LOG_C.mean()))
    for loss in clean * np.exp(0.003 * rng.standard_normal((5, len(LOG_C)))):
        fit = fit_irreducible(LOG_C, loss)

        def residual(p: np.ndarray, loss: np.ndarray = loss) -> np.ndarray:
            return np.asarray((p[0] + np.exp(p[1] + p[2] * (LOG_C - LOG_C.mean()))) / loss - 1)

        result = [optimize.least_squares(residual, [e, 0.2, a], xtol=1e-12) for e in (0.5, 1.8) for a in (-0.1, -0.3)]
        best = min((minimum for minimum in result if minimum.x[0] >= 0), key=lambda minimum: minimum.cost)
        assert np.sum((fit.at(LOG_C)[0] / loss - 1) ** 2) <= 2 * best.cost * (1 + 1e-6)
        assert fit.floor[0] == pytest.approx(best.x[0], abs=1e-3)


def test_points_without_weight_are_as_if_left_out() -> None:
    kept = np.arange(len(LOG_C)) < len(LOG_C) - 2
    loss = 1.7 + 1.2 * np.exp(-0.2 * (LOG_C - LOG_C.mean())) * np.where(kept, 1.0, 1.2)
    weighted = fit_irreducible(LOG_C, loss, kept[None].astype(float))
    alone = fit_irreducible(LOG_C[kept], loss[kept])
    assert weighted.at(LOG_C[-1])[0] == pytest.approx(float(alone.at(LOG_C[-1])[0]), rel=1e-6)


def test_an_expected_exponent_decides_where_the_points_do_not() -> None:
    loss = 1.7 + 1.2 * np.exp(-0.2 * (LOG_C - LOG_C.mean()))
    two = fit_irreducible(LOG_C[[0, -1]], loss[[0, -1]], expected=(0.1, 0.3))
    assert two.exponent[0] == pytest.approx(-0.1, rel=1e-3)
    assert fit_irreducible(LOG_C, loss, expected=(0.1, 0.3)).exponent[0] == pytest.approx(-0.2, rel=1e-3)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="needs 4 different C"):
        fit_irreducible(LOG_C[:3], np.ones((1, 3)))
    with pytest.raises(ValueError, match="positive"):
        fit_irreducible(LOG_C, np.zeros((1, 9)))
    assert np.isnan(fit_irreducible(LOG_C, np.full((1, 9), np.nan)).exponent).all()
