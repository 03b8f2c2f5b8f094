"""Logarithmic axes a reader can read: ticks at round numbers, k, M, B for counts, powers of ten for FLOP."""

from __future__ import annotations

import math
from typing import Any

from arch.amounts import count

FINE, COARSE, POWERS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0), (1.0, 2.0, 5.0), (1.0,)
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def ticks(low: float, high: float) -> list[float]:
    """Round numbers inside [low, high]: every power of ten, or 1-2-5, or finer, so that a few fit; even steps where
    fewer than three of these do."""
    decades = math.log10(high / low)
    steps = FINE if decades < 0.8 else COARSE if decades < 2.2 else POWERS
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [step * 10.0**exponent for exponent in exponents for step in steps]
    inside = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    return inside if len(inside) >= 3 or decades >= 0.8 else _even(low, high)


def _even(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, three to seven of them."""
    unit = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = max(times * unit for times in COARSE if times * unit <= (high - low) / 3)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def kibi(count: int) -> str:
    """A length in tokens, mostly a power of two, as text: 512, 1k for 1024, 64k."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else f"{count:,}"


def power_of_ten(value: float) -> str:
    """A number as text with three significant digits: 1e12 as 10¹², 2e12 as 2·10¹²."""
    exponent = math.floor(math.log10(value) + 1e-9)
    mantissa = value / 10.0**exponent
    if float(f"{mantissa:.3g}") >= 10:  # 9.999e10 is written as 1e11
        mantissa, exponent = mantissa / 10, exponent + 1
    power = f"10{str(exponent).translate(SUPERSCRIPT)}"
    return power if abs(mantissa - 1) < 5e-3 else f"{mantissa:.3g}·{power}"


def minus(value: float) -> str:
    """A number as text with three decimals and a real minus sign."""
    return f"{value:.3f}".replace("-", "−")


def log_axis(low: float, high: float, title: str, kind: str = "plain") -> dict[str, Any]:
    """A plotly axis over [low, high]; kind is plain, count or flop."""
    write = {"plain": lambda v: f"{v:.3g}", "count": lambda v: count(v, 4), "flop": power_of_ten}[kind]
    values = ticks(low, high)
    if kind == "flop" and math.log10(high / low) >= 0.8:
        tens = [value for value in values if abs(math.log10(value) - round(math.log10(value))) < 1e-9]
        values = tens if len(tens) > 1 else values
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": values,
        "ticktext": [write(value) for value in values],
        "title": {"text": title, "standoff": 6},
    }
