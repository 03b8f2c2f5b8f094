"""Tables of a page as files: CSV at full precision beside it, LaTeX as it shows them for a paper."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.pages.cells import Number
from analysis.pages.html import shaped, shaped_texts
from arch.latex import RAISED, latex_table
from data.files import write_bytes

Rows = Sequence[Mapping[str, str]]
Value = str | float | None
POWER = re.compile(r"(?:([\d.]+)·)?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")


def write_tables(directory: Path, tables: Mapping[str, Rows]) -> None:
    """<directory>/<name>.csv of each."""
    directory.mkdir(parents=True)
    for name, rows in tables.items():
        by_name = columns(rows)
        with (directory / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(by_name)
            writer.writerows(zip(*by_name.values(), strict=True))


def write_latex(directory: Path, tables: Mapping[str, Rows]) -> None:
    """<directory>/<name>.tex of each: a tabular, for a paper that uses the package booktabs."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        write_bytes(directory / f"{name}.tex", latex(rows).encode(), kind="figures")


def latex(rows: Rows) -> str:
    """The table as a page shows it, with columns of numbers on the right."""
    heads, cells = shaped_texts(rows)
    left = [index for index, (_, is_number) in enumerate(shaped(rows).heads) if not is_number]
    return latex_table(heads, cells, left)


def columns(rows: Rows) -> dict[str, list[Value]]:
    """The columns by name. A column of numbers has its values at full precision, `NAME low` and `NAME high` where it
    has intervals, and `NAME note` for words; another column has its texts. None where a cell is empty."""
    heads, cells = shaped_texts(rows)
    by_name: dict[str, list[Value]] = {}
    for head, column in zip(heads, zip(*cells, strict=True), strict=True):
        by_name |= _column(POWER.sub(_plain_power, head), column)
    return by_name


def _column(head: str, cells: Sequence[str]) -> dict[str, list[Value]]:
    if not any(isinstance(cell, Number) for cell in cells):
        return {head: [str(cell) or None for cell in cells]}
    numbers = [cell if isinstance(cell, Number) else None for cell in cells]
    parts: dict[str, list[Value]] = {
        head: [None if number is None else number.value for number in numbers],
        f"{head} low": [number.ends[0] if number is not None and number.ends else None for number in numbers],
        f"{head} high": [number.ends[1] if number is not None and number.ends else None for number in numbers],
        f"{head} note": [(cell.note if isinstance(cell, Number) else str(cell).strip("-")) or None for cell in cells],
    }
    return {name: values for name, values in parts.items() if any(value is not None for value in values)}


def _plain_power(power: re.Match[str]) -> str:
    """8.95·10¹² as 8.95e12."""
    return f"{power[1] or 1}e{power[2].translate(RAISED)}"
