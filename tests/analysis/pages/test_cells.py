"""Cells of tables: the text that is shown, and the numbers that are exported."""

import math

import pytest

from analysis.pages.cells import Number, signed


@pytest.mark.parametrize(
    ("value", "ends", "text"),
    [
        (0.0123, None, "+1.2%"),
        (-0.0123, (-0.02, 0.001), "\N{MINUS SIGN}1.2% [\N{MINUS SIGN}2.0%, +0.1%]"),
        (-0.0123, (None, None), "\N{MINUS SIGN}1.2%"),
        (0.0, (), "+0.0%"),
    ],
)
def test_signed_numbers_keep_their_values(value, ends, text):
    cell = signed(value, ".1%", ends)
    assert cell == text and isinstance(cell, Number) and cell.value == value
    assert cell.ends == (ends if ends and None not in ends else None)


def test_nothing_has_no_sign():
    assert signed(None, ".1%") == signed(math.nan, ".1%") == ""
