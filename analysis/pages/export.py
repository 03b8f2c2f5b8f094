"""Tables of a page as files: CSV at full precision beside it, LaTeX as it shows them for a paper."""

from __future__ import annotations

import csv
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.pages.cells import Number
from analysis.pages.html import INTERVAL, shaped, shaped_texts
from data.files import write_bytes

Rows = Sequence[Mapping[str, str]]
Value = str | float | None
POWER = re.compile(r"(?:([\d.]+)·)?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
IN_LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}", "\u00a0": "~"}
    | {"<": "$<$", ">": "$>$", "−": "$-$", "·": r"$\cdot$", "±": r"$\pm$", "≤": r"$\leq$", "×": r"$\times$", "–": "--"}
)
LATEX_HEAD, LATEX_CELL = 14, 26  # letters of a line in them
MATHS = re.compile(r"(?P<raised>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)|\b(?P<letter>[ND])\\_opt\b|(?<!\w)-(?=\d)")
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


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
    """The table as a page shows it, with columns of numbers on the right and long texts in several lines."""
    heads, cells = shaped_texts(rows)
    sides = ["r" if is_number else "l" for _, is_number in shaped(rows).heads]
    named = [
        _latex_lines(head, LATEX_HEAD, f"[b]{{@{{}}{side}@{{}}}}") for head, side in zip(heads, sides, strict=True)
    ]
    below = [[_latex_lines(cell, LATEX_CELL, "[t]{@{}l@{}}") for cell in row] for row in cells]
    head, *body = (" & ".join(row) + r" \\" for row in [named, *below])
    begin = f"\\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def _latex_lines(text: str, letters: int, form: str) -> str:
    """One line, or a tabular of `form` with several; an interval is not broken."""
    wrap = textwrap.TextWrapper(letters, break_long_words=False, break_on_hyphens=False)
    lines = wrap.wrap(INTERVAL.sub("[\\1,\u00a0\\2]", text))
    text = MATHS.sub(_latex_maths, r" \\ ".join(line.translate(IN_LATEX) for line in lines))
    return text if len(lines) < 2 else rf"\begin{{tabular}}{form}{text}\end{{tabular}}"


def _latex_maths(part: re.Match[str]) -> str:
    raised, letter = part["raised"], part["letter"]
    return f"$^{{{raised.translate(RAISED)}}}$" if raised else rf"${letter}_\mathrm{{opt}}$" if letter else "$-$"


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
        head: [None if number is None or math.isnan(number.value) else number.value for number in numbers],
        f"{head} low": [number.ends[0] if number is not None and number.ends else None for number in numbers],
        f"{head} high": [number.ends[1] if number is not None and number.ends else None for number in numbers],
        f"{head} note": [(cell.note if isinstance(cell, Number) else str(cell).strip("-")) or None for cell in cells],
    }
    return {name: values for name, values in parts.items() if any(value is not None for value in values)}


def _plain_power(power: re.Match[str]) -> str:
    """8.95·10¹² as 8.95e12."""
    return f"{power[1] or 1}e{power[2].translate(RAISED)}"
