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

if TYPE_CHECKING:
    import plotly.graph_objects as go

TEMPLATES = Path(__file__).parent / "templates"
INTERVAL = re.compile(r"\[([^\[\], ]+), ([^\[\], ]+)\]")
UNBROKEN = '<span class="nb">[\\1, \\2]</span>'
NUMBER = re.compile(r"[-+−]?\d[\d,.]*(e[-+]?\d+)?[*%]?|-|")  # a cell without a value fits either kind of column


class Shaped(NamedTuple):
    """A table as it is drawn: (text, whether its column holds numbers alone) for each head and cell."""

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
    environment.globals |= {"shaped": shaped, "plot": _plot}
    plotly = None
    if figures:
        from plotly.offline import get_plotlyjs

        plotly = Markup(get_plotlyjs())
    return environment.get_template(template.name).render(values, plotly=plotly) + "\n"


def shaped(rows: Sequence[Mapping[str, str]], missing: str = "") -> Shaped:
    """Columns in the order of their appearance, without those that are empty in every row. Columns of numbers, but for
    the first, are aligned on the right. An interval [a, b] is not broken over two lines."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if any(row.get(name) for row in rows)]
    numeric = {name: all(NUMBER.fullmatch(row.get(name, "")) for row in rows) for name in names[1:]}
    drawn: list[list[tuple[str, bool]]] = []
    for row in rows:
        cells = [row.get(name, missing) for name in names]
        texts = [Markup(INTERVAL.sub(UNBROKEN, str(escape(cell)).replace(" – ", "\u00a0– "))) for cell in cells]
        drawn.append([(text, numeric.get(name, False)) for name, text in zip(names, texts, strict=True)])
    return Shaped([(name, numeric.get(name, False)) for name in names], drawn)


def _plot(figure: go.Figure) -> Markup:
    config = {"displaylogo": False, "responsive": figure.layout.width is None}
    return Markup(figure.to_html(full_html=False, include_plotlyjs=False, config=config))
