"""Numbers as text: suffixes at every scale, rounding up to the next one, numbers beyond the suffixes."""

import math

import pytest

from arch.amounts import byte_size, count, counted, counted_of, flop


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((5968, "5.97k"), (1.23456e7, "12.3M"), (3.4e9, "3.4B"), (6.537e11, "654B"), (2e13, "20T"), (512, "512")),
        *((999.6, "1k"), (999_600, "1M"), (999_400, "999k"), (9.996e14, "1e15"), (1.2e16, "1.2e16"), (0, "0")),
        *((0.25, "0.25"), (-2500, "-2.5k"), (1000, "1k"), (1e6, "1M"), (1e9, "1B"), (1e12, "1T"), (math.inf, "inf")),
    ],
)
def test_counts(value, text):
    assert count(value) == text


def test_digits_and_suffixes():
    assert count(4.56e10, 4, zeros=True) == "45.60B" and count(4.56e10, 4) == "45.6B"
    assert count(1.5e13, 4, "kMGTPEZ", zeros=True) == "15.00T" and count(1e13, 3, "k") == "1e13"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((2.94e20, "2.94e20"), (1e18, "1e18"), (1.2956e22, "1.3e22"), (9.999e21, "1e22"), (512.4, "512")),
        *((4321, "4321"), (0.25, "0.25"), (1.5e-7, "1.5e-7"), (0, "0")),
    ],
)
def test_flop(value, text):
    assert flop(value) == text


def test_byte_sizes():
    assert [byte_size(v) for v in (0, 999, 1234, 2.5e6, 3e11)] == ["0 B", "999 B", "1.23 kB", "2.5 MB", "300 GB"]


def test_one_has_no_plural():
    assert [counted(n, "run") for n in (0, 1, 2, 1024)] == ["0 runs", "1 run", "2 runs", "1,024 runs"]
    assert [counted(n, "process", "processes") for n in (1, 2)] == ["1 process", "2 processes"]
    assert [counted_of(n, 4, "run", "is", "are") for n in (0, 1, 2)] == [
        "0 of 4 runs are",
        "1 of 4 runs is",
        "2 of 4 runs are",
    ]
    assert counted_of(1, 1, "run") == "1 of 1 run" and counted_of(0, 1, "run", "is", "are") == "0 of 1 run is"
