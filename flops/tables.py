"""Tables for reading, for Markdown and LaTeX, and as CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from arch.amounts import count
from arch.errors import InputError, choice
from arch.latex import latex_table
from arch.tables import text_table, wrapped

FORMATS = ("table", "csv", "md", "latex", "json")


def plain(value: Any) -> str:
    """1,234,567 and 1,234.5; "-" for nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def digits(value: float | None) -> str:
    """Four digits: 1,234, 0.1234, 1.234e+22."""
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.3e}"


def short(value: float | None, names: str = "kMBT", top: float = 1e15) -> str:
    """1.234M, 45.60B; from `top` on 1.234e+15."""
    if value is None:
        return "-"
    return f"{value:.3e}" if abs(value) >= top else count(value, 4, names, zeros=True)


def si(value: float | None) -> str:
    """1.234k, M, G, T, P, E, Z: of FLOP and bytes."""
    return short(value, "kMGTPEZ", 1e24)


def duration(seconds: float) -> str:
    """45 s, 12.3 min, 5.10 h, 3.42 d."""
    for scale, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= scale * (2 if unit == "d" else 1):
            return f"{seconds / scale:,.1f} {unit}" if seconds >= 10 * scale else f"{seconds / scale:.2f} {unit}"
    return f"{seconds:.3g} s"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}"


@dataclass(frozen=True)
class Column:
    """`key` of a row, the name in CSV and JSON; `head` over the column where it is drawn (default: the key); `show`
    what is drawn of a value, `csv` what the CSV has of it; `csv_only`: it is not drawn."""

    key: str
    head: str = ""
    show: Callable[[Any], str] = plain
    text: bool = False  # aligned on the left
    csv: Callable[[Any], Any] = lambda value: value
    csv_only: bool = False

    @property
    def title(self) -> str:
        return self.head or self.key


@dataclass(frozen=True)
class Table:
    """`last`: so many rows at the end are set apart (totals). `notes` follow the table."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    notes: Sequence[str] = field(default=())
    last: int = 0

    @property
    def drawn(self) -> list[Column]:
        return [column for column in self.columns if not column.csv_only]

    def cells(self) -> list[list[str]]:
        return [[column.show(row.get(column.key)) for column in self.drawn] for row in self.rows]


def format_of(name: str, as_json: bool) -> str:
    """The format `name`. Raises InputError for an unknown one, and for --json beside another."""
    if name not in FORMATS:
        raise InputError(f"--format: unknown format {name!r}{choice(name, list(FORMATS))}")
    if as_json and name not in ("table", "json"):
        raise InputError(f"--json is --format json, and --format {name} was given: leave one out")
    return "json" if as_json else name


def emit(table: Table, data: Any, form: str) -> None:
    """Print `table` in a format of FORMATS; as JSON `data` is printed instead."""
    if form == "json":
        print(json.dumps(data, indent=1, allow_nan=False))
    elif form == "csv":
        _csv(table)
    elif form == "md":
        print(markdown(table))
    elif form == "latex":
        left = [index for index, column in enumerate(table.drawn) if column.text]
        print(latex_table([column.title for column in table.drawn], table.cells(), left, table.last), end="")
    else:
        draw(table)


def warn(messages: Sequence[str], form: str) -> None:
    """One line each on stderr; JSON holds them itself."""
    for message in messages if form != "json" else ():
        print(f"warning: {message}", file=sys.stderr)


def _csv(table: Table) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    for row in table.rows:
        writer.writerow([column.csv(row.get(column.key)) for column in table.columns])


def markdown(table: Table) -> str:
    heads = [column.title.replace("\n", " ") for column in table.drawn]
    rule = [":--" if column.text else "--:" for column in table.drawn]
    rows = [[cell.replace("|", "\\|") for cell in row] for row in table.cells()]
    lines = [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]
    return "\n".join([f"**{table.title}**", "", *lines, *(f"\n{note}" for note in table.notes)])


def draw(table: Table) -> None:
    """The title, the table and its notes, no wider than a terminal."""
    left = {index for index, column in enumerate(table.drawn) if column.text}
    print("\n".join(wrapped(table.title.split("\n"))))
    print(text_table([column.title for column in table.drawn], table.cells(), left, table.last))
    for note in wrapped(table.notes):
        print(note)
