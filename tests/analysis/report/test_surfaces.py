"""A fit beside published surfaces, and its figures: the numbers that are drawn are those of the points and the fit."""

import numpy as np
import pytest

from analysis.fits.approaches import Options, fit_with_surface
from analysis.fits.parametric import fit_parametric
from analysis.fits.points import Points
from analysis.fits.published import check_stated
from analysis.fits.published_surfaces import PRINTED, Printed, beside, law_of, misses
from analysis.report.fit_figures import isoflop_figure

TRUTH = PRINTED["Hoffmann et al. 2022"].surface
BUDGETS = (1e18, 1e19, 1e20)


@pytest.fixture(scope="module")
def points():
    """Seven sizes about the optimum of three budgets, and two runs elsewhere; 0.5% of noise."""
    rng = np.random.default_rng(0)
    n = np.concatenate([TRUTH.n_opt(c) * np.geomspace(0.2, 5, 7) for c in BUDGETS] + [np.array([3e7, 3e8])])
    c = np.concatenate([np.repeat(BUDGETS, 7), [4e18, 4e19]])
    d = c / 6 / n
    return Points(n, d, c, TRUTH.loss(n, d) * np.exp(0.005 * rng.standard_normal(len(n))))


@pytest.fixture(scope="module")
def fits(points):
    options = Options(at=(1e20,), n_replicates=100)
    _, surface = fit_with_surface(points, "parametric", None, None, options)
    isoflop, _ = fit_with_surface(points, "isoflop", None, None, options)
    return surface, isoflop


def test_a_surface_implies_laws_that_share_out_every_budget():
    law = law_of("x", TRUTH)
    for c in (1e18, 1e24):
        assert law.value("n_opt", c, 1.0) == pytest.approx(TRUTH.n_opt(c))
        assert law.value("d_opt", c, 1.0) == pytest.approx(TRUTH.d_opt(c))
    (checked,) = check_stated([law], "flop").laws
    assert checked.holds and checked.six_nd_over_c == pytest.approx([1] * 4)


def test_surfaces_beside_a_fit(points, fits):
    """Of losses drawn from one of the printed surfaces: it lies among the draws, and the others do not."""
    rows = {row["surface"]: row for row in beside(fits[0], 1e21)}
    assert list(rows) == ["this fit", *PRINTED] and rows["this fit"]["farther"] == 1
    truth, other = rows["Hoffmann et al. 2022"], rows["Besiroglu et al. 2024"]
    assert truth["farther"] > 0.05 and other["farther"] == 0
    assert truth["spread"] == pytest.approx(0.005, rel=0.5) and abs(truth["off"]) < 0.004 < abs(other["off"])
    assert other["off"] == pytest.approx(misses(points, PRINTED["Besiroglu et al. 2024"].surface).mean())
    assert truth["n_opt"] == pytest.approx(TRUTH.n_opt(1e21)) and truth["E"] == 1.69
    bare = beside(fit_parametric(points, n_replicates=0), 1e21, {"x": Printed(TRUTH, "")})
    assert [row["farther"] for row in bare] == [None, None]


def test_profiles_hold_every_point_and_meet_at_the_minima(points, fits):
    figure = isoflop_figure(points, fits[1])
    dots = [trace for trace in figure.data if trace.mode == "markers" and trace.showlegend is None]
    assert [len(trace.x) for trace in dots] == [2, 7, 7, 7] and dots[0].name == "at no such budget (2 points)"
    assert sum(len(trace.x) for trace in dots) == len(points)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    used = [minimum for minimum in fits[1].isoflop.minima if minimum.reason is None]
    for line, budget in zip(lines, used, strict=True):
        assert line.x[np.argmin(line.y)] == pytest.approx(budget.n_params, rel=0.05)  # of 60 places
        assert min(line.y) == pytest.approx(budget.loss, rel=1e-4)
        assert [line.x[0], line.x[-1]] == pytest.approx(budget.reach)
