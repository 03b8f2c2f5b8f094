"""Smoothing: centred, unbiased on lines, ends dropped; reading a curve only where it is."""

import numpy as np
import pytest

from analysis.fits.smooth import average_seeds, read_at, smooth


def test_window_lies_inside_the_run() -> None:
    """Windows of 11 steps: the first is 10 .. 110, the last 900 .. 1000, each told at its geometric mean."""
    tokens = np.arange(1, 101) * 10
    at, loss = smooth(tokens, np.ones(100), 100)
    assert len(at) == 90 and (loss == 1).all()
    assert at[0] == pytest.approx(np.exp(np.log(tokens[:11]).mean()))
    assert at[-1] == pytest.approx(np.exp(np.log(tokens[-11:]).mean()))


def test_mean_is_over_the_window() -> None:
    loss = np.zeros(100)
    loss[50] = 1.0
    _, smoothed = smooth(np.arange(1, 101) * 10, loss, 100)
    near = np.abs(np.arange(6, 96) - 51) <= 5  # middle steps whose window holds step 51
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
        np.testing.assert_allclose(loss[far] * at[far] ** power, 1 + power**2 * 0.3**2 / 24, rtol=1e-4)
        assert at[-1] == pytest.approx(tokens[-1] / 1.15, rel=1e-2)


def test_a_wide_window_does_not_move_a_curve_that_is_straight_in_log_tokens() -> None:
    """At 60 k tokens a window of 50 k spans most of the run so far."""
    tokens = np.arange(1, 201) * 1024.0
    at, loss = smooth(tokens, 9 - 0.5 * np.log(tokens), 50_000)
    np.testing.assert_allclose(loss, 9 - 0.5 * np.log(at), rtol=1e-12)


def test_seeds_are_averaged_where_all_are() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0])
    at, mean = average_seeds([(x, x), (x[1:], 3 * x[1:]), (x[:3], 2 * x[:3])])
    assert at.tolist() == [1.0, 2.0] and mean.tolist() == [2.0, 4.0]
