"""Cells of a table as numbers and as text, and conditions on them. Nothing is guessed: what could be read in two ways
is refused with its rows."""

from __future__ import annotations

import csv
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.points import rows_text
from arch.errors import InputError, nearest

EMPTY = ("", "-", "na", "n/a", "nan", "null", "none", "<na>")  # what tables write where there is no value
GROUPED = re.compile(r"[1-9]\d{0,2}([, ])\d{3}(\1\d{3})*(\.\d*)?")  # 7,000,000,000 or 7 000 000 000
ONE_COMMA = re.compile(r"\d+,\d+")  # 7,000: thousands, or a decimal comma
ONE_POINT = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")  # 7.000 parameters: thousands, or a number in another unit
SHORT = re.compile(r"(\d+\.?\d*)\s*([kmbt])", re.IGNORECASE)  # 7B, 410 M
POWERS = {"k": 3, "m": 6, "b": 9, "t": 12}
COUNTS = ("n_params", "n_tokens", "unique_tokens", "flops")  # that are written in thousands
ORDER: dict[str, Callable[[Any, float], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = ("==", "!=", "<=", ">=", "=", "<", ">")


def text_of(cell: Any) -> str:
    """As it stands, without blanks around it and in Unicode's usual form; "" for an empty one."""
    if isinstance(cell, str) and cell.isascii():
        return cell.strip()
    if cell is None or cell is pd.NA or (isinstance(cell, (float, np.floating)) and math.isnan(cell)):
        return ""
    return unicodedata.normalize("NFKC", str(cell)).strip()


def is_empty(cell: Any) -> bool:
    return text_of(cell).lower() in EMPTY


def number_of(cell: Any) -> float | None:
    """The number in a cell; None where it is none."""
    if isinstance(cell, (bool, np.bool_)):
        return None
    try:
        return float(cell if isinstance(cell, (int, float, np.integer, np.floating)) else text_of(cell))
    except ValueError:
        return None
    except OverflowError:  # JSON's whole numbers have no largest one
        return math.inf if cell > 0 else -math.inf


def plain_counts(cells: pd.Series, field: str) -> pd.Series:
    """A column of counts without suffixes, 7B as 7e9; and, where one cell, as 7,000,000 or 7 000, says that its commas
    or blanks part thousands, without those of all such cells; another one as it stands. Raises InputError for small
    numbers beside suffixes: they could be in the suffix's unit."""
    texts = {cell: text_of(cell) for cell in cells if isinstance(cell, str)}
    short = {
        cell: f"{match[1]}e{POWERS[match[2].lower()]}"
        for cell, text in texts.items()
        if (match := SHORT.fullmatch(text))
    }
    if short:
        bare = np.array([(value := number_of(cell)) is not None and 0 < value < 1e3 for cell in cells])
        if bare.any():
            few, some = text_of(cells[bare].iloc[0]), next(iter(short))
            raise InputError(
                f"{field}: {few!r} beside {some!r} could be in its unit: write it out in {rows_text(cells.index[bare])}"
            )
    grouped = {cell: text for cell, text in texts.items() if GROUPED.fullmatch(text)}
    if not all(ONE_COMMA.fullmatch(text) for text in grouped.values()):
        short |= {cell: text.replace(",", "").replace(" ", "") for cell, text in grouped.items()}
    return cells.astype(object).replace(short) if short else cells


def numbers(cells: pd.Series, field: str) -> np.ndarray:
    """A column as float64 [n], also one of int64. Raises InputError with the rows that are empty, no numbers, or could
    be two."""
    column = f" (column {cells.name!r})" if cells.name != field else ""
    is_typed = cells.dtype.kind in "iuf"
    if field in COUNTS and not is_typed:
        texts = [text_of(cell) if isinstance(cell, str) else "" for cell in cells]
        pointed = [bool(ONE_POINT.fullmatch(text)) for text in texts]
        if any(pointed) and sum("." in text for text in texts) == sum(pointed):  # no other says what a point is
            first = texts[pointed.index(True)]
            raise InputError(
                f"{field}{column}: could be thousands or a fraction, as {first!r}: write it without the point, or as "
                f"{first}e9, in {rows_text(cells.index[pointed])}"
            )
    with suppress(ValueError):  # all cells at once, where each is a finite number in the usual form
        plain = cells.to_numpy(np.float64, na_value=np.nan) if is_typed else np.array(cells.to_list(), dtype=str)
        if np.isfinite(plain := plain.astype(np.float64)).all():
            return plain
    values = [number_of(cell) for cell in cells]
    empty = np.array([is_empty(cell) for cell in cells])
    comma = np.array([bool(ONE_COMMA.fullmatch(text_of(cell))) for cell in cells])
    for bad, why in (
        (empty, f'is empty or NaN (--where "{cells.name}!=" leaves such rows out)'),
        (comma, "has a comma that could be a decimal point or part thousands, as {!r}: write 0.125 or 125000,"),
        (np.array([value is None for value in values]), "is no number, as {!r}: write 7e9 or 7000000000,"),
    ):
        if bad.any():
            rows = cells[bad]
            raise InputError(f"{field}{column}: {why.format(text_of(rows.iloc[0]))} in {rows_text(rows.index)}")
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True)
class Condition:
    """`column operator value`, several values parted by | for = and !=; `text` is how it was written."""

    column: str
    operator: str
    values: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, text: str, names: Collection[str]) -> Condition:
        """`text` as a condition on one of the columns or fields `names`. Raises InputError for another name, and where
        it is none."""
        places = [(at, op) for at in range(len(text)) for op in OPERATORS if text.startswith(op, at)]
        for at, op in places:  # a column's own name may hold an operator
            column, value = _unquoted(text[:at]), text[at + len(op) :]
            if column in names:
                split = next(csv.reader([value.strip()], delimiter="|"), []) or [""]  # "a|b" is one value
                values = (value,) if op in ORDER else split
                return cls(column, "==" if op == "=" else op, tuple(map(_unquoted, values)), text)
        if not places:
            raise InputError(f"--where {text!r}: is no condition: write it as \"loss<5\" or 'size!=10m'")
        column = _unquoted(text[: places[0][0]])
        raise InputError(f"--where {text!r}: there is no column {column!r}{nearest(column, list(names))}")

    def holds(self, cells: pd.Series) -> np.ndarray:
        """[n] bool. A number is compared as one, everything else as text; an empty cell is neither less nor greater.
        Raises InputError with the rows where an order is asked of what is no number."""
        codes, different = pd.factorize(cells, use_na_sentinel=False)
        if self.operator not in ORDER:
            equal = np.array([self._is_among(cell) for cell in different], dtype=bool)[codes]
            return ~equal if self.operator == "!=" else equal
        bound = number_of(self.values[0])
        if bound is None or math.isnan(bound):
            raise InputError(f"--where {self.text!r}: {self.operator} needs one number on its right")
        values = [math.nan if is_empty(cell) else number_of(cell) for cell in different]
        wrong = np.array([value is None for value in values], dtype=bool)[codes]
        if wrong.any():
            raise InputError(f"--where {self.text!r}: {self.column} is no number in {rows_text(cells.index[wrong])}")
        return np.asarray(ORDER[self.operator](np.array(values, dtype=float)[codes], bound), dtype=bool)

    def _is_among(self, cell: Any) -> bool:
        if is_empty(cell):
            return any(not text_of(value) for value in self.values)
        number, text = number_of(cell), text_of(cell)
        return any(
            text == text_of(value) or (number is not None and number == number_of(value)) for value in self.values
        )


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
