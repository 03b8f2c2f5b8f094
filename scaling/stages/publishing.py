"""A study's folder for others: written from the study, or held against what its tables say."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch.errors import InputError

from .pipeline import check_results, runs_at_stored_rates
from .request import Request


@dataclass(frozen=True)
class Checked:
    """The result of the check by file; the names of those that differ; versions of packages that are others here."""

    files: dict[str, str]
    differ: list[str]
    versions: str


def publish_stage(request: Request, folder: Path) -> dict[str, Any]:
    """Write the folder; returns its manifest. Raises InputError as fit_stage does, and for what cannot be published."""
    from analysis.publish.write import publish

    if request.study.published is not None:
        raise InputError(f"{request.study.published}: is published already: give the study file to publish it again")
    check_results(request)
    with request.writing(rates=False):
        return publish(request.study, runs_at_stored_rates(request), folder)


def check_stage(request: Request, folder: Path | None) -> Checked:
    """Check the files of a published study: the folder that the request is of by itself, or `folder` against
    the study that the request is of. Writes nothing that stays. Raises InputError for a folder that is damaged."""
    from analysis.publish.check import check_against, check_alone, differ, other_versions
    from analysis.publish.write import fill
    from analysis.source.published import read_published

    study = request.study
    if folder is None:
        if study.published is None:
            raise InputError(f"{study.path}: is a study file: give the folder that it was published in")
        verdicts, place = check_alone(study, request.runs), study.published
    else:
        if study.published is not None:
            raise InputError(f"{study.published}: is a published folder: give it alone, or a study file and a folder")
        read_published(folder)  # refused before anything is made
        check_results(request)
        with tempfile.TemporaryDirectory() as temporary, request.writing(rates=False):
            new_folder = Path(temporary) / "made"
            fill(new_folder, study, runs_at_stored_rates(request))
            verdicts, place = check_against(folder, new_folder), folder
    of_bits = other_versions(place, but=("commit",))  # a commit rounds nothing
    return Checked(verdicts, differ(verdicts, of_bits), other_versions(place))
