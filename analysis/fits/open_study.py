"""A study opened for fits, in its directory or in the folder that it was published in: its tables, and the settings of
its fit."""

from __future__ import annotations

from pathlib import Path

from analysis.fits.settings import FITS, FitSettings, stored_settings
from analysis.fits.study_points import StudyRuns
from analysis.runs import load_tables
from analysis.source.published import Published
from arch.errors import InputError
from data.files import MANIFEST, read_json


def open_study(directory: str | Path) -> StudyRuns:
    """Of `<out>/<study>`, where runs in progress are fine, or of a folder that `scaling publish` wrote. Settings are
    those of the stored fit; where a directory has none yet, the defaults. Raises InputError where it is no study, or is
    damaged."""
    directory = Path(directory)
    if not (directory / MANIFEST).is_file():
        settings = stored_settings(directory)
        return StudyRuns(directory.name, load_tables(directory, control=settings.control), settings)
    published = Published(directory)
    try:
        settings = FitSettings(**read_json(directory / FITS)["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{directory / FITS}: cannot be read ({error}); take the folder from where it was published"
        ) from None
    return StudyRuns(directory.name, published.tables(settings.control, published.validation_tokens), settings)
