"""A table's file as a data frame: CSV, TSV, JSON lines, a JSON array of rows, Parquet, a sheet of Excel; texts also as
.gz.

Cells of text files stay text, so that no reader guesses what "1,234" or "007" means; the index counts rows from 1,
the header not among them. Messages name these rows.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pandas as pd

from analysis.table_files import read_table
from arch.amounts import counted
from arch.errors import InputError
from data.files import parse_json, reading

TEXTS = (".csv", ".tsv", ".jsonl", ".json")
SUFFIXES = (*TEXTS, ".parquet", ".xlsx")
LARGEST = 1 << 30  # bytes of text: its rows take some ten times as much memory
GZIP = b"\x1f\x8b"  # the first bytes of gzip, whatever the file is called
MARK = "\ufeff"  # the byte order mark; files put together have several
WIDEST_CELL = 10_000_000  # characters: beyond it an open quote has swallowed the file
HALF_PAIR = re.compile("[\ud800-\udfff]")
LINE_END = re.compile(r"\r\n|\n|\r")  # str.splitlines splits at U+2028 too, inside of strings


def suffix_of(path: Path | str) -> str | None:
    """The kind of table that a name stands for, one of SUFFIXES; None where it is no table's name."""
    name = Path(path).name.lower()
    plain = name.removesuffix(".gz")
    suffix = Path(plain).suffix
    return suffix if suffix in (TEXTS if plain != name else SUFFIXES) else None


def read_frame(path: Path | str) -> pd.DataFrame:
    """The table at `path`, its columns named by its header. Raises InputError, one line, where it is no table."""
    path, kind = Path(path), suffix_of(path)
    if kind is None:
        raise InputError(f"{path}: is no table: give a file that ends in {', '.join(SUFFIXES)} (or .csv.gz)")
    if not path.is_file():
        raise InputError(f"{path}: {'is no regular file' if path.exists() else 'does not exist'}")
    with reading(path):
        if kind == ".parquet":
            return from_frame(read_table(path), str(path))
        if kind == ".xlsx":
            return _of_cells(_sheet(path), path)
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
        with gzip.open(path) if packed else open(path, "rb") as opened:
            content = opened.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise InputError(f"{path}: holds more than {LARGEST >> 30} GiB of text: keep the rows that are fitted")
        try:
            text = content.decode("utf-8").replace(MARK, "")
        except UnicodeDecodeError as error:
            at = f"byte {error.start}"
            raise InputError(f"{path}: is not UTF-8 text ({at}): save it as UTF-8, or it is no table") from None
        return _delimited(text, kind, path) if kind in (".csv", ".tsv") else _records(text, kind, path)


def from_frame(frame: pd.DataFrame, where: str = "the table") -> pd.DataFrame:
    """A data frame, its rows counted from 1; every level of its index that has a name of its own is a column. Raises
    InputError for one without rows, two columns of one name, and text that is no Unicode."""
    if not len(frame):
        raise InputError(f"{where}: holds no rows")
    frame = frame.rename(columns=lambda name: str(name).strip())
    named = [name for name in frame.index.names if name is not None and str(name) not in frame.columns]
    numbered = frame.reset_index(level=named).reset_index(drop=True)
    _refuse_twice(list(numbered.columns), where)
    numbered = numbered.set_axis(pd.RangeIndex(1, len(numbered) + 1)).rename(columns=str)
    for name, cells in numbered.items():
        for row, cell in enumerate([name] if cells.dtype.kind in "biufM" else [name, *cells]):
            if isinstance(cell, str) and HALF_PAIR.search(cell):
                place = f"row {row}" if row else "the header"
                raise InputError(f"{where}: {place} has half of a surrogate pair, no Unicode text, in column {name!a}")
    return numbered


def _delimited(text: str, kind: str, path: Path) -> pd.DataFrame:
    """CSV with commas, or with semicolons where the header has no comma; TSV with tabs."""
    first = text.partition("\n")[0]
    comma = "\t" if kind == ".tsv" else ";" if ";" in first and "," not in first else ","
    csv.field_size_limit(WIDEST_CELL)
    return _of_cells(list(csv.reader(io.StringIO(text, newline=""), delimiter=comma, strict=True)), path)


def _sheet(path: Path) -> list[list[Any]]:
    """The cells of a workbook's only sheet that has any; of a formula what it came to when the file was saved."""
    if find_spec("openpyxl") is None:
        raise InputError(f"{path}: needs openpyxl: pip install 'linear-scaling[excel]', or save it as CSV")
    from openpyxl import load_workbook

    with ZipFile(path) as packed:
        if sum(part.file_size for part in packed.infolist()) > LARGEST:
            raise InputError(f"{path}: holds more than {LARGEST >> 30} GiB of text: keep the rows that are fitted")
    sheets = load_workbook(path, read_only=True, data_only=True).worksheets
    filled = {sheet.title: [["" if cell is None else cell for cell in row] for row in sheet.values] for sheet in sheets}
    filled = {title: rows for title, rows in filled.items() if any(map(any, rows))}
    if len(filled) > 1:
        raise InputError(
            f"{path}: has several sheets ({', '.join(filled)}): keep the one with the runs, or save it as CSV"
        )
    return next(iter(filled.values()), [])


def _of_cells(rows: list[list[Any]], path: Path) -> pd.DataFrame:
    """The first row names the columns."""
    while rows and not any(rows[-1]):
        rows.pop()  # empty lines at the end are no rows
    if not rows or not any(str(cell).strip() for cell in rows[0]):
        raise InputError(f"{path}: has no header: the first line names the columns")
    heads = [str(head).strip() or f"(column {number})" for number, head in enumerate(rows[0], 1)]
    for number, row in enumerate(rows[1:], 1):
        if any(row[len(heads) :]):
            raise InputError(f"{path}: row {number} has {counted(len(row), 'cell')}, the header has {len(heads)}")
        row[len(heads) :] = [""] * (len(heads) - len(row))
    _refuse_twice(heads, str(path))
    return from_frame(pd.DataFrame(rows[1:], columns=heads, dtype=object), str(path))


def _records(text: str, kind: str, path: Path) -> pd.DataFrame:
    """JSON objects, one a line or in one array; a key that a row lacks is an empty cell."""
    if kind == ".json":
        records = parse_json(text, any_number=True)
        if not isinstance(records, list):
            raise InputError(f"{path}: is no array of rows: write [{{...}}, {{...}}], or one object a line as .jsonl")
    else:
        records = []
        for number, line in enumerate(LINE_END.split(text), 1):
            if line.strip():
                try:
                    records.append(parse_json(line, any_number=True))
                except ValueError as error:
                    raise InputError(f"{path}: line {number} cannot be read as JSON ({error})") from None
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise InputError(f"{path}: row {number} is no object with columns")
    heads = list(dict.fromkeys(key for record in records for key in record))
    cells = {head: [record.get(head) for record in records] for head in heads}
    return from_frame(pd.DataFrame(cells, dtype=object), str(path))


def _refuse_twice(names: Sequence[str], where: str) -> None:
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise InputError(f"{where}: the column {twice[0]!r} is there {names.count(twice[0])} times: rename one")
