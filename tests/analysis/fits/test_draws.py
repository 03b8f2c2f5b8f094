"""Percentiles of draws: one rule, and when there are too few."""

import numpy as np
import pytest
from scipy import stats

from analysis.fits.draws import interval, percentiles, student_scale


def test_of_nine_draws_the_second_and_the_eighth_are_the_ends_of_sixty_percent() -> None:
    draws = np.random.default_rng(0).permutation(np.arange(1.0, 10.0))
    assert interval(draws, 0.6) == (2.0, 8.0)
    table = percentiles(np.stack([draws, np.full(9, np.nan)], 1), 0.6)
    assert table[:, 0].tolist() == [2.0, 8.0] and np.isnan(table[:, 1]).all()


def test_an_interval_needs_its_share_of_the_draws() -> None:
    assert interval(np.array([1.0, 2.0, np.nan]), 0.5) == (1.0, 2.0)
    assert interval(np.array([1.0, np.inf, np.nan]), 0.5) is None
    assert interval(np.array([1.0, 2.0, np.nan]), 0.5, least=0.99) is None


def test_normal_draws_times_the_scale_are_students() -> None:
    rng = np.random.default_rng(0)
    draws = rng.standard_normal(50_000) * student_scale(rng, 4, 50_000)
    assert interval(draws, 0.9) == pytest.approx(stats.t.interval(0.9, 4), rel=0.03)
