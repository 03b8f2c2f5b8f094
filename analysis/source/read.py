"""Any runs as a table: those of a study in its directory, or in the folder that it was published in."""

from __future__ import annotations

from pathlib import Path

from analysis.fits.settings import FITS, FitSettings
from analysis.run_table import RunTable
from analysis.runs import load_tables
from analysis.source.published import Published
from arch.errors import InputError
from data.files import MANIFEST, read_json


def read_runs(source: str | Path) -> RunTable:
    """Of `<out>/<study>`, where runs in progress are fine, or of a folder that `scaling publish` wrote. Settings are
    those of the stored fit; where a directory has none yet, the defaults. Raises InputError where it is no study, or is
    damaged."""
    directory = Path(source)
    if not (directory / MANIFEST).is_file():
        return load_tables(directory)
    published = Published(directory)
    try:
        settings = FitSettings(**read_json(directory / FITS)["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{directory / FITS}: cannot be read ({error}); take the folder from where it was published"
        ) from None
    return published.table(settings, published.validation_tokens)
