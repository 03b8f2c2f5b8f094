"""Ticks that a reader can read, on wide and on narrow logarithmic axes."""

import pytest

from analysis.figures.axes import log_axis, ticks


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.25, 1.75, ["1.3", "1.4", "1.5", "1.6", "1.7"]),
        (1.301, 1.342, ["1.31", "1.32", "1.33", "1.34"]),
        (1, 6, ["1", "1.2", "1.5", "2", "2.5", "3", "4", "5", "6"]),
        (3, 800, ["10", "100"]),
    ],
)
def test_ticks_are_round_numbers(low, high, text):
    assert log_axis(low, high, "")["ticktext"] == text


def test_a_narrow_axis_has_three_ticks_or_more():
    for low in (0.98, 1.2, 4.1e5):
        for times in (1.01, 1.1, 1.3, 1.6, 2.5):
            assert 3 <= len(ticks(low, low * times)) <= 10, (low, times)
