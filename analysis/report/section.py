"""What reports, terminals and RESULTS.md are made of: sections with sentences, figures, tables and notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import plotly.graph_objects as go

from analysis.figures.paper import write_paper
from analysis.pages.export import write_latex, write_tables
from arch.tables import rows_table, wrapped

Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Table:
    """Rows with the name of their file. hidden: the words behind which they open; good: a column and its value in rows
    that are not marked; is_file: the page has its link alone; pairs: a row is a name and a value; brief: the columns
    that a terminal has room for (none: all)."""

    name: str
    rows: Rows
    hidden: str = ""
    good: tuple[str, str] | None = None
    is_file: bool = False
    pairs: bool = False
    brief: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """Its parts in their order. figures: by file name what draws them (None: there is nothing to draw); more: further
    notes, which open behind the words `more_title`."""

    title: str
    lead: Sequence[str] = ()
    figures: Mapping[str, Callable[[], go.Figure | None]] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    more_title: str = ""
    more: Sequence[str] = ()

    @property
    def shown_tables(self) -> list[Table]:
        """Those with rows."""
        return [table for table in self.tables if table.rows]

    @property
    def has_text(self) -> bool:
        return bool(self.lead or self.shown_tables or self.notes or self.more)


@dataclass(frozen=True)
class Page:
    """The page, and its tables and figures by the names of their files."""

    html: str
    tables: dict[str, Rows]
    figures: dict[str, go.Figure]

    def write(self, directory: Path) -> None:
        """index.html, and tables/ beside it."""
        (directory / "index.html").write_text(self.html, encoding="utf-8")
        write_tables(directory / "tables", self.tables)

    def write_paper(self, directory: Path) -> None:
        """Figures in the widths of one column and of two (PDF, SVG), and tables/*.tex; other files there are kept."""
        write_paper(self.figures, directory)
        write_latex(directory / "tables", self.tables)


def pairs(name: str, values: Mapping[str, str]) -> Table:
    """A table of names and values, without those that are empty."""
    return Table(name, [{"what": what, "value": value} for what, value in values.items() if value], pairs=True)


def terminal(section: Section) -> str:
    """A section for a terminal, no wider than it where words allow: title, sentences, tables that are open, notes."""
    parts = [section.title, _lines(section.lead)]
    for table in section.shown_tables:
        if not (table.hidden or table.is_file):
            parts.append(rows_table(shown_rows(table)))
    parts.append(_lines([*section.notes, *section.more]))
    return "\n\n".join(part for part in parts if part) if section.has_text else ""


def shown_rows(table: Table) -> list[dict[str, str]]:
    """The columns that a terminal shows, without those that are empty in every row."""
    names = [name for name in table.brief or dict.fromkeys(name for row in table.rows for name in row)]
    filled = [name for name in names if any(row.get(name) for row in table.rows)]
    return [{name: row[name] for name in filled if name in row} for row in table.rows]


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(wrapped(lines))


def markdown(section: Section) -> str:
    """A section of Markdown, without hidden tables and files."""
    parts = [f"## {section.title}", "\n".join(f"{line}  " for line in section.lead)]
    parts += [markdown_table(table.rows) for table in section.shown_tables if not (table.hidden or table.is_file)]
    parts.append("\n".join(f"- {line}" for line in [*section.notes, *section.more]))
    return "\n\n".join(part for part in parts if part) if section.has_text else ""


def markdown_table(rows: Rows) -> str:
    heads = list(dict.fromkeys(name for row in rows for name in row))
    lines = [heads, ["---"] * len(heads), *([str(row.get(name, "")) for name in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
