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
HEAD, CELL = 14, 26  # letters of a line in them
MATHS = re.compile(r"(?P<raised>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)|\b(?P<letter>[ND])\\_opt\b|(?<!\w)-(?=\d)")
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def latex_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int], last: int = 0) -> str:
    """A table of `rows` under `heads`, long texts in several lines. left: the columns that are aligned on the left;
    last: so many rows at the end are set apart, as totals are."""
    sides = ["l" if index in left else "r" for index in range(len(heads))]
    forms = [f"[b]{{@{{}}{side}@{{}}}}" for side in sides]
    named = [_lines(head, HEAD, form) for head, form in zip(heads, forms, strict=True)]
    below = [[_lines(cell, CELL, "[t]{@{}l@{}}") for cell in row] for row in rows]
    head, *body = (" & ".join(row) + r" \\" for row in [named, *below])
    if last:
        body.insert(len(body) - last, r"\midrule")
    begin = f"\\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def _lines(text: str, letters: int, form: str) -> str:
    """One line, or a tabular of `form` with several; an interval is not broken."""
    wrap = textwrap.TextWrapper(letters, break_long_words=False, break_on_hyphens=False)
    lines = wrap.wrap(INTERVAL.sub("[\\1,\u00a0\\2]", text))
    text = MATHS.sub(_mathematics, r" \\ ".join(line.translate(LETTERS) for line in lines))
    return text if len(lines) < 2 else rf"\begin{{tabular}}{form}{text}\end{{tabular}}"


def _mathematics(part: re.Match[str]) -> str:
    raised, letter = part["raised"], part["letter"]
    return f"$^{{{raised.translate(RAISED)}}}$" if raised else rf"${letter}_\mathrm{{opt}}$" if letter else "$-$"
