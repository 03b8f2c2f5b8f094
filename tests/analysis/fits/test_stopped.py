"""Sizes that have stopped learning leave the points, and others hardly ever."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.design.choose import draw, outcome
from analysis.design.proposal import laid
from analysis.design.worlds import Noise, World
from analysis.fits.cost import six_nd
from analysis.fits.stopped import LEAST_LEFT, MOST_STOPPED, without_stopped

SIX, TARGET = six_nd(), 5e15
FITTED, STOPS = (
    World(name, 0.8, 0.36, 0.34, 0.2, 0.2, floor) for name, floor in (("fitted", 0.0), ("saturating", 0.1))
)


def studies(world, number, seeds=3, noise=0.005):
    layout = laid(3e5, 6, 32.0, 20.0, 0.0, (seeds, 99), 1e9).layout()
    rng = np.random.default_rng(0)
    return [draw(layout, world, Noise(noise), SIX, rng) for _ in range(number)]


def test_a_size_that_stops_learning_goes_and_the_exponent_is_right_without_it():
    for points in studies(STOPS, 3):
        kept, gone = without_stopped(points)
        assert 1 <= len(gone) <= MOST_STOPPED and all(size.above > 0.005 and size.p < 0.01 for size in gone)
        assert [size.size for size in gone] == ["0", "1"][: len(gone)]
        assert not set(kept.size) & {size.size for size in gone}
        off, without = (outcome(points, STOPS, SIX, TARGET, leave_out_stopped=rule).off_a for rule in (False, True))
        assert abs(without) < 0.05 < abs(off)
    few = points.take(points.n_params >= np.unique(points.n_params)[-LEAST_LEFT])
    assert without_stopped(few) == (few, [])


@pytest.mark.parametrize("seeds", [3, 1])
def test_sizes_on_the_surface_stay_at_the_level_of_the_test(seeds):
    assert np.mean([len(without_stopped(points)[1]) for points in studies(FITTED, 60, seeds)]) <= 0.05


def test_sizes_of_branches_are_judged_too():
    (points,) = studies(STOPS, 1)
    runs = np.arange(len(points)).astype(str).astype(object)
    branches = replace(points, run=runs, trunk=points.run)
    assert [size.size for size in without_stopped(branches)[1]][:1] == ["0"]
