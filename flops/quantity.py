"""Numbers as people write them: 1.3B, 410M, 1e22, 70_000, 179 PF-days. Each is read exactly or refused in one line."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from arch.errors import InputError, choice

PF_DAY = 8.64e19  # FLOP: 1e15 a second for a day
SCALES = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
PREFIXES = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12, "p": 15, "e": 18, "z": 21, "y": 24}
DAYS = ("pf-day", "pf-days", "pfday", "pfdays", "pflop-day", "pflop-days")
UNITS = ("flop", "pfday")
MOST_FLOP, MOST_PARAMS, MOST_TOKENS, MOST_CONTEXT, MOST_GPUS = (
    1e36,
    1e15,
    1e20,
    1e10,
    1e7,
)  # beyond these a number is a mistake
# A bare number below this is no training budget in FLOP, and above it none in PF-days (8.64e28 FLOP).
LEAST_FLOP = 1e9

_NUMBER = re.compile(r"(\d(?:_?\d)*(?:\.\d*)?|\.\d+)(e[+-]?\d+)?\s*([a-z-]*)", re.IGNORECASE)


def quantity(text: str, what: str, most: float) -> float:
    """A positive number up to `most`, with or without a suffix k, M, B (or G), T. Raises InputError."""
    return float(_scaled(text, what, SCALES, "k, M, B or T", most))


def whole(text: str, what: str, most: float) -> int:
    """The same, a whole number; exact. Raises InputError."""
    value = _scaled(text, what, SCALES, "k, M, B or T", most)
    if value != value.to_integral_value():
        raise InputError(f"{what}: {text!r} is not a whole number")
    return int(value)


def context_length(text: str) -> int:
    """--context: a whole number, written out. Raises InputError for a suffix: 8k could be 8000 or 8192."""
    length = whole(text, "--context", MOST_CONTEXT)
    if not text.strip()[-1].isdigit():
        raise InputError(f"--context: {text!r} could be a multiple of 1000 or of 1024: write it out, as 8192")
    return length


def flop(text: str, what: str, most: float = MOST_FLOP, more: str = "") -> float:
    """FLOP, with or without a suffix k, M, G, T, P, Z, Y and "FLOP". Raises InputError, which names `more` units."""
    number, suffix = _split(text, what)
    prefix = suffix.removesuffix("s").removesuffix("flop")
    if prefix == "e" and prefix == suffix:
        raise InputError(f"{what}: {text!r} ends in an exponent without digits: write 1e18 or 1 EFLOP")
    if prefix == "b":
        prefix = "g"
    if prefix not in PREFIXES:
        raise InputError(f"{what}: {text!r} has an unknown unit {suffix!r}: write FLOP, PFLOP, ZFLOP{more} or none")
    return float(_bounded(number, PREFIXES[prefix], text, what, most))


def compute(text: str, unit: str | None, what: str) -> float:
    """A training budget in FLOP. The unit is in the text (1e22 FLOP, 179 PF-days) or in `unit`, "flop" or "pfday"; a
    bare number from 1e9 on can only be FLOP. Raises InputError for a smaller one: it could be either."""
    if unit is not None and unit not in UNITS:
        raise InputError(f"--unit: unknown unit {unit!r}{choice(unit, list(UNITS))}")
    number, suffix = _split(text, what)
    if suffix in DAYS:
        if unit == "flop":
            raise InputError(f"{what}: {text!r} is in PF-days, --unit says flop: leave one out")
        return float(_bounded(number, 0, text, what, MOST_FLOP / PF_DAY)) * PF_DAY
    named = suffix.removesuffix("s").endswith("flop")
    if named and unit == "pfday":
        raise InputError(f"{what}: {text!r} is in FLOP, --unit says pfday: leave one out")
    if unit == "pfday":
        return quantity(text, what, MOST_FLOP / PF_DAY) * PF_DAY
    value = flop(text, what, more=", PF-days")
    if not named and unit is None and value < LEAST_FLOP:
        raise InputError(f"{what}: {text!r} FLOP or PF-days? Give --unit flop or --unit pfday")
    return value


def _split(text: str, what: str) -> tuple[str, str]:
    """(number, suffix in small letters)."""
    plain = text.strip()
    if re.match(r"[+]?(nan|inf)", plain, re.IGNORECASE):
        raise InputError(f"{what}: {text!r} is not finite")
    if re.match(r"-\s*(\d|\.\d|inf)", plain, re.IGNORECASE):
        raise InputError(f"{what}: {text!r} is negative: give a positive number")
    if "," in plain:
        raise InputError(f"{what}: {text!r} has a comma, which could be a point: write 1.3B or 70_000")
    match = _NUMBER.fullmatch(plain)
    if match is None:
        raise InputError(f"{what}: {text!r} is not a number: write it as 1.3B, 410M, 1e22 or 70_000")
    return match[1] + (match[2] or ""), match[3].lower()


def _scaled(text: str, what: str, scales: dict[str, int], valid: str, most: float) -> Decimal:
    number, suffix = _split(text, what)
    if suffix not in scales:
        raise InputError(f"{what}: {text!r} ends in {suffix!r}: the suffixes are {valid}")
    return _bounded(number, scales[suffix], text, what, most)


def _bounded(number: str, exponent: int, text: str, what: str, most: float) -> Decimal:
    rough = float(number.replace("_", ""))
    if rough == 0:
        raise InputError(f"{what}: {text!r} is zero: give a positive number")
    if not math.isfinite(rough) or rough * 10.0**exponent > most:
        raise InputError(f"{what}: {text!r} is too large: more than {most:.3g}")
    return Decimal(number.replace("_", "")).scaleb(exponent)
