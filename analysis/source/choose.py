"""The source of a study: the folder that it was published in where it was loaded from one, else its runs'
directories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.source.base import Source
from analysis.source.published import Published
from analysis.source.run_directories import RunDirectories

if TYPE_CHECKING:
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec


def source_of(study: StudySpec, runs: Sequence[RunSpec]) -> Source:
    """Raises InputError where the folder is none, or is damaged."""
    if study.published is not None:
        return Published(study.published, [run.run_id for run in runs])
    return RunDirectories(study, runs)
