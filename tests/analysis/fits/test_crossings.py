"""Crossings of neighbouring curves and the laws through them: known places, the line by hand, Fieller's interval, what
is refused, and what it repairs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from analysis.fits.crossings import REACH, Crossing, Difference, crossing_laws, find_crossings, fit_line
from analysis.fits.fit import D_OPT, N_OPT, InverseLine
from analysis.fits.noise import SeedNoise
from analysis.fits.seeds import SizeCurve

from .worlds import Ladder, Setting, World, laws_of

EVERYWHERE = (0.0, 100.0)
X = np.linspace(22.0, 29.0, 300)


def curve(n: float, end: float = 29.0, shift: float = 0.0, wiggle: float = 0.0) -> SizeCurve:
    """L = (N / 1.2e5)^-0.3 + (D / 2e6)^-0.3, C = 6 N D, from log C = 22 to end."""
    x = np.linspace(X[0], end, 300)
    log_loss = np.log((n / 1.2e5) ** -0.3 + (np.exp(x) / 6 / n / 2e6) ** -0.3) + shift + wiggle * np.sin(9 * x)
    return SizeCurve(f"{n:.0f}", int(n), 6 * n, 1.0, 1, x, log_loss)


def true_crossing(small: float, large: float) -> float:
    """log C where N_opt = sqrt(small large): p = q, so the optimum lies exactly half way; N_opt = sqrt(0.01 C)."""
    return math.log(small * large / 0.01)


def test_crossings_of_a_known_surface() -> None:
    sizes = [14e3, 28e3, 56e3]
    for crossing, pair in zip(find_crossings([curve(n) for n in sizes], EVERYWHERE), pairwise(sizes), strict=True):
        assert crossing.at == pytest.approx(true_crossing(*pair), abs=2e-3) and crossing.beyond == 0
        difference = crossing.difference
        assert difference is not None and difference.at(crossing.at) == pytest.approx(0, abs=1e-12)
        for x in (crossing.at, 20.0, 40.0):  # inside its window, and on the tangents
            step = (difference.at(x + 0.01) - difference.at(x - 0.01)) / 0.02
            assert difference.slope(x) == pytest.approx(step, rel=1e-6)


def test_noise_along_the_curves_makes_no_second_crossing() -> None:
    """Waves of 1% cross zero many times; the parabola once, near the true place."""
    (crossing,) = find_crossings([curve(14e3, wiggle=0.01), curve(28e3)], EVERYWHERE)
    assert crossing.at == pytest.approx(true_crossing(14e3, 28e3), abs=0.15)


@pytest.mark.parametrize("short", [0.1, 0.5])
def test_a_crossing_just_beyond_the_shorter_run(short: float) -> None:
    at = true_crossing(14e3, 28e3)
    (crossing,) = find_crossings([curve(14e3, at - short), curve(28e3)], EVERYWHERE)
    assert (crossing.beyond, crossing.at) == pytest.approx((short, at), abs=0.05)


def test_why_there_is_none() -> None:
    at = true_crossing(14e3, 28e3)
    for small, large, stretch, reason in (
        (curve(14e3, at - 1.5), curve(28e3), EVERYWHERE, "the smaller size is still ahead by"),
        (curve(14e3), curve(28e3), (at + REACH + 1.0, 100.0), "the larger size is ahead by"),
        (curve(14e3, 22.3), curve(28e3), EVERYWHERE, "the two curves share too little compute after their warm-ups"),
        (curve(14e3), curve(14e3, shift=0.001), EVERYWHERE, "the smaller size is still ahead by 0.1% where the"),
    ):
        (crossing,) = find_crossings([small, large], stretch)
        assert reason in crossing.reason and math.isnan(crossing.at)


def test_warm_up_and_the_range_are_left_out() -> None:
    """A larger size that is ahead within its warm-up, or outside of the range, has not crossed there."""
    large = curve(28e3)
    ahead = replace(large, log_loss=np.where(large.log_c < 24.0, large.log_loss - 1.0, large.log_loss))
    warm = replace(ahead, warmup_tokens=math.exp(24.1) / large.flops_per_token)
    for other, stretch in ((ahead, (24.1, 100.0)), (warm, EVERYWHERE)):
        (crossing,) = find_crossings([curve(14e3), other], stretch)
        assert crossing.at == pytest.approx(true_crossing(14e3, 28e3), abs=2e-3)


def straight(
    at: Sequence[float], slopes: Sequence[float], gaps: Sequence[float], seeds: Sequence[int]
) -> list[Crossing]:
    """Crossings whose differences are straight lines through zero."""
    log_n = np.concatenate([[10.0], 10.0 + np.cumsum(gaps)])
    sizes = [SizeCurve("", math.exp(n), 6 * math.exp(n), 0.0, s, X, X) for n, s in zip(log_n, seeds, strict=True)]
    return [
        Crossing(small, large, Difference(x - 1, x + 1, 0.0, slope, 0.0), x)
        for (small, large), x, slope in zip(pairwise(sizes), at, slopes, strict=True)
    ]


Y = [9.0, 10.0, 11.0, 12.0]


def test_the_line_is_generalised_least_squares() -> None:
    """With straight differences the fit is linear: (J' V^-1 J)^-1 J' V^-1 d, neighbours sharing a curve of 3 seeds."""
    at, gaps = np.array([20.0, 22.3, 23.9, 26.2]), np.array([1.0, 0.8, 1.2, 1.0])
    slopes, off = 0.05 * gaps, np.array(Y) - 10.5
    fitted = fit_line(
        straight(at.tolist(), slopes, gaps, [1, 3, 1, 2, 1]), Y, SeedNoise(1e-3, 8, correlation=0.5), 0.95
    )
    assert fitted is not None
    variance = np.diag([1 + 1 / 3, 1 / 3 + 1, 1 + 1 / 2, 1 / 2 + 1])
    for i, seeds in enumerate((3, 1, 2)):
        variance[i, i + 1] = variance[i + 1, i] = -(0.5 ** (at[i + 1] - at[i])) / seeds
    design, weights = slopes[:, None] * np.stack([np.ones(4), off], 1), np.linalg.inv(variance)
    covariance = np.linalg.inv(design.T @ weights @ design)
    level, slope = covariance @ design.T @ weights @ (slopes * at)
    assert (fitted.level, fitted.slope) == pytest.approx((level, slope), rel=1e-8)
    assert np.array(fitted.covariance) == pytest.approx(covariance, rel=1e-6)
    rest = slopes * (level + slope * off - at)
    scatter = math.sqrt(float(rest @ weights @ rest) / 2)  # far above the noise of seeds, so in its place
    assert fitted.error == pytest.approx(stats.t.ppf(0.975, 8) * scatter, rel=1e-6)


def test_the_covariance_takes_one_rise_for_all() -> None:
    """A crossing that noise has made steep does not count for more."""
    gaps = [1.0, 0.5, 1.0, 1.0]
    noisy, even = (
        fit_line(straight([20.0, 22.0, 24.0, 26.0], slopes, gaps, [1] * 5), Y, None, 0.95)
        for slopes in ((0.04, 0.06, 0.06, 0.03), (0.05, 0.025, 0.05, 0.05))
    )
    assert noisy is not None and even is not None
    mean = (0.04 + 0.5 * 0.06 + 0.06 + 0.03) / 3.25
    assert np.array(noisy.covariance) * mean**2 == pytest.approx(np.array(even.covariance) * 0.05**2)


def test_a_value_belongs_to_the_interval_as_long_as_its_line_does() -> None:
    line = InverseLine(23.0, 1.8, 10.0, ((4.0, 0.7), (0.7, 2.0)), 0.15)
    tokens = replace(line, of_tokens=True)
    for x in (21.0, 23.0, 30.0):
        low, high = line.log_interval(x)
        assert low < line.log_value(x) < high and tokens.log_value(x) == x - line.log_value(x)
        assert tokens.log_interval(x) == (x - high, x - low)
        for y in (low, high):
            u = y - line.centre
            error = 0.15 * math.sqrt(4.0 + 2 * 0.7 * u + 2.0 * u**2)
            assert abs(x - line.level - line.slope * u) == pytest.approx(error, rel=1e-9)
    low, high = line.exponent_interval()
    assert (1 / high, 1 / low) == pytest.approx((1.8 - 0.15 * math.sqrt(2), 1.8 + 0.15 * math.sqrt(2)))
    assert tokens.exponent_interval() == (1 - high, 1 - low)
    wide = replace(line, error=1.3)  # a slope of 0 belongs to it
    assert wide.steepest == math.inf and wide.log_interval(23.0) == (-math.inf, math.inf)


def test_scatter_beyond_the_noise_widens_the_interval() -> None:
    crossings = straight([20.0, 23.0, 23.5, 26.5], [0.05] * 4, [1.0] * 4, [1] * 5)
    lines = [fit_line(crossings, Y, SeedNoise(s, 8), 0.95) for s in (0.001, 0.002, 0.05)]
    of_scatter, same, of_noise = (line.error for line in lines if line and line.error)
    t = stats.t.ppf(0.975, 8)
    assert of_scatter == pytest.approx(same) and same > t * 0.002 and of_noise == pytest.approx(t * 0.05)


def test_reasons_of_both_laws() -> None:
    curves = Setting.of(World(), Ladder(4, 0.003)).curves
    crossings = find_crossings(curves, EVERYWHERE)
    far = [replace(crossing, beyond=0.5) for crossing in crossings]
    disordered = straight([26.0, 24.0, 22.0], [0.05] * 3, [1.0] * 3, [1] * 4)
    for pairs, noise, reason in (
        (crossings[:1], None, "1 pair of neighbouring sizes crosses in the range, 3 are needed"),
        (far, None, "0 of 3 crossings lie where both curves were trained, 2 are needed"),
        (disordered, None, "their order is not that of the sizes"),
        (crossings, SeedNoise(0.2, 2), "grows without bound"),
        (crossings, SeedNoise(0.02, 8), "reaches beyond 5"),  # an end of 8 is a number, and says as little
    ):
        n_opt, d_opt = crossing_laws(pairs, noise, 0.95)
        assert not n_opt.identified and n_opt.reason == d_opt.reason and reason in n_opt.reason
        assert n_opt.line is None and n_opt.exponent.value is None
    n_opt, _ = crossing_laws(crossings, None, 0.95)
    assert n_opt.identified and n_opt.exponent.value is not None and n_opt.exponent.interval is None


def test_of_pairs_that_do_not_cross_the_reason_has_the_nearest_and_counts_the_others() -> None:
    curves = [curve(n) for n in (1e3, 2e3, 4e3, 8e3)]
    far, near, unknown = (
        Crossing(small, large, reason=why, missed_by=by)
        for (small, large), why, by in zip(
            pairwise(curves), ("far", "near", "not known"), (0.02, 0.01, math.inf), strict=True
        )
    )
    for pairs, nearest in (
        ([far, near, unknown], ": 2000 and 4000: near; 2 more pairs do not cross either"),
        ([far, unknown], ": 1000 and 2000: far; 1 more pair does not cross either"),
        ([unknown], ": 4000 and 8000: not known"),
        ([], ""),
    ):
        assert crossing_laws(pairs, None, 0.95)[0].reason == f"0 pairs cross in the range, 3 are needed{nearest}"


@pytest.mark.parametrize("ratio", [1.8, 2.5])
@pytest.mark.parametrize(("p", "q"), [(0.3, 0.3), (0.4, 0.25), (0.25, 0.4)])
def test_the_steps_of_the_envelope_do_not_bias_the_crossings(p: float, q: float, ratio: float) -> None:
    """Without noise, of four to six sizes: the exponent, N_opt ten times beyond the range, and D_opt with it."""
    for n_sizes in (4, 6):
        setting = Setting.of(World(0.6, p, q), Ladder(n_sizes, 0.003, ratio))
        laws, _ = laws_of(setting, None)
        n_opt, d_opt = laws[N_OPT], laws[D_OPT]
        assert n_opt.exponent.value == pytest.approx(q / (p + q), rel=0.015)
        assert n_opt.exponent.value + d_opt.exponent.value == pytest.approx(1, abs=1e-6)  # sizes are rounded
        x, y, _ = setting.beyond
        assert math.log(n_opt.at(math.exp(x)).value) == pytest.approx(y, abs=0.03)
        for c in n_opt.range:
            assert 6 * n_opt.at(c).value * d_opt.at(c).value == pytest.approx(c, rel=1e-6)


def test_the_stored_law_gives_its_interval_anywhere() -> None:
    setting = Setting.of(World(), Ladder(6, 0.005))
    laws, _ = laws_of(setting, SeedNoise(0.005, 8))
    for law in (laws[N_OPT], laws[D_OPT]):
        assert law.line is not None and law.band is not None and law.range is not None
        for c, low, high in zip(law.band.c, law.band.low, law.band.high, strict=True):
            assert law.at(c).interval == pytest.approx((low, high))
        inside = [np.diff(law.line.log_interval(math.log(c)))[0] for c in law.range]
        far = law.line.log_interval(math.log(10 * law.range[1]))
        assert np.diff(far)[0] > max(inside)
        assert law.band.at(10 * law.range[1]) == pytest.approx(np.exp(far), rel=0.01)
        assert law.exponent.low < law.exponent.value < law.exponent.high


def test_cost_that_is_another_multiple_of_parameters() -> None:
    """Twice the cost a token at every size: D_opt falls by half at a given N, and its law says so."""
    plain = Setting.of(World(), Ladder(5, 0.003)).curves
    dear = [replace(c, flops_per_token=2 * c.flops_per_token, log_c=c.log_c + math.log(2)) for c in plain]
    laws = (crossing_laws(find_crossings(curves, EVERYWHERE), None, 0.95) for curves in (plain, dear))
    for cheap, costly in zip(*laws, strict=True):
        assert costly.exponent.value == pytest.approx(cheap.exponent.value, rel=1e-3)
        assert costly.centre == pytest.approx([2 * cheap.centre[0], cheap.centre[1]], rel=1e-3)
