"""N_opt and D_opt from crossings: the line by hand, Fieller's interval, what is refused, and what it repairs."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.fits.envelope.crossings import Crossing, find_crossings
from analysis.fits.envelope.extract import SizeCurve
from analysis.fits.envelope.laws import fit_arch
from analysis.fits.envelope.optimum import fit_line, optimum_laws, uncertainty_of
from analysis.fits.fit import InverseLine
from analysis.fits.noise import SeedNoise
from tests.analysis.fits.worlds import SETTINGS, Ladder, Setting, World


def straight(small: int, at: float, slope: float = 0.05) -> Crossing:
    """A difference that is a straight line through zero at `at`."""
    return Crossing(small, at, 0.0, at - 1, at + 1, at, (0.0, slope, 0.0))


def test_the_line_is_generalised_least_squares() -> None:
    """With straight differences the fit is linear: (J' V^-1 J)^-1 J' V^-1 d, neighbours sharing a curve of 3 seeds."""
    at, y = np.array([20.0, 22.3, 23.9, 26.2]), np.array([9.0, 10.0, 11.0, 12.0])
    gaps = np.array([1.0, 0.8, 1.2, 1.0])
    slopes = 0.05 * gaps
    n_seeds = [1, 3, 1, 2, 1]
    crossings = [straight(i, x, s) for i, (x, s) in enumerate(zip(at, slopes, strict=True))]
    found = fit_line(crossings, y, gaps, n_seeds, 0.5)
    assert found is not None
    variance = np.diag([1 + 1 / 3, 1 / 3 + 1, 1 + 1 / 2, 1 / 2 + 1])
    for i, seeds in enumerate((3, 1, 2)):
        variance[i, i + 1] = variance[i + 1, i] = -(0.5 ** (at[i + 1] - at[i])) / seeds
    design = slopes[:, None] * np.stack([np.ones(4), y - 10.5], 1)
    weights = np.linalg.inv(variance)
    covariance = np.linalg.inv(design.T @ weights @ design)
    level, slope = covariance @ design.T @ weights @ (slopes * at)
    assert (found.level, found.slope) == pytest.approx((level, slope), rel=1e-8)
    assert np.array(found.covariance) == pytest.approx(covariance, rel=1e-6)
    rest = slopes * (level + slope * (y - 10.5) - at)
    assert found.misfit == pytest.approx(float(rest @ weights @ rest), rel=1e-6) and found.df == 2


def test_a_value_belongs_to_the_interval_as_long_as_its_line_does() -> None:
    line = InverseLine(23.0, 1.8, 10.0, ((4.0, 0.7), (0.7, 2.0)), 0.0, 2)
    for x in (21.0, 23.0, 30.0):
        low, high = line.interval(x, 0.15)
        assert low < line.value(x) < high
        for y in (low, high):
            u = y - line.centre
            error = 0.15 * math.sqrt(4.0 + 2 * 0.7 * u + 2.0 * u**2)
            assert abs(x - line.level - line.slope * u) == pytest.approx(error, rel=1e-9)
    low, high = line.exponent_interval(0.15)
    assert (1 / high, 1 / low) == pytest.approx((1.8 - 0.15 * math.sqrt(2), 1.8 + 0.15 * math.sqrt(2)))
    assert line.exponent_interval(1.3)[1] == math.inf  # a slope of 0 belongs to it
    assert line.interval(23.0, 1.3) == (-math.inf, math.inf)


def test_the_covariance_takes_one_rise_for_all() -> None:
    """A crossing that noise has made steep does not count for more."""
    y, gaps = [9.0, 10.0, 11.0, 12.0], [1.0, 0.5, 1.0, 1.0]
    at = [20.0, 22.0, 24.0, 26.0]
    lines = [
        fit_line([straight(i, x, s) for i, (x, s) in enumerate(zip(at, slopes, strict=True))], y, gaps, [1] * 5, 1.0)
        for slopes in ((0.04, 0.06, 0.06, 0.03), (0.05, 0.025, 0.05, 0.05))
    ]
    assert lines[0] is not None and lines[1] is not None
    mean = (0.04 + 0.5 * 0.06 + 0.06 + 0.03) / 3.25
    covariances = [np.array(line.covariance) for line in lines]
    assert covariances[0] * mean**2 == pytest.approx(covariances[1] * 0.05**2)


def test_no_line_through_crossings_in_the_wrong_order() -> None:
    crossings = [straight(0, 26.0), straight(1, 24.0), straight(2, 22.0)]
    assert fit_line(crossings, [9.0, 10.0, 11.0], [1.0] * 3, [1] * 4, 1.0) is None


def test_scatter_beyond_the_noise_widens_the_interval() -> None:
    crossings = [straight(0, 20.0), straight(1, 23.0), straight(2, 23.5), straight(3, 26.5)]
    line = fit_line(crossings, [9.0, 10.0, 11.0, 12.0], [1.0] * 4, [1] * 5, 1.0)
    assert line is not None
    quiet, loud = SeedNoise(0.002, 8), SeedNoise(0.05, 8)
    told = uncertainty_of(line, quiet, 0.95)
    ratio = line.misfit / 2 / 0.002**2
    assert told.chance == pytest.approx(stats.f.sf(ratio, 2, 8)) and told.chance < 0.05
    assert told.scale == pytest.approx(math.sqrt(ratio))
    assert told.value == pytest.approx(stats.t.ppf(0.975, 8) * 0.002 * told.scale)
    calm = uncertainty_of(line, loud, 0.95)
    assert calm.scale == 1 and calm.value == pytest.approx(stats.t.ppf(0.975, 8) * 0.05)


def test_reasons() -> None:
    curves = Setting.of(World(), Ladder(4, 0.003)).curves
    crossings, missing = find_crossings(curves, (0.0, 100.0))
    few, tokens = optimum_laws(curves, crossings[:1], missing, None, 0.95)
    assert few.line is None and not few.identified and few.reason == tokens.reason
    assert few.reason.startswith("1 pair of neighbouring sizes crosses in the range, 3 are needed")
    noisy, _ = optimum_laws(curves, crossings, missing, SeedNoise(0.2, 2), 0.95)
    assert noisy.line is None and "grows without bound" in noisy.reason and noisy.exponent.interval is None
    wide, tokens = optimum_laws(curves, crossings, missing, SeedNoise(0.02, 8), 0.95)
    assert wide.line is None and not tokens.identified  # an end of 8 is a number, and tells as little
    assert wide.reason == tokens.reason and "reaches beyond 5" in wide.reason
    plain, _ = optimum_laws(curves, crossings, missing, None, 0.95)
    assert plain.line is not None and plain.identified and plain.exponent.interval is None


@pytest.mark.parametrize("ratio", [1.8, 2.5])
@pytest.mark.parametrize(("p", "q"), [(0.3, 0.3), (0.4, 0.25), (0.25, 0.4)])
def test_the_steps_of_the_envelope_do_not_bias_the_crossings(p: float, q: float, ratio: float) -> None:
    """Without noise, of four to six sizes: the exponent, N_opt ten times beyond the range, and D_opt with it."""
    for n_sizes in (4, 6):
        setting = Setting.of(World(0.6, p, q), Ladder(n_sizes, 0.003, ratio))
        (n_opt, d_opt, _), part = fit_arch(setting.curves, setting.stretch, None, SETTINGS, [0])
        assert n_opt.exponent.value == pytest.approx(q / (p + q), rel=0.015)
        assert n_opt.exponent.value + d_opt.exponent.value == pytest.approx(1, abs=1e-6)  # sizes are rounded
        x, y, _ = setting.beyond
        assert math.log(n_opt.at(math.exp(x)).value) == pytest.approx(y, abs=0.03)
        assert part.compute_identity == pytest.approx([1, 1], rel=1e-6)


def test_ordinary_least_squares_through_the_points_does() -> None:
    """Three interior sizes: the exponent of the envelope's points is a ninth too small."""
    setting = Setting.of(World(), Ladder(5, 0.003))
    laws, part = fit_arch(setting.curves, setting.stretch, None, SETTINGS, [0])
    assert laws[0].exponent.value == pytest.approx(0.5, rel=0.01)
    assert part.alternative[0].exponent.value == pytest.approx(0.5 * (1 - 1 / 9), rel=0.05)


def test_the_stored_law_gives_its_interval_anywhere() -> None:
    setting = Setting.of(World(), Ladder(6, 0.005))
    noise = SeedNoise(0.005, 8)
    laws = optimum_laws(setting.curves, find_crossings(setting.curves, (0, 100))[0], [], noise, 0.95)
    for law, of_tokens in zip(laws, (False, True), strict=True):
        assert law.line is not None and law.line.of_tokens == of_tokens and law.band is not None and law.range
        for c, low, high in zip(law.band.c, law.band.low, law.band.high, strict=True):
            assert law.line.log_interval(math.log(c)) == pytest.approx((math.log(low), math.log(high)))
            assert law.at(c).interval == pytest.approx((low, high))
        inside = [np.diff(law.line.log_interval(math.log(c)))[0] for c in law.range]
        assert np.diff(law.line.log_interval(math.log(10 * law.range[1])))[0] > max(inside)
        assert law.exponent.low < law.exponent.value < law.exponent.high


def test_cost_that_grows_otherwise_than_parameters() -> None:
    """Twice the cost a token at every size: D_opt falls by half at a given N, and its law says so."""
    setting = Setting.of(World(), Ladder(5, 0.003))
    dear = [
        SizeCurve(c.size, c.n_params, 2 * c.flops_per_token, c.warmup_tokens, 1, c.log_c + math.log(2), c.log_loss)
        for c in setting.curves
    ]
    laws = [
        optimum_laws(curves, find_crossings(curves, (0, 100))[0], [], None, 0.95) for curves in (setting.curves, dear)
    ]
    for one, other in zip(*laws, strict=True):
        assert other.exponent.value == pytest.approx(one.exponent.value, rel=1e-3)
        assert other.centre == pytest.approx([2 * one.centre[0], one.centre[1]], rel=1e-3)
