"""A table's file as a data frame: CSV, TSV, JSON lines, a JSON array of rows, Parquet; all but Parquet also as .gz.

Cells of text files stay text, so that no reader guesses what "1,234" or "007" means; the index counts rows from 1,
the header not among them. Messages name these rows.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.table_files import read_table
from arch.amounts import counted
from arch.errors import InputError
from data.files import parse_json, reading

TEXTS = (".csv", ".tsv", ".jsonl", ".json")
SUFFIXES = (*TEXTS, ".parquet")
WIDEST_CELL = 10_000_000  # characters: beyond it an open quote has swallowed the file
LARGEST = 1 << 30  # bytes of text: its rows take some ten times as much memory
GZIP = b"\x1f\x8b"  # the first bytes of gzip, whatever the file is called
MARK = "\ufeff"  # the byte order mark
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
    with reading(path):
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is {'a directory' if path.is_dir() else 'no regular file'}, no table")
        if not path.exists():
            raise InputError(f"{path}: does not exist")
        if kind == ".parquet":
            frame = _numbered(read_table(path), str(path))
        else:
            text = _text(path)
            frame = _delimited(text, kind, path) if kind in (".csv", ".tsv") else _records(text, kind, path)
    if not len(frame):
        raise InputError(f"{path}: holds no rows")
    return frame


def from_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """A data frame of a notebook, its rows counted from 1. Raises InputError for one without rows."""
    if not len(frame):
        raise InputError("the table: holds no rows")
    return _numbered(frame, "the table")


def _numbered(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """Its rows counted from 1; every level of its index that has a name is a column, and a cell that holds several
    values their text."""
    numbered = frame.reset_index(drop=True)
    numbered.index = pd.RangeIndex(1, len(numbered) + 1)
    numbered.columns = pd.Index([_head(name) for name in numbered.columns], dtype=object)
    for at, name in enumerate(frame.index.names):
        if name is None or not _head(name):
            continue
        level = pd.Series(frame.index.get_level_values(at).to_numpy(), index=numbered.index)
        if _head(name) not in numbered or not numbered[_head(name)].astype(str).equals(level.astype(str)):
            numbered.insert(0, _head(name), level, allow_duplicates=True)
    _refuse_twice(list(numbered.columns), where)
    for head in numbered.columns:
        cells = [] if pd.api.types.is_numeric_dtype(numbered[head]) else numbered[head].to_list()
        if any(map(pd.api.types.is_list_like, cells)):
            numbered[head] = [str(cell) if pd.api.types.is_list_like(cell) else cell for cell in cells]
        try:
            "".join([head, *(cell for cell in cells if isinstance(cell, str))]).encode()
        except UnicodeEncodeError:
            raise InputError(f"{where}: column {head!r} holds half of a surrogate pair, which is no text") from None
    return numbered


def _head(name: Any) -> str:
    return str(name).replace(MARK, "").strip()


def _text(path: Path) -> str:
    """What the file holds, decompressed where it is gzip, without byte order marks: files put together have several."""
    with open(path, "rb") as file:
        is_gzip = file.read(2) == GZIP
    with gzip.open(path) if is_gzip else open(path, "rb") as opened:
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise InputError(f"{path}: holds more than {LARGEST >> 30} GiB of text: keep the rows that are fitted")
    try:
        return content.decode("utf-8").replace(MARK, "")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is not UTF-8 text (byte {error.start}): save it as UTF-8, or it is no table"
        ) from None


def _delimited(text: str, kind: str, path: Path) -> pd.DataFrame:
    """CSV with commas, or with semicolons where the header has no comma; TSV with tabs."""
    first = text.partition("\n")[0]
    comma = "\t" if kind == ".tsv" else ";" if ";" in first and "," not in first else ","
    csv.field_size_limit(WIDEST_CELL)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=comma, strict=True))
    while rows and not any(rows[-1]):
        rows.pop()  # empty lines at the end are no rows
    if not rows or not any(cell.strip() for cell in rows[0]):
        raise InputError(f"{path}: has no header: the first line names the columns")
    heads = [head.strip() or f"(column {number})" for number, head in enumerate(rows[0], 1)]
    _refuse_twice(heads, str(path))
    for number, row in enumerate(rows[1:], 1):
        if len(row) > len(heads) and any(row[len(heads) :]):
            raise InputError(f"{path}: row {number} has {counted(len(row), 'cell')}, the header has {len(heads)}")
        row[len(heads) :] = []
        row.extend([""] * (len(heads) - len(row)))
    if comma == ";" and (where := [n for n, row in enumerate(rows[1:], 1) if any("," in cell for cell in row)]):
        raise InputError(
            f"{path}: cells are parted by semicolons, and row {where[0]} has a comma inside a cell, which could be a "
            f"decimal point: write numbers with a point"
        )
    return pd.DataFrame(rows[1:], columns=heads, index=pd.RangeIndex(1, len(rows)), dtype=object)


def _records(text: str, kind: str, path: Path) -> pd.DataFrame:
    """JSON objects, one a line or in one array; a key that a row lacks is an empty cell."""
    records: list[Any] = []
    if kind == ".json":
        records = parse_json(text, any_number=True)
        if not isinstance(records, list):
            raise InputError(f"{path}: is no array of rows: write [{{...}}, {{...}}], or one object a line as .jsonl")
    else:
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
    return _numbered(pd.DataFrame(cells, dtype=object), str(path))


def _refuse_twice(names: Sequence[str], where: str) -> None:
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise InputError(f"{where}: the column {twice[0]!r} is there {names.count(twice[0])} times: rename one")
