"""Is L(C) a power law: the envelope's steps, false alarms, power beside an oracle's, and what is said."""

from typing import Any

import numpy as np
import pytest

from analysis.fits.envelope.crossings import find_crossings
from analysis.fits.envelope.curvature import find_curvature
from analysis.fits.envelope.extract import SizeCurve, extract
from analysis.fits.envelope.laws import fit_arch
from analysis.fits.envelope.optimum import optimum_laws
from analysis.fits.envelope.staircase import steps_of
from analysis.fits.fit import Law
from analysis.fits.noise import SeedNoise
from tests.analysis.fits.worlds import SETTINGS, Ladder, Setting, World, quadratic_terms


def loss_law(*arguments: Any) -> Law:
    """L(C) of `fit_arch`."""
    return fit_arch(*arguments)[0][2]


@pytest.mark.parametrize("irreducible", [0.0, 0.6])
@pytest.mark.parametrize("ratio", [1.8, 2.5])
def test_the_steps_are_what_the_envelope_lies_above_the_optimum(ratio: float, irreducible: float) -> None:
    setting = Setting.of(World(irreducible, 0.34, 0.28), Ladder(6, 0.003, ratio))
    log_c = np.linspace(*np.log(setting.stretch), 40)
    envelope = extract(setting.curves, log_c)
    crossings, missing = find_crossings(setting.curves, (log_c[0], log_c[-1]))
    line = optimum_laws(setting.curves, crossings, missing, None, 0.95)[0].line
    steps = steps_of(setting.curves, envelope, crossings, line)
    assert steps is not None and steps.inside.all()
    true = envelope.log_loss[0] - np.array([setting.world.log_l_opt(x) for x in log_c])
    assert true.max() > 0.002
    assert steps.excess == pytest.approx(true, abs=0.15 * true.max())


def test_points_whose_optimum_lies_outside_the_sizes_are_left_out() -> None:
    """The range begins a factor of thirty below the first crossing: there the envelope is one curve."""
    setting = Setting.of(World(), Ladder(5, 0.003))
    low, high = setting.stretch
    wide = loss_law(setting.curves, (low / 30, high), None, SETTINGS, [0])
    near = loss_law(setting.curves, (low, high), None, SETTINGS, [0])
    assert wide.about_loss.n_outside > 5 and near.about_loss.n_outside == 0
    assert wide.exponent.value == pytest.approx(-0.15, abs=0.002) == pytest.approx(near.exponent.value, abs=0.002)


def test_without_crossings_nothing_is_taken_off_and_nothing_tested() -> None:
    setting = Setting.of(World(), Ladder(4, 0.003))
    found = loss_law(setting.curves[:3], setting.stretch, SeedNoise(0.003, 8), SETTINGS, [0])
    about = found.about_loss
    assert about.steps == 0 and about.n_outside == 0 and about.off_line < 0.01
    bend = about.curvature
    assert not bend.tested and not bend.found and "N_opt is not identified" in bend.reason
    assert found.band is not None


def test_a_line_that_misses_its_points_has_no_band_although_nothing_can_be_tested() -> None:
    """Equal tokens for all sizes: the envelope is made of the ends of runs, and no two neighbours cross."""
    world, sizes = World(0.6), 14e3 * 3.0 ** np.arange(5)
    curves = []
    for n in sizes:
        tokens = np.geomspace(2e4, 3e5, 160)
        log_c, log_loss = np.log(6 * n * tokens), np.log(world.loss(n, tokens))
        curves.append(SizeCurve(f"{n:.0f}", round(n), 6 * n, 2e4, 1, log_c, log_loss))
    stretch = (float(np.exp(curves[0].log_c[0])), float(np.exp(curves[-1].log_c[-1])))
    loss = loss_law(curves, stretch, SeedNoise(0.003, 8), SETTINGS, [0])
    assert loss.about_loss.off_line > 0.02
    assert not loss.about_loss.curvature.tested and loss.about_loss.curvature.shape == "ragged"
    assert loss.exponent.interval is None and loss.band is None


def test_a_curve_that_bends_is_called_so_and_has_no_interval() -> None:
    for irreducible, shape in ((0.6, "convex"), (0.0, None)):
        setting = Setting.of(World(irreducible), Ladder(6, 0.002))
        loss = loss_law(setting.curves, setting.stretch, SeedNoise(0.002, 8), SETTINGS, [0])
        bend = loss.about_loss.curvature
        assert bend.tested and bend.shape == shape and bend.found == (shape is not None)
        assert (loss.exponent.interval is None) == (loss.band is None) == (shape is not None)
        assert bend.power_half > 0.95 and 0 < bend.visible < 0.6
    concave = np.linspace(0, 3, 40) ** 2 * -0.05
    noise = concave + 0.001 * np.random.default_rng(0).standard_normal((200, 1))
    found = find_curvature(np.linspace(20, 24, 40), concave, np.zeros(40), noise)
    assert found is not None and found.shape == "concave" and found.p_value == 1


def test_power_is_that_of_drawn_studies() -> None:
    """The power told for an irreducible loss of half the lowest: in how many studies of such a world it is found."""
    setting = Setting.of(World(), Ladder(5, 0.02))
    told = loss_law(setting.curves, setting.stretch, SeedNoise(0.02, 10**6), SETTINGS, [0]).about_loss.curvature
    x = np.linspace(*np.log(setting.stretch), 40)
    loss = np.exp([setting.world.log_l_opt(v) for v in x])
    line = np.polyfit(x, np.log(loss - loss.min() / 2), 1)
    bent = np.log(loss.min() / 2 + np.exp(np.polyval(line, x)))
    rng = np.random.default_rng(1)
    shifts = rng.standard_normal((4000, 5)) * 0.02 / np.sqrt(setting.ladder.n_seeds)
    noise = quadratic_terms(x, extract(setting.curves, x, shifts).log_loss - extract(setting.curves, x).log_loss)
    expected = float((noise + quadratic_terms(x, bent[None])[0] > np.quantile(noise, 0.95)).mean())
    assert 0.2 < expected < 0.9
    assert told.power_half == pytest.approx(expected, abs=0.08)  # 400 replicates: 3 sigma


def test_too_few_points() -> None:
    assert find_curvature(np.arange(3.0), np.zeros(3), np.zeros(3), np.zeros((5, 3))) is None
