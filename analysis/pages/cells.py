"""Cells of tables that carry their numbers: rounded in the text that is shown, in full in what is exported."""

from __future__ import annotations

import math
from collections.abc import Sequence


class Number(str):
    """The text of a cell, and what it was rounded from: its value, the ends of its interval where there is one, and the
    words beside them."""

    value: float
    ends: tuple[float, float] | None
    note: str


def number(text: str, value: float, ends: Sequence[float | None] | None = None, note: str = "") -> Number:
    """`text` as a cell of `value`; an end that is None or NaN makes no interval."""
    cell = Number(text)
    cell.value, cell.note, cell.ends = float(value), note, None
    known = [float(end) for end in ends or () if end is not None and not math.isnan(end)]
    if len(known) == 2:
        cell.ends = (known[0], known[1])
    return cell


def shown(value: float | None, form: str, ends: Sequence[float | None] | None = None, note: str = "") -> str:
    """A number in `form` with its interval [low, high] and a note behind them; "" for None and NaN."""
    if value is None or math.isnan(value):
        return ""
    interval_ends = number("", value, ends).ends
    interval = f" [{interval_ends[0]:{form}}, {interval_ends[1]:{form}}]" if interval_ends else ""
    return number(f"{value:{form}}{interval}{f' ({note})' if note else ''}", value, ends, note)


def signed(value: float | None, form: str, ends: Sequence[float | None] | None = None) -> str:
    """As `shown`, but with a plus sign or a real minus sign."""
    text = shown(value, f"+{form}", ends).replace("-", "\N{MINUS SIGN}")
    return text if value is None or not text else number(text, value, ends)
