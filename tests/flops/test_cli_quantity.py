"""Numbers as people write them."""

import pytest

from arch.errors import InputError
from flops.quantity import MOST_FLOP, PF_DAY, compute, flop, quantity, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.3B", 1_300_000_000),
        ("410M", 410_000_000),
        ("410m", 410_000_000),
        ("1e22", 10**22),
        ("70_000", 70_000),
        ("300 B", 300_000_000_000),
        ("0.5k", 500),
        ("1.", 1),
        (".5e3", 500),
        ("2T", 2 * 10**12),
    ],
)
def test_numbers(text, value):
    assert whole(text, "x", 1e30) == value  # exactly
    assert quantity(text, "x", 1e30) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "is zero"),
        ("0.0e5", "is zero"),
        ("1e-999", "is zero"),
        ("-3", "is negative"),
        ("-.5", "is negative"),
        ("-inf", "is negative"),
        ("nan", "is not finite"),
        ("Infinity", "is not finite"),
        ("1e60", "is too large"),
        ("1e999999999999999999999", "is too large"),
        ("9" * 400, "is too large"),
        ("1,300", "a comma, which could be a point"),
        ("1.3X", "ends in 'x': the suffixes are k, M, B or T"),
        ("1.3MB", "ends in 'mb'"),
        ("", "is not a number"),
        ("--", "is not a number"),
        ("0x10", "ends in 'x'|is not a number"),
        ("1__0", "is not a number"),
        ("_1", "is not a number"),
        ("1e", "ends in 'e'"),
        ("B", "is not a number"),
        ("1 2", "is not a number"),
    ],
)
def test_what_is_no_number(text, message):
    for read in (whole, quantity):
        with pytest.raises(InputError, match=f"^--n: .*{message}") as error:
            read(text, "--n", 1e36)
        assert "\n" not in str(error.value)


def test_a_part_of_one_is_no_whole_number():
    assert quantity("0.4", "x", 1) == 0.4
    with pytest.raises(InputError, match="not a whole number"):
        whole("1.3", "x", 10)


def test_flop():
    assert flop("2.5G", "x") == flop("2.5 GFLOP", "x") == flop("2.5B", "x") == 2.5e9
    assert flop("15 ZFLOPs", "x") == 15e21 and flop("3YFLOP", "x") == 3e24 and flop("2 EFLOP", "x") == 2e18
    for text, message in (("1E", "write 1e18 or 1 EFLOP"), ("3 days", "unknown unit 'days'"), ("1e37", "too large")):
        with pytest.raises(InputError, match=message):
            flop(text, "x")


def test_a_budget_has_a_unit_or_can_only_be_flop():
    assert compute("1e30", None, "C") == compute("1e30", "flop", "C") == compute("1e30 FLOP", None, "C") == 1e30
    assert compute("179pfday", None, "C") == compute("179", "pfday", "C") == compute("179 PF-days", "pfday", "C")
    assert compute("179", "pfday", "C") == 179 * PF_DAY == pytest.approx(1.5466e22, rel=1e-4)
    assert compute("5", "flop", "C") == 5
    for text, unit, message in (
        ("179", None, "'179' FLOP or PF-days?"),
        ("179", "pfd", "did you mean 'pfday'"),
        ("179 pfdays", "flop", "leave one out"),
        ("1e22 FLOP", "pfday", "leave one out"),
        (f"{MOST_FLOP}", "pfday", "too large"),
        ("0", "pfday", "is zero"),
        ("179 pfdayz", None, "write FLOP, PFLOP, ZFLOP, PF-days or none"),
    ):
        with pytest.raises(InputError, match=message):
            compute(text, unit, "C")
