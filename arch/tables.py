"""The tables that commands print. Columns of numbers are aligned on the right, all others on the left.

On a terminal no line is wider than it: columns of numbers that do not fit follow in further parts, which repeat the
first columns, and long texts are folded (by rich, imported only for that). In a pipe or a file a row is one line.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Collection, Mapping, Sequence

GAP = "  "
WIDEST_TEXT = 120  # of notes on a terminal: longer lines are hard to read
INTERVAL = re.compile(r"\[([^\[\], ]+), ([^\[\], ]+)\]")
STARTS_AS_A_NUMBER = re.compile(r"(about )?[-+−~?(±x ]*\d|[-?]$|$")
WITHOUT_NUMBER = (
    *("-", "none", "no interval", "not identified", "not fitted", "not tested", "not finite", "not known"),
    "inside",
)


def print_width() -> int | None:
    """The width of standard output in characters; None where it is no terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return max(40, shutil.get_terminal_size().columns)


def wrapped(lines: Sequence[str]) -> list[str]:
    """`lines`, on a terminal broken between words and continued with an indent."""
    width = print_width()
    if width is None:
        return list(lines)
    import textwrap

    width = min(width, WIDEST_TEXT)
    how = textwrap.TextWrapper(width, subsequent_indent=GAP, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in how.wrap(line) or [""]]


def rows_table(rows: Sequence[Mapping[str, object]]) -> str:
    """`text_table` of rows by column name; columns in the order of their appearance. "" without rows."""
    heads = list(dict.fromkeys(name for row in rows for name in row))
    return text_table(heads, [[str(row.get(name, "")) for name in heads] for row in rows]) if rows else ""


def text_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] | None = None, last: int = 0
) -> str:
    """A table of `rows` under `heads`, which may have several lines.

    left: the columns that are aligned on the left; None: the first, and those that hold words. last: so many rows at
    the end are set apart, as totals are.
    """
    if left is None:
        left = {index for index in range(len(heads)) if index == 0 or _holds_words([row[index] for row in rows])}
    width = print_width()
    widths = [_width([heads[index], *(row[index] for row in rows)]) for index in range(len(heads))]
    if width is None or sum(widths) + len(GAP) * (len(widths) - 1) <= width:
        return _padded(heads, rows, widths, left, last)
    parts = []
    for chosen in _split(widths, left, width):
        part = [heads[i] for i in chosen], [[row[i] for i in chosen] for row in rows]
        aligned = {place for place, i in enumerate(chosen) if i in left}
        parts.append(_folded(*part, aligned, last, width))
    return "\n\n".join(parts)


def _holds_words(cells: Sequence[str]) -> bool:
    return any(cell not in WITHOUT_NUMBER and not STARTS_AS_A_NUMBER.match(cell) for cell in cells)


def _width(cells: Sequence[str]) -> int:
    return max((len(line) for cell in cells for line in cell.split("\n")), default=0)


def _padded(
    heads: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], left: Collection[int], last: int
) -> str:
    def line(cells: Sequence[str]) -> str:
        padded = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        return GAP.join(padded).rstrip()

    high = max(head.count("\n") for head in heads) + 1
    stacked = [[""] * (high - 1 - head.count("\n")) + head.split("\n") for head in heads]
    rule = GAP.join("-" * width for width in widths)
    lines = [line([head[i] for head in stacked]) for i in range(high)] + [rule]
    lines += [line(row) for row in rows]
    if last:
        lines.insert(len(lines) - last, rule)
    return "\n".join(lines)


def _split(widths: Sequence[int], left: Collection[int], width: int) -> list[list[int]]:
    """The columns of each part: those before the first column of numbers in all of them, the others as they fit."""
    kept = [i for i in range(len(widths)) if all(j in left for j in range(i + 1))]
    if sum(widths[i] + len(GAP) for i in kept) > width // 2:
        kept = kept[:1]
    others = [i for i in range(len(widths)) if i not in kept]
    parts: list[list[int]] = []
    free = 0
    for index in others:
        needed = widths[index] + len(GAP)
        if not parts or needed > free:
            parts.append(list(kept))
            free = width + len(GAP) - sum(widths[i] + len(GAP) for i in kept)
        parts[-1].append(index)
        free -= needed
    return parts or [kept]


def _folded(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int], last: int, width: int) -> str:
    """No wider than `width`: words of the columns in `left` are folded, numbers never."""
    widths = [_width([heads[i], *(row[i] for row in rows)]) for i in range(len(heads))]
    if sum(widths) + len(GAP) * (len(widths) - 1) <= width:
        return _padded(heads, rows, widths, left, last)
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    line = "    \n"
    table = Table(
        box=Box(line * 2 + "----\n" + line + "----\n" + line * 3, ascii=True),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, head in enumerate(heads):
        words = index in left
        table.add_column(Text(head), justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), end_section=number == len(rows) - last - 1)
    drawn = io.StringIO()
    Console(file=drawn, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in drawn.getvalue().rstrip("\n").split("\n"))
