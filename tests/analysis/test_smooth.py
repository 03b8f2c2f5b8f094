"""Smoothing: centred, unbiased on lines, ends dropped; reading a curve only where it is."""

import numpy as np
import pytest

from analysis.fits.smooth import read_at, smooth


def test_a_line_is_left_as_it_is() -> None:
    tokens = np.arange(1, 101) * 10
    at, loss = smooth(tokens, 5 - 0.001 * tokens, 100)
    assert loss == pytest.approx(5 - 0.001 * at, rel=1e-12)


def test_window_lies_inside_the_run() -> None:
    tokens = np.arange(1, 101) * 10
    at, loss = smooth(tokens, np.ones(100), 100)
    assert at[0] - 50 == 10
    assert at[-1] + 50 == 1000
    assert (loss == 1).all()


def test_mean_is_over_the_window() -> None:
    loss = np.zeros(100)
    loss[50] = 1.0
    at, smoothed = smooth(np.arange(1, 101) * 10, loss, 100)
    near = np.abs(at - 510) <= 50
    assert smoothed[near] == pytest.approx(1 / 11)
    assert (smoothed[~near] == 0).all()


def test_shorter_than_the_window_is_empty() -> None:
    assert len(smooth(np.array([10, 20]), np.array([1.0, 1.0]), 100)[0]) == 0


def test_no_window_no_smoothing() -> None:
    assert smooth(np.array([10, 20]), np.array([1.0, 3.0]), 0)[1].tolist() == [1.0, 3.0]


def test_reads_inside_only() -> None:
    at = np.array([0.5, 1.0, 1.5, 2.0, 2.5])
    values = read_at(np.array([1.0, 2.0]), np.array([3.0, 1.0]), at)
    assert values.tolist() == [np.inf, 3.0, 2.0, 1.0, np.inf]


def test_growing_window_lifts_a_power_law_by_one_factor() -> None:
    tokens = np.arange(1, 20_001) * 100.0
    for power in (0.1, 0.5):
        at, loss = smooth(tokens, tokens**-power, 5_000, 0.3)
        far = at > 5_000 / 0.3
        np.testing.assert_allclose(loss[far] * at[far] ** power, 1 + power * (power + 1) * 0.3**2 / 24, rtol=2e-4)
        assert at[-1] == pytest.approx(tokens[-1] / 1.15, rel=1e-3)
