"""Formats sizes, tokens and FLOP for all commands, messages and pages: 12.3M parameters, 3.4B tokens, 1.2e19 FLOP."""

from __future__ import annotations

import math
from collections.abc import Sequence

COUNTS = "kMBT"  # thousand, million, billion (1e9), trillion


def count(value: float, digits: int = 3, suffixes: str = COUNTS, zeros: bool = False) -> str:
    """A number of parameters or tokens, to `digits` significant digits: 5968 -> 5.97k, 1.23e7 -> 12.3M; 3.4e16 ->
    3.4e16.

    zeros: 45.60B in place of 45.6B.
    """
    if not math.isfinite(value):
        return f"{value:g}"
    size = abs(float(f"{value:.{digits - 1}e}"))  # rounded first: 999,999 is 1M, not 1000k
    if size < 1e3:
        return f"{value:.{digits}g}"
    place = min(int(math.log10(size) + 1e-9) // 3, len(suffixes))
    scaled = value / 1e3**place
    if size >= 1e3 ** (len(suffixes) + 1):
        return flop(value, digits)
    form = f"{scaled:#.{digits}g}" if zeros else f"{scaled:.{digits}g}"
    return form.rstrip(".") + suffixes[place - 1]


def flop(value: float, digits: int = 3) -> str:
    """An amount of compute, or another quantity over many orders: 2.94e+20 -> 2.94e20; 0.25 and 512 as they are."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e4:
        return f"{float(f'{value:.{digits}g}'):g}" if abs(value) < 1e3 else f"{value:.0f}"  # 120, not 1.2e+02
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def byte_size(value: float) -> str:
    """A size of files or memory, by powers of 1000: 2.5 MB."""
    number = count(value, 3, "kMGTPE")
    return f"{number[:-1]} {number[-1]}B" if number[-1].isalpha() else f"{number} B"


def first_few(names: Sequence[object], most: int = 1) -> str:
    """The first of them, by commas, and how many more there are: a, b and 3 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 run, 2 runs, 1,024 points. plural: where it is not the noun and an s, as "runs are" of "run is"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def counted_of(number: int, whole: int, noun: str, verb: str = "", verbs: str = "") -> str:
    """1 of 4 runs, 1 of 1 run; with verbs 1 of 4 runs is, 2 of 4 runs are."""
    return f"{number:,} of {counted(whole, noun)}" + (f" {verb if 1 in (number, whole) else verbs}" if verb else "")
