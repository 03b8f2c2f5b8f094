"""A study's directory, opened for fits: its tables, and the settings of its stored fit."""

from __future__ import annotations

from pathlib import Path

from analysis.fits.settings import stored_settings
from analysis.fits.study_points import StudyRuns
from analysis.runs import load_tables


def open_study(directory: str | Path) -> StudyRuns:
    """Of `<out>/<study>`; runs in progress are fine. Settings are those of the stored fit, the defaults where there is
    none. Raises InputError where the directory holds no study, or a damaged run."""
    directory = Path(directory)
    settings = stored_settings(directory)
    return StudyRuns(directory.name, load_tables(directory, control=settings.control), settings)
