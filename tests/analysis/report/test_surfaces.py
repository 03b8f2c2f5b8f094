"""Figures of a fit: the numbers that are drawn are those of the points and the fit."""

from pathlib import Path

import numpy as np
import pytest

from analysis.figures.palette import name_of
from analysis.fits.approaches import Options, fit_with_surface
from analysis.fits.points import Points
from analysis.fits.settings import FITS
from analysis.fits.study_fits import read_fits
from analysis.fits.surface import Surface
from analysis.report.fit_figures import isoflop_figure, profiles_figure
from analysis.source.published import Published

TRUTH = Surface(1.69, 406.4, 410.7, 0.34, 0.28)  # Hoffmann et al. 2022
PUBLISHED = Path(__file__).parents[3] / "analysis" / "studies" / "2026-second"
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


def test_profiles_hold_every_point_and_meet_at_the_minima(points, fits):
    figure = isoflop_figure(points, fits[1])
    *dots, key = [trace for trace in figure.data if trace.mode == "markers" and trace.showlegend is None]
    assert key.name == "minimum of the curve" and key.x == (None,)
    assert [len(trace.x) for trace in dots] == [2, 7, 7, 7] and dots[0].name == "at no such budget (2 points)"
    assert sum(len(trace.x) for trace in dots) == len(points)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    used = [minimum for minimum in fits[1].isoflop.minima if minimum.reason is None]
    for line, budget in zip(lines, used, strict=True):
        assert line.x[np.argmin(line.y)] == pytest.approx(budget.n_params, rel=0.05)  # of 60 places
        assert min(line.y) == pytest.approx(budget.loss, rel=1e-4)
        assert [line.x[0], line.x[-1]] == pytest.approx(budget.reach)


def test_profiles_of_a_study_have_a_panel_for_each_architecture_and_one_legend():
    fits, folder = read_fits(PUBLISHED / FITS), Published(PUBLISHED)
    tables = folder.table(fits.settings, folder.validation_tokens)
    figure = profiles_figure(fits, tables)
    names = [f"<b>{name_of(group.name)}</b>" for group in fits.groups]
    assert [note.text for note in figure.layout.annotations] == names
    dots = [trace for trace in figure.data if trace.mode == "markers" and trace.name]
    assert sum(len(trace.x) for trace in dots if trace.x[0] is not None) == len(tables.runs)
    assert [trace.name for trace in dots if trace.showlegend] == [trace.name for trace in dots[: len(dots) // 4]]
