"""Any runs as a table: of a study, in its directory or as it was published, or of anybody's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from analysis.fits.settings import FITS
from analysis.fits.study_fits import read_fits
from analysis.fits.tables import read_table
from analysis.fits.tables.files import suffix_of
from analysis.run_table import RunTable
from analysis.runs import load_tables
from analysis.source.base import AGAIN
from analysis.source.parquet import study_of_file
from analysis.source.published import Published
from data.files import MANIFEST


def read_runs(source: str | Path | pd.DataFrame, **options: Any) -> RunTable:
    """Of `<out>/<study>`, where runs in progress are fine, of a folder that `scaling publish` wrote, or of a table:
    CSV, TSV, JSONL, JSON, Parquet, a data frame. options: how the columns of somebody else's table are read
    (`read_table`); without them a file of a study's results is that study.

    Settings are those of the stored fit; where a directory has none yet, the defaults; a table of somebody else's is
    taken as it stands. Raises InputError where it is no study and no table, or is damaged.
    """
    if isinstance(source, pd.DataFrame):
        return read_table(source, **options)
    directory = Path(source)
    if options or directory.is_file() or suffix_of(directory) is not None:
        return (None if options else study_of_file(directory)) or read_table(source, **options)
    if not (directory / MANIFEST).is_file():
        return load_tables(directory)
    published = Published(directory)
    return published.table(read_fits(directory / FITS, AGAIN).settings, published.validation_tokens)
