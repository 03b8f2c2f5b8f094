"""Tables of a page as files beside it: CSV and Parquet at full precision, and LaTeX (booktabs) as they are shown."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.pages.cells import Number
from analysis.pages.html import shaped_texts
from analysis.table_files import table_bytes

KINDS = {"csv": "CSV", "tex": "LaTeX", "parquet": "Parquet"}
Rows = Sequence[Mapping[str, str]]
Value = str | int | float | None
PLAIN = re.compile(r"[-+−]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")
POWER = re.compile(r"(?:([\d.]+)·)?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
SYMBOLS = {  # of LaTeX
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"−": "$-$", "–": "--", "±": r"$\pm$", "·": r"$\cdot$", "∞": r"$\infty$", "\u00a0": "~"},
}


def write_tables(directory: Path, tables: Mapping[str, Rows]) -> None:
    """<directory>/<name>.csv, .tex and .parquet of each."""
    import pandas as pd

    directory.mkdir(parents=True)
    for name, rows in tables.items():
        by_name = columns(rows)
        (directory / f"{name}.csv").write_text(to_csv(by_name), encoding="utf-8")
        (directory / f"{name}.tex").write_text(to_latex(rows), encoding="utf-8")
        (directory / f"{name}.parquet").write_bytes(table_bytes(pd.DataFrame(by_name)))


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
        texts = [cell for cell in cells if cell]
        as_numbers = all(PLAIN.fullmatch(text) for text in texts)
        return {head: [_parsed(cell) if as_numbers else str(cell) if cell else None for cell in cells]}
    numbers = [cell if isinstance(cell, Number) else None for cell in cells]
    parts: dict[str, list[Value]] = {
        head: [None if number is None or math.isnan(number.value) else number.value for number in numbers],
        f"{head} low": [number.ends[0] if number is not None and number.ends else None for number in numbers],
        f"{head} high": [number.ends[1] if number is not None and number.ends else None for number in numbers],
        f"{head} note": [(cell.note if isinstance(cell, Number) else str(cell).strip("-")) or None for cell in cells],
    }
    return {name: values for name, values in parts.items() if any(value is not None for value in values)}


def _parsed(text: str) -> Value:
    plain = text.replace(",", "").replace("−", "-")
    if not plain:
        return None
    return int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)


def _plain_power(power: re.Match[str]) -> str:
    """8.95·10¹² as 8.95e12."""
    return f"{power[1] or 1}e{power[2].translate(RAISED)}"


def to_csv(by_name: Mapping[str, Sequence[Value]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(by_name)
    writer.writerows(zip(*by_name.values(), strict=True))
    return buffer.getvalue()


def to_latex(rows: Rows) -> str:
    """A tabular; it needs the package booktabs alone."""
    heads, cells = shaped_texts(rows)
    right = [
        all(isinstance(cell, Number) or PLAIN.fullmatch(cell) or cell in ("", "-") for cell in column)
        for column in zip(*cells, strict=True)
    ]
    places = "".join("r" if is_right else "l" for is_right in right)
    lines = [" & ".join(latex(cell) for cell in row) + r" \\" for row in (heads, *cells)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            f"\\begin{{tabular}}{{{places}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def latex(text: str) -> str:
    """The text with LaTeX's special characters escaped, and powers of ten in LaTeX's form."""
    parts, last = [], 0
    for power in POWER.finditer(text):
        factor = f"{power[1]} \\cdot " if power[1] else ""
        parts += [_escaped(text[last : power.start()]), f"${factor}10^{{{power[2].translate(RAISED)}}}$"]
        last = power.end()
    return "".join([*parts, _escaped(text[last:])])


def _escaped(text: str) -> str:
    return "".join(SYMBOLS.get(sign, sign) for sign in text)
