"""Where neighbouring curves cross: a known place, through noise, beyond a run's end, and why there is none."""

import math
from itertools import pairwise

import numpy as np
import pytest

from analysis.fits.envelope.crossings import REACH, find_crossings
from analysis.fits.envelope.extract import SizeCurve

EVERYWHERE = (0.0, 100.0)


def curve(n: float, end: float, shift: float = 0.0, wiggle: float = 0.0, start: float = 22.0) -> SizeCurve:
    """L = (N / 1.2e5)^-0.3 + (D / 2e6)^-0.3, C = 6 N D, from log C = start to end."""
    x = np.linspace(start, end, 300)
    tokens = np.exp(x) / 6 / n
    log_loss = np.log((n / 1.2e5) ** -0.3 + (tokens / 2e6) ** -0.3) + shift + wiggle * np.sin(9 * x)
    return SizeCurve(f"{n:.0f}", int(n), 6 * n, 1.0, 1, x, log_loss)


def true_crossing(small: float, large: float) -> float:
    """log C where N_opt = sqrt(small large): p = q, so the optimum lies exactly half way; N_opt = sqrt(0.01 C)."""
    return math.log(small * large / 0.01)


def test_a_crossing_of_a_known_surface() -> None:
    sizes = [14e3, 28e3, 56e3]
    found, missing = find_crossings([curve(n, 29.0) for n in sizes], EVERYWHERE)
    assert not missing and [one.small for one in found] == [0, 1]
    for one, pair in zip(found, pairwise(sizes), strict=True):
        assert one.at == pytest.approx(true_crossing(*pair), abs=2e-3)
        assert one.beyond == 0 and one.difference(one.at) == pytest.approx(0, abs=1e-12)
        step = (one.difference(one.at + 0.01) - one.difference(one.at - 0.01)) / 0.02
        assert one.slope(one.at) == pytest.approx(step, rel=1e-6)


def test_noise_along_the_curves_makes_no_second_crossing() -> None:
    """Waves of 1% cross zero many times; the parabola once, near the true place."""
    plain, waved = curve(28e3, 29.0), curve(14e3, 29.0, wiggle=0.01)
    found, _ = find_crossings([waved, plain], EVERYWHERE)
    assert found[0].at == pytest.approx(true_crossing(14e3, 28e3), abs=0.15)


@pytest.mark.parametrize("short", [0.1, 0.5])
def test_a_crossing_just_beyond_the_shorter_run(short: float) -> None:
    at = true_crossing(14e3, 28e3)
    found, _ = find_crossings([curve(14e3, at - short), curve(28e3, 29.0)], EVERYWHERE)
    assert found[0].beyond == pytest.approx(short, abs=0.05)
    assert found[0].at == pytest.approx(at, abs=0.05)


def test_why_there_is_none() -> None:
    at = true_crossing(14e3, 28e3)
    pair = [curve(14e3, at - 1.5), curve(28e3, 29.0)]
    found, missing = find_crossings(pair, EVERYWHERE)
    assert not found and "the smaller size is still ahead by" in missing[0].reason
    assert "where the compared stretch ends" in missing[0].reason
    found, missing = find_crossings([curve(14e3, 29.0), curve(28e3, 29.0)], (at + REACH + 1.0, 100.0))
    assert not found and "the larger size is ahead by" in missing[0].reason
    found, missing = find_crossings([curve(14e3, 22.3), curve(28e3, 29.0)], EVERYWHERE)
    assert not found and missing[0].reason == "the two curves share too little compute after their warm-ups"
    found, missing = find_crossings([curve(14e3, 29.0), curve(14e3, 29.0, shift=0.001)], EVERYWHERE)
    assert not found and "still ahead by 0.1%" in missing[0].reason


def test_warm_up_and_the_range_are_left_out() -> None:
    """A larger size that is ahead within its warm-up, or outside of the range, has not crossed there."""
    small, large = curve(14e3, 29.0), curve(28e3, 29.0)
    ahead = np.where(large.log_c < 24.0, large.log_loss - 1.0, large.log_loss)
    false_start = SizeCurve(large.size, large.n_params, large.flops_per_token, 1.0, 1, large.log_c, ahead)
    at = true_crossing(14e3, 28e3)
    assert find_crossings([small, false_start], (24.1, 100.0))[0][0].at == pytest.approx(at, abs=2e-3)
    warm = math.exp(24.1) / large.flops_per_token
    late = SizeCurve(large.size, large.n_params, large.flops_per_token, warm, 1, large.log_c, ahead)
    assert find_crossings([small, late], EVERYWHERE)[0][0].at == pytest.approx(at, abs=2e-3)
