"""Sizes that have stopped learning are left out, and others are not."""

import numpy as np
import pytest

from analysis.design.choose import draw, outcome
from analysis.design.proposal import laid, naive
from analysis.design.worlds import Noise, World
from analysis.fits.cost import six_nd
from analysis.fits.parametric.stopped import LEAST_LEFT, MOST, without_stopped

SIX, TARGET = six_nd(), 5e15
FITTED = World("fitted", 0.8, 0.36, 0.34, 0.2, 0.2, 0.0)
STOPS = World("saturating", 0.8, 0.36, 0.34, 0.2, 0.2, 0.1)


def studies(world: World, number: int, seeds: int = 3, noise: float = 0.005):
    layout = laid(3e5, 6, 32.0, 20.0, 1.0, 0.0, (seeds, 99), 1e9, curves=True).layout()
    rng = np.random.default_rng(0)
    return [draw(layout, world, Noise(noise), SIX, rng) for _ in range(number)]


def test_a_size_that_stops_learning_goes_and_the_exponent_is_right_without_it():
    for points in studies(STOPS, 3):
        kept, gone = without_stopped(points)
        assert 1 <= len(gone) <= MOST and all(one.above > 0.005 and one.p < 0.01 for one in gone)
        assert [one.size for one in gone] == ["0", "1"][: len(gone)] and not set(kept.size) & {one.size for one in gone}
        plain = outcome(points, STOPS, SIX, TARGET)
        fewer = outcome(points, STOPS, SIX, TARGET, leave_out_stopped=True)
        assert abs(fewer.off_a) < 0.05 < abs(plain.off_a)


def test_sizes_on_the_surface_stay_at_the_level_of_the_test():
    gone = [len(without_stopped(points)[1]) for points in studies(FITTED, 60)]
    assert np.mean(gone) <= 0.05
    one_seed = [len(without_stopped(points)[1]) for points in studies(FITTED, 60, seeds=1)]
    assert np.mean(one_seed) <= 0.05


@pytest.mark.parametrize("cut", ["few sizes", "branches"])
def test_few_sizes_stay_and_branches_are_judged_too(cut):
    if cut == "few sizes":
        points = studies(STOPS, 1)[0]
        few = points.take(points.n_params >= np.unique(points.n_params)[-LEAST_LEFT])
        assert without_stopped(few) == (few, [])
        return
    layout = laid(2e5, 6, 32.0, 14.0, 8.0, 1.0, (3, 99), 1e9).layout()
    points = draw(layout, STOPS, Noise(0.003), SIX, np.random.default_rng(1))
    assert [one.size for one in without_stopped(points)[1]][:1] == ["0"]
    assert not naive(2e7).leaves_out and laid(2e5, 6, 32.0, 14.0, 8.0, 1.0, (3, 99), 1e9).leaves_out
