"""HTML pages from Jinja templates: one shell, one kind of table and of figure for every page of the project.

A page is a template that extends page.html.j2 and takes its parts from parts.html.j2 (templates/). Pages hold all they
need: no file beside them and no network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from arch.tables import INTERVAL

if TYPE_CHECKING:
    import plotly.graph_objects as go

TEMPLATES = Path(__file__).parent / "templates"
UNBROKEN = '<span class="nb">[\\1, \\2]</span>'
HEIGHT = 450  # of a figure that says none: plotly's own
NUMBER = re.compile(r"[-+−]?\d[\d,.]*(e[-+]?\d+)?[*%]?|-|")  # a cell without a value fits either kind of column


class Shaped(NamedTuple):
    """A table as it is drawn: for each head and cell its text, and whether its column holds only numbers."""

    heads: list[tuple[str, bool]]
    rows: list[list[tuple[str, bool]]]


def render(template: Path, figures: bool, **values: Any) -> str:
    """The page of `template` with `values`; with `figures` Plotly's code is in it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, TEMPLATES]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.globals |= {"shaped": shaped, "plot": _plot, "exports": ()}
    plotly = None
    if figures:
        from plotly.offline import get_plotlyjs

        plotly = Markup(get_plotlyjs())
    return environment.get_template(template.name).render(values, plotly=plotly) + "\n"


def shaped(rows: Sequence[Mapping[str, str]], missing: str = "") -> Shaped:
    """The table of `rows`. Columns of numbers, except the first column, are aligned on the right. An interval [a, b] is
    not broken over two lines."""
    heads, cells = shaped_texts(rows, missing)
    numeric = [i > 0 and all(NUMBER.fullmatch(row.get(head, "")) for row in rows) for i, head in enumerate(heads)]
    drawn: list[list[tuple[str, bool]]] = [
        [
            (Markup(INTERVAL.sub(UNBROKEN, str(escape(str(cell))).replace(" – ", "\u00a0– "))), is_numeric)
            for cell, is_numeric in zip(row, numeric, strict=True)
        ]
        for row in cells
    ]
    return Shaped(list(zip(heads, numeric, strict=True)), drawn)


def shaped_texts(rows: Sequence[Mapping[str, str]], missing: str = "") -> tuple[list[str], list[list[str]]]:
    """Heads and cells: columns in the order of their appearance, without those that are empty in every row."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if any(row.get(name) for row in rows)]
    return names, [[row.get(name, missing) for name in names] for row in rows]


def _plot(figure: go.Figure) -> Markup:
    """The figure's HTML: as wide as the page, at most as wide as it was made; page.html.j2 draws it."""
    from plotly.io.json import to_json_plotly

    content, width, height = figure.to_dict(), figure.layout.width, figure.layout.height or HEIGHT
    content["layout"].pop("width", None)
    drawn = to_json_plotly(content)  # escapes what could end the script
    style = f"min-height:{height:g}px" + (f";max-width:{width:g}px" if width else "")
    return Markup(f'<div class="plot" style="{style}"></div><script type="application/json">{drawn}</script>')
