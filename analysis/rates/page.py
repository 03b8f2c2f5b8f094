"""The page of a sweep: loss against rate, the laws, and every cell."""

from __future__ import annotations

from pathlib import Path

from analysis.pages.html import render
from data.files import write_bytes

from .figure import laws, valleys
from .fit import RatesFit
from .law import LEVEL
from .rows import cell_rows, law_rows, verdict

TEMPLATE = Path(__file__).with_name("rates.html.j2")


def write_page(fit: RatesFit, name: str, directory: Path) -> Path:
    """<directory>/index.html."""
    page = render(
        TEMPLATE,
        figures=True,
        name=name,
        verdict=verdict(fit),
        valleys=valleys(fit),
        laws=law_rows(fit),
        level=LEVEL,
        lines=laws(fit) if fit.laws else None,
        cells=cell_rows(fit),
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "index.html"
    write_bytes(path, page.encode(), kind="results")
    return path
