"""The source of a study, of which fit and report ask the same: the folder that it was published in where it was loaded
from one, else its runs' directories.

The table of runs is as a Parquet file gives it back, so that both give the same, but for the state of runs that have
not begun: of a published study nobody trains them any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.source.published import Published
from analysis.source.run_directories import RunDirectories

if TYPE_CHECKING:
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec


Source = Published | RunDirectories


def source_of(study: StudySpec, runs: Sequence[RunSpec]) -> Source:
    """The source of a study. Raises InputError where its folder is no publication, or is damaged."""
    if study.published is not None:
        return Published(study.published, [run.run_id for run in runs])
    return RunDirectories(study, runs)
