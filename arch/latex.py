"""Tables for LaTeX: a tabular, for a document with the package booktabs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence

from arch.tables import INTERVAL

LETTERS = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}", "\u00a0": "~"}
    | {"<": "$<$", ">": "$>$", "−": "$-$", "·": r"$\cdot$", "±": r"$\pm$", "≤": r"$\leq$", "×": r"$\times$", "–": "--"}
)
# Letters of a line in heads and in cells: the first with which a table has at most MOST in all, as two columns hold
LINES = ((14, 26), (10, 20), (8, 16))
MOST, GAP = 95, 2
NARROW = r"\setlength{\tabcolsep}{3pt}"
MATHS = re.compile(r"(?P<raised>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)|\b(?P<letter>[NDL])\\_opt\b|(?<![\w-])-(?=\d)")
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def latex_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int], last: int = 0) -> str:
    """A table of `rows` under `heads`, long texts in several lines; of a wide table in shorter ones, and columns nearer
    to each other. left: the columns that are aligned on the left; last: so many rows at the end are set apart, as
    totals are."""
    sides = ["l" if index in left else "r" for index in range(len(heads))]
    for head, cell in LINES:
        named, below = [_lines(text, head) for text in heads], [[_lines(text, cell) for text in row] for row in rows]
        widths = [max(len(line) for lines in column for line in lines) for column in zip(named, *below, strict=True)]
        if sum(widths) + GAP * len(widths) <= MOST:
            break
    first = " & ".join(_text(lines, f"[b]{{@{{}}{side}@{{}}}}") for lines, side in zip(named, sides, strict=True))
    body = [" & ".join(_text(lines, "[t]{@{}l@{}}") for lines in row) + r" \\" for row in below]
    if last:
        body.insert(len(body) - last, r"\midrule")
    begin = f"\\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}"
    drawn = [begin, r"\toprule", first + r" \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*drawn, ""] if cell == LINES[0][1] else [r"\begingroup" + NARROW, *drawn, r"\endgroup", ""])


def _lines(text: str, letters: int) -> list[str]:
    """Of at most so many letters where words allow; an interval is not broken."""
    wrap = textwrap.TextWrapper(letters, break_long_words=False, break_on_hyphens=False)
    return wrap.wrap(INTERVAL.sub("[\\1,\u00a0\\2]", text)) or [""]


def _text(lines: list[str], form: str) -> str:
    """One line, or a tabular of `form` with several."""
    text = MATHS.sub(_mathematics, r" \\ ".join(line.translate(LETTERS) for line in lines))
    return text if len(lines) < 2 else rf"\begin{{tabular}}{form}{text}\end{{tabular}}"


def _mathematics(part: re.Match[str]) -> str:
    raised, letter = part["raised"], part["letter"]
    return f"$^{{{raised.translate(RAISED)}}}$" if raised else rf"${letter}_\mathrm{{opt}}$" if letter else "$-$"
